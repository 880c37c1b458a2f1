"""The contexts file, TOML: read, checked, and replaced atomically."""

from __future__ import annotations

import json
import os
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path

import attrs

from broker import small_file
from broker.brokerctl.contexts.context import NAME, Context
from broker.brokerctl.failures import Exit, Failure

MAX_FILE = 256 * 1024
"""Bytes of the file: some thousand contexts."""

BUILT_IN = "local"
"""The context that exists without a file: the broker on this machine with its default port."""


@attrs.frozen
class Contexts:
    """The content of the file: contexts by name, and the name of the current one."""

    known: Mapping[str, Context] = attrs.field(factory=dict)
    current: str | None = None

    def named(self, name: str) -> Context:
        """Return a context, or raise `Failure`."""
        if name in self.known:
            return self.known[name]
        if name == BUILT_IN:
            return Context()
        raise Failure(f"there is no context {name!r}; known: {', '.join(sorted({*self.known, BUILT_IN}))}", Exit.USAGE)


def path_of(environ: Mapping[str, str]) -> Path:
    """Return the path of the file: ELKOBROKER_CONTEXTS, or in XDG_CONFIG_HOME."""
    if given := environ.get("ELKOBROKER_CONTEXTS"):
        return Path(given)
    home = environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(home) / "elkobroker" / "contexts.toml"


def read(path: Path) -> Contexts:
    """Return the contexts of the file, none if it is missing. Raises `Failure` with the first fault."""
    try:
        with path.open("rb") as file:
            exposed = stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077
            data = file.read(MAX_FILE + 1)
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror}", Exit.USAGE) from None
    if len(data) > MAX_FILE:
        raise Failure(f"{path} is larger than {MAX_FILE} bytes", Exit.USAGE)
    try:
        content = tomllib.loads(data.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise Failure(f"{path} is no TOML: {error}", Exit.USAGE) from None
    contexts = _parsed(path, content)
    if exposed and any(context.token for context in contexts.known.values()):
        raise Failure(f"{path} holds a token and can be read by other users; run: chmod 600 {path}", Exit.USAGE)
    return contexts


def _parsed(path: Path, content: Mapping[str, object]) -> Contexts:
    fields = {field.name: bool if field.name == "unencrypted" else str for field in attrs.fields(Context)}
    known = {}
    if unknown := set(content) - {"current", "contexts"}:
        raise Failure(f"{path}: unknown key {sorted(unknown)[0]!r}", Exit.USAGE)
    tables = content.get("contexts", {})
    if not isinstance(tables, Mapping):
        raise Failure(f"{path}: contexts must be tables: [contexts.NAME]", Exit.USAGE)
    for name, table in tables.items():
        if not NAME.fullmatch(name) or not isinstance(table, Mapping):
            raise Failure(f"{path}: contexts.{name} must be a table with a name of letters, digits, '_.-'", Exit.USAGE)
        for key, value in table.items():
            if key not in fields:
                raise Failure(f"{path}: contexts.{name}: unknown key {key!r}; known: {', '.join(fields)}", Exit.USAGE)
            if type(value) is not fields[key]:
                kind = "true or false" if fields[key] is bool else "a string"
                raise Failure(f"{path}: contexts.{name}.{key} must be {kind}", Exit.USAGE)
        known[name] = Context(**table)
    current = content.get("current")
    if current is not None and (not isinstance(current, str) or current not in {*known, BUILT_IN}):
        raise Failure(f"{path}: current names no context of the file: {current!r}", Exit.USAGE)
    return Contexts(known, current)


def write(path: Path, contexts: Contexts) -> None:
    """Replace the file, readable by its owner only. Comments in it are lost. Raises `Failure`."""
    lines = [] if contexts.current is None else [f"current = {_quoted(contexts.current)}"]
    for name, context in sorted(contexts.known.items()):
        lines += ["", f"[contexts.{_quoted(name) if '.' in name else name}]"]
        for key, value in attrs.asdict(context).items():
            if value is True:
                lines.append(f"{key} = true")
            elif value:
                lines.append(f"{key} = {_quoted(value)}")
    # A link stays, as dotfiles are often linked.
    real = Path(os.path.realpath(path))
    try:
        real.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with small_file.written(real) as file:
            file.write(("\n".join(lines).lstrip("\n") + "\n").encode())
    except OSError as error:
        raise Failure(f"{path} cannot be written: {error.strerror}") from None


def _quoted(text: str) -> str:
    """Return a basic string of TOML: that of JSON, in which DEL is escaped too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
