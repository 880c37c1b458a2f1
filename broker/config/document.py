"""The example file and the lists of the documentation, from the declarations of the keys."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any, Literal, get_args, get_origin

import attrs

from broker.config.key import REQUIRED, Declared, Key, declared
from broker.config.toml_values import toml

WIDTH = 120
"""Columns of the example file and of the lists."""

HEAD = """# elkobroker: the configuration, with every key.
#
# A line that begins with "#" and a key shows the default: remove the "#" and change the value. If it ends with
# "# example", the key is not set by default, and the value is only an example.
# Lines that begin with "# " are prose. Sizes are in bytes, times in seconds.
#
# After a change, "twistd elkobroker --config FILE --check" validates the file and prints its effect; SIGHUP makes a
# running broker read it again. Keys marked "reload" take effect then; the others at the next start.
# docs/configuration.md describes the combined effect of the keys.

"""
"""The beginning of the example file."""

EXAMPLE = "  # example"
"""End of the line of a key that is not set by default."""


def example(name: str, default: attrs.AttrsInstance) -> str:
    """Return the part of the example file for a section; ``default`` has its values where a file has none."""
    table = type(default)
    return "\n".join(_table(name, table, shown=default == table())) + "\n"


def _table(
    name: str, table: type[attrs.AttrsInstance], shown: bool, array: bool = False, more: str = ""
) -> Iterator[str]:
    """Yield the lines of a table, and of the tables inside. ``shown``: its header is in effect, and no example."""
    header = f"[[{name}]]" if array else f"[{name}]"
    yield from _comment(f"{_text(table)}{more}")
    yield header if shown else f"#{header}{EXAMPLE}"
    inside = []
    for each in declared(table):
        place = f"{name}.{each.name}"
        if each.entry is not None:
            again = f" Repeat the section for another.{' (reload)' if each.key.reload else ''}"
            inside.append(_table(place, each.entry, shown and _is_default(each), array=True, more=again))
        elif each.table is not None:
            inside.append(_table(place, each.table, shown))
        else:
            yield from _comment(_said(each))
            value = each.default if shown and each.default not in (None, REQUIRED) else _value(each)
            yield f"#{each.name} = {toml(value)}{'' if value is each.default and shown else EXAMPLE}"
    for lines in inside:
        yield ""
        yield from lines


def _is_default(array: Declared) -> bool:
    """Return True if an array has one entry by default, whose values are all the defaults."""
    assert array.entry is not None
    required = any(each.default is REQUIRED for each in declared(array.entry))
    is_default: bool = not required and array.default == (array.entry(),)
    return is_default


def _value(each: Declared) -> Any:
    return each.default if each.key.example is None else each.key.example


def _said(each: Declared) -> str:
    limits = [span(each.key)] if each.key.within is not None else []
    limits += ["reload"] if each.key.reload else []
    return f"{each.key.doc} ({'; '.join(limits)})" if limits else each.key.doc


def tables(sections: Iterable[tuple[str, attrs.AttrsInstance]]) -> str:
    """Return the lists of the keys of sections, given by name and default values, as Markdown. The example file has the
    meanings."""
    return "\n".join(line for name, default in sections for line in _markdown(name, type(default)))


def _markdown(name: str, table: type[attrs.AttrsInstance]) -> Iterator[str]:
    """Yield the lines of a section."""
    items = (line for item in _items("", table, False) for line in _wrapped(item, "- ", "  "))
    yield from (f"### `[{name}]`", "", *items, "")


def _items(here: str, table: type[attrs.AttrsInstance], reload: bool) -> Iterator[str]:
    """Yield the text of each key, and of those of the tables inside; ``reload`` holds for all of them."""
    for each in declared(table):
        place = f"{here}{each.name}"
        applies = reload or each.key.reload
        if each.table is not None:
            yield from _items(f"{place}.", each.table, applies)
            continue
        default = "" if each.default in (None, REQUIRED) or each.entry else f" = `{toml(each.default)}`"
        about = ", ".join(filter(None, (_values(each), _at(each, applies))))
        yield f"`{place}{'[]' if each.entry else ''}`{default}{f' ({about})' if about else ''}"
        if each.entry is not None:
            yield from _items(f"{place}[].", each.entry, applies)


def _at(each: Declared, applies: bool) -> str:
    return "" if applies else "replaced at a reload" if each.key.replaceable else "restart"


def _values(each: Declared) -> str:
    """Return the values of a key, as far as its default does not show them."""
    if each.entry is not None:
        return "tables"
    if each.key.within is not None:
        return span(each.key)
    texts = re.findall(r'"(.+?)"', _type(each.type))
    shown = not texts and each.default not in (None, REQUIRED)
    return "" if shown else _type(each.type)


def _wrapped(text: str, first: str = "", rest: str = "") -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_on_hyphens=False,
        break_long_words=False,
    )


def span(declaration: Key) -> str:
    """Return the range of a number, with its unit, as a text."""
    assert declaration.within is not None
    least, most = (_number(bound, declaration.unit) for bound in declaration.within)
    return (
        f"from {least}"
        if most == "inf"
        else f"{least} to {most}{f' {declaration.unit}' if declaration.unit == 's' else ''}"
    )


def _number(bound: float, unit: str) -> str:
    if unit == "bytes":
        size, name = next(((size, name) for size, name in _SIZES if bound >= size and bound % size == 0), (1, "bytes"))
        return f"{bound // size:g} {name}"
    return f"{bound:.15g}"


_SIZES = ((2**50, "PiB"), (2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


_TYPES: dict[Any, str] = {str: "text", int: "integer", float: "number", bool: "true, false"}


def _type(type_: Any) -> str:
    if type_ in _TYPES:
        return _TYPES[type_]
    inner = [each for each in get_args(type_) if each is not type(None) and each is not ...]
    if get_origin(type_) is Literal:
        return ", ".join(f'`"{each}"`' for each in inner)
    if get_origin(type_) is tuple:
        return f"array of {_type(inner[0])}"
    return _type(inner[0])


def _text(table: type) -> str:
    return " ".join((table.__doc__ or "").split())


def _comment(text: str) -> list[str]:
    return _wrapped(text, "# ", "# ")
