"""Shipped files agree with the code: the example configuration, and the examples of the documentation."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import attrs
import pytest

from broker.app.configuration import Config, parse, read, refused, report
from broker.config.checks_settings import Checks
from broker.config.cluster_settings import Cluster
from broker.config.daemon_settings import (
    Access,
    Broker,
    Console,
    LauncherEntry,
    Launchers,
    Log,
    LogLevel,
    Notify,
    NotifyRule,
    Plan,
)
from broker.config.journal_settings import Journal
from broker.config.key_checks import BadConfig
from broker.wires.dbp.dbp_settings import Dbp
from broker.wires.dns.dns_settings import Dns
from broker.wires.elko.elko_settings import BrokerLimits, BrokerListener, Director, DirectorLimits, DirectorListener
from broker.wires.http.http_settings import Http
from broker.wires.mc0.mc0_settings import Mc0
from broker.wires.mtl.mtl_settings import Mtl
from tests.config.certificates import certificate
from tests.config.command_line import configured

ROOT = Path(__file__).parents[2]
SHIPPED = (ROOT / "etc" / "elkobroker.toml").read_text()
DOCUMENT = (ROOT / "docs" / "configuration.md").read_text()

EXAMPLE = "  # example"
SETTING = re.compile(r"#(?=[a-z\[])")
SECTIONS = {
    "broker": Broker,
    "log": Log,
    "console": Console,
    "mc0": Mc0,
    "dbp": Dbp,
    "dns": Dns,
    "http": Http,
    "mtl": Mtl,
    "cluster": Cluster,
    "journal": Journal,
    "launchers": Launchers,
    "access": Access,
    "notify": Notify,
    "checks": Checks,
    "plan": Plan,
}


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
    return {
        name: value
        for name, value in found.items()
        if name not in ("limits", "rules", "queues", "full_load", "table", "levels")
    }


def test_the_shipped_file_is_the_examples_of_all_sections(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        configured("--example")
    assert capsys.readouterr().out == SHIPPED


def test_as_shipped_it_is_the_defaults() -> None:
    assert read(ROOT / "etc" / "elkobroker.toml") == Config()


def test_each_default_is_the_real_one() -> None:
    data = tomllib.loads(uncommented(examples=False))
    assert parse(uncommented(examples=False), "x") == Config()
    (listener,) = data["elko"]["listeners"]
    pairs = [(data[name], cls) for name, cls in SECTIONS.items()]
    for section, cls in [*pairs, (listener, BrokerListener), (listener.pop("limits"), BrokerLimits)]:
        expected = {name: value for name, value in defaults(cls).items() if value is not None}
        assert section == expected
        assert {name: type(value) for name, value in section.items()} == {
            name: type(value) for name, value in expected.items()
        }


def test_the_examples_are_good(tmp_path: Path) -> None:
    # a path is for the other transports than the default one
    text = uncommented(examples=True).replace('transport = "tcp"', 'transport = "websocket"')
    (tmp_path / "users.toml").touch(0o600)
    made, key = certificate(tmp_path, "broker")
    (tmp_path / "broker.pem").write_bytes(made.read_bytes())
    (tmp_path / "etcd-ca.pem").write_bytes(made.read_bytes())
    (tmp_path / "broker.key").write_bytes(key.read_bytes())
    (tmp_path / "broker.passphrase").write_text("unused\n")
    # a rule has one of both
    text = "\n".join(line for line in text.split("\n") if not line.startswith("command = "))
    inline = "\n".join(line for line in text.split("\n") if "_file = " not in line)
    config = parse(inline, str(tmp_path / "x.toml"))
    assert config.mtl.queue_store_password == "change me"
    secret = config.mc0.secret_key
    assert secret is not None

    (tmp_path / "pager.secret").write_text("change me\n")
    (tmp_path / "etcd.password").write_text("change me\n")
    (tmp_path / "postgresql.password").write_text("change me\n")
    (tmp_path / "broker.private").write_text(secret + "\n")
    filed = (line for line in text.split("\n") if '"change me"' not in line and not line.startswith("secret_key = "))
    (tmp_path / "x.toml").write_text("\n".join(filed))
    from_files = read(tmp_path / "x.toml")
    assert from_files.cluster.password == "change me"
    assert from_files.mtl.queue_store_password == "change me"
    assert from_files.mc0.secret_key == secret


def test_prose_and_settings_cannot_be_mixed_up() -> None:
    for line in SHIPPED.split("\n"):
        assert not line.startswith("#") or line == "#" or line.startswith("# ") or SETTING.match(line), line
        assert len(line) <= 120
    settings = [SETTING.sub("", line, count=1) for line in SHIPPED.split("\n") if SETTING.match(line)]
    for setting in settings:
        assert len(tomllib.loads(setting)) == 1


def altered(value: Any, name: str) -> Any:
    """A copy with another value at ``name``."""
    entries = {"table": (LauncherEntry("x", "y"),), "levels": (LogLevel("mtl", "debug"),)}
    if isinstance(value, Notify) and name == "rules":
        return attrs.evolve(value, rules=(NotifyRule("x", command=("y",)),))
    return attrs.evolve(value, **{name: entries.get(name, object())})


def marked_reload() -> set[str]:
    """The marked entries of the shipped file: keys with the section that they are in, and sections as a whole."""
    found = set()
    section = prose = ""
    for line in SHIPPED.split("\n"):
        if line.startswith("# "):
            prose = line
            continue
        key = f"{section}.{line[1:].partition(' = ')[0]}"
        if header := re.match(r"#?\[+([a-z0-9_.]+)\]", line):
            key = section = header[1]
        if prose.endswith("reload)"):
            found.add(key)
        prose = ""
    return found


def test_what_is_marked_reload_is_what_may_be_reloaded() -> None:
    old = Config()
    free = {
        f"{section}.{field.name}"
        for section, cls in SECTIONS.items()
        for field in attrs.fields(cls)
        if not refused(old, attrs.evolve(old, **{section: altered(getattr(old, section), field.name)}))
    }
    (listener,) = old.elko.listeners
    listeners = [("elko.listeners", name, altered(listener, name)) for name in defaults(BrokerListener)]
    limits = [
        ("elko.listeners.limits", name, attrs.evolve(listener, limits=altered(listener.limits, name)))
        for name in defaults(BrokerLimits)
    ]
    for section, name, changed in [*listeners, *limits]:
        if not refused(old, old.using(elko=attrs.evolve(old.elko, listeners=(changed,)))):
            free.add(f"{section}.{name}")
    free |= {f"director{key}" for key in director_keys_that_are_free()}
    assert free == marked_reload()


def director_keys_that_are_free() -> list[str]:
    """Those of the director that may be reloaded, by their place in it."""
    (listener,) = Director().listeners
    changed = {f".{field.name}": altered(Director(), field.name) for field in attrs.fields(Director)}
    del changed[".listeners"]
    for name in defaults(DirectorListener):
        changed[f".listeners.{name}"] = Director(listeners=(altered(listener, name),))
    for name in defaults(DirectorLimits):
        limits = altered(listener.limits, name)
        changed[f".listeners.limits.{name}"] = Director(listeners=(attrs.evolve(listener, limits=limits),))
    return [key for key, new in changed.items() if not refused(Config(director=Director()), Config(director=new))]


# The documentation


def blocks(kind: str) -> list[tuple[str, str]]:
    """The TOML examples of a kind, each with the output that is shown for it, or nothing."""
    found = re.findall(rf"```{kind}\n(.*?)```\n(?:\n```\n\$ twistd[^\n]* --check\n(.*?)\n```)?", DOCUMENT, re.DOTALL)
    assert found
    return found


@pytest.mark.parametrize(("text", "output"), blocks("toml"))
def test_the_documented_examples_and_what_is_shown_for_them(tmp_path: Path, text: str, output: str) -> None:
    cert, key = certificate(tmp_path, "x", days=90)
    (tmp_path / "users.toml").touch(0o600)
    (tmp_path / "broker.private").write_text("0" * 40)
    named = {"cert.pem": cert, "key.pem": key, **{name: tmp_path / name for name in ("users.toml", "broker.private")}}
    for name, path in named.items():
        text = text.replace(f"/etc/elkobroker/{name}", str(path))
    config = parse(text, "elkobroker.toml")
    assert not output or report(config).replace(str(tmp_path), "/etc/elkobroker") == output


@pytest.mark.parametrize(("text", "output"), blocks("toml bad"))
def test_the_documented_errors(text: str, output: str) -> None:
    with pytest.raises(BadConfig) as caught:
        parse(text, "bad.toml")
    assert str(caught.value) == output
