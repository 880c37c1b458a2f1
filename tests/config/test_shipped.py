"""What is shipped agrees with the code: the example configuration, and the examples of the documentation."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import attrs
import pytest

from broker.config.check import report
from broker.config.errors import BadConfig
from broker.config.load import parse, read
from broker.config.reload import refused
from broker.config.values import Broker, Config, Console, LauncherEntry, Launchers, Limits, Listener, Log
from tests.config.certificates import certificate

ROOT = Path(__file__).parents[2]
SHIPPED = (ROOT / "etc" / "elkobroker.toml").read_text()
DOCUMENT = (ROOT / "docs" / "configuration.md").read_text()

EXAMPLE = "  # example"
SETTING = re.compile(r"#(?=[a-z\[])")
SECTIONS = {"broker": Broker, "log": Log, "console": Console, "launchers": Launchers}


def uncommented(examples: bool) -> str:
    """The shipped file with the defaults switched on, and where asked, the examples too."""
    text = SHIPPED if examples else SHIPPED.partition("#[[launchers.table]]")[0]
    taken = (line for line in text.split("\n") if examples or not line.endswith(EXAMPLE))
    return "\n".join(SETTING.sub("", line, count=1) if SETTING.match(line) else line for line in taken)


def listed(value: Any) -> Any:
    """A value as TOML has it."""
    return list(value) if isinstance(value, tuple) else value


def defaults(cls: Any) -> dict[str, Any]:
    """The keys of a section, with their defaults; sections inside are left out."""
    found = {field.name: listed(field.default) for field in attrs.fields(cls)}
    return {name: value for name, value in found.items() if name not in ("limits", "table")}


def test_as_shipped_it_is_the_defaults() -> None:
    assert read(ROOT / "etc" / "elkobroker.toml") == Config()


def test_each_default_is_the_real_one() -> None:
    data = tomllib.loads(uncommented(examples=False))
    assert parse(uncommented(examples=False), "x") == Config()
    (listener,) = data["elko"]["listeners"]
    pairs = [(data[name], cls) for name, cls in SECTIONS.items()]
    for section, cls in [*pairs, (listener, Listener), (listener.pop("limits"), Limits)]:
        expected = {name: value for name, value in defaults(cls).items() if value is not None}
        assert section == expected
        assert {name: type(value) for name, value in section.items()} == {
            name: type(value) for name, value in expected.items()
        }


def test_no_key_is_missing_and_none_is_too_many() -> None:
    data = tomllib.loads(uncommented(examples=True))
    (listener,) = data["elko"]["listeners"]
    (launcher,) = data["launchers"].pop("table")
    limits = listener.pop("limits")
    pairs = [(data[name], cls) for name, cls in SECTIONS.items()]
    for section, cls in [*pairs, (listener, Listener), (limits, Limits), (launcher, LauncherEntry)]:
        assert list(section) == list(defaults(cls)), "the keys are in the order of the values"
    assert (launcher["initial"], launcher["on"]) == (LauncherEntry("", "").initial, LauncherEntry("", "").on)


def test_what_is_marked_as_an_example_is_not_set_by_default() -> None:
    examples = [line for line in SHIPPED.split("\n") if line.endswith(EXAMPLE)]
    names = {line.removeprefix("#").partition(" = ")[0] for line in examples if " = " in line}
    unset = {name for cls in (*SECTIONS.values(), Listener) for name, value in defaults(cls).items() if value is None}
    assert names == unset | {"name", "script"}


def test_the_examples_are_good(tmp_path: Path) -> None:
    text = uncommented(examples=True)
    inline = "\n".join(line for line in text.split("\n") if "_file = " not in line)
    config = parse(inline, "x")
    assert (config.elko.listeners[0].code, config.console.password) == ("change me", "change me")

    (tmp_path / "console.password").write_text("change me\n")
    (tmp_path / "main.code").write_text("change me\n")
    (tmp_path / "x.toml").write_text("\n".join(line for line in text.split("\n") if '"change me"' not in line))
    from_files = read(tmp_path / "x.toml")
    assert from_files.elko.listeners[0].code == "change me"
    assert from_files.console.password == "change me"


def test_prose_and_settings_cannot_be_mixed_up() -> None:
    for line in SHIPPED.split("\n"):
        assert not line.startswith("#") or line == "#" or line.startswith("# ") or SETTING.match(line), line
        assert len(line) <= 120
    settings = [SETTING.sub("", line, count=1) for line in SHIPPED.split("\n") if SETTING.match(line)]
    for setting in settings:
        assert len(tomllib.loads(setting)) == 1


def altered(value: Any, name: str) -> Any:
    """A copy with another value at ``name``."""
    return attrs.evolve(value, **{name: object()})


def test_what_is_marked_reload_is_what_may_be_reloaded() -> None:
    blocks = re.findall(r"((?:^# .*\n)+)#(\w+) = ", SHIPPED, re.MULTILINE)
    marked = {name for prose, name in blocks if prose.rstrip().endswith("(reload)")}
    old = Config()
    plain = [("broker", Broker), ("log", Log), ("console", Console), ("launchers", Launchers)]
    free = {
        name
        for section, cls in plain
        for name in defaults(cls)
        if not refused(old, attrs.evolve(old, **{section: altered(getattr(old, section), name)}))
    }
    (listener,) = old.elko.listeners
    for name in [*defaults(Listener), *defaults(Limits)]:
        inner = name in defaults(Limits)
        changed = attrs.evolve(listener, limits=altered(listener.limits, name)) if inner else altered(listener, name)
        if not refused(old, attrs.evolve(old, elko=attrs.evolve(old.elko, listeners=(changed,)))):
            free.add(name)
    # a name that two sections have would hide a difference
    assert free - {"endpoint"} == marked - {"endpoint"}
    assert "endpoint" not in marked


# The documentation


def blocks(kind: str) -> list[tuple[str, str]]:
    """The TOML examples of a kind, each with the output that is shown for it, or nothing."""
    found = re.findall(rf"```{kind}\n(.*?)```\n(?:\n```\n\$ twistd[^\n]* --check\n(.*?)\n```)?", DOCUMENT, re.DOTALL)
    assert found
    return found


@pytest.mark.parametrize(("text", "output"), blocks("toml"))
def test_the_documented_examples_and_what_is_shown_for_them(tmp_path: Path, text: str, output: str) -> None:
    cert, key = certificate(tmp_path, "x")
    text = text.replace("/etc/elkobroker/cert.pem", str(cert)).replace("/etc/elkobroker/key.pem", str(key))
    config = parse(text, "elkobroker.toml")
    assert not output or report(config) == output


@pytest.mark.parametrize(("text", "output"), blocks("toml bad"))
def test_the_documented_errors(text: str, output: str) -> None:
    with pytest.raises(BadConfig) as caught:
        parse(text, "bad.toml")
    assert str(caught.value) == output
