"""Any text is a configuration, or raises `BadConfig` and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.app.configuration import Config, parse, read, report
from broker.config.key_checks import BadConfig
from tests.config.test_shipped import uncommented
from tests.examples import sampled

VALID = """\
[broker]
service = "east"
grace = 5.5
diagnostics = false
[log]
level = "debug"
[console]
endpoint = "tcp:9001:interface=127.0.0.1"
[[elko.listeners]]
limits = { waits = 3, rate = 2 }
[[elko.listeners]]
name = "lan"
endpoint = "tcp:9002:interface=127.0.0.2"
allow = ["admin", "client"]
publish = "192.0.2.1:9002"
[elko.listeners.limits]
connections = 1
write_buffer = 65_536
[mc0]
endpoint = "tcp://[::1]:61616"
secret_key = "0000000000000000000000000000000000000000"
handshake = 1
[[mtl.queues]]
queues = ["web-*"]
[dbp]
endpoint = "tcp://127.0.0.1:5246"
udp_port = 5247
beacon = ["127.255.255.255"]
beacon_port = 5300
interval = 2
liveness = 4
[journal]
directory = "journal"
name = "east"
segment_seconds = 60
keep_bytes = 1_000_000_000
[[journal.full_load]]
services = ["context-*"]
load = 400
[[launchers.table]]
name = "chat"
script = "chat -v 'a b'"
"""
LINES = VALID.splitlines()


def answer(load: Callable[[], Config]) -> Config | BadConfig:
    """The configuration, or what is wrong with it."""
    try:
        return load()
    except BadConfig as bad:
        return bad


def judged(text: str) -> Config | None:
    """The configuration, if it is one. All that can be said of either kind of answer is said."""
    config = answer(lambda: parse(text, "broker.toml"))
    if isinstance(config, Config):
        assert report(config, resolves=lambda host: True)
        return config
    last = text.count("\n") + 1
    assert config.errors
    assert str(config).startswith("broker.toml:")
    for error in config.errors:
        assert error.text
        assert error.line is None or 1 <= error.line <= last
        assert error.line is not None or not error.key, "an error of a key has a line"
    return None


def test_the_valid_text_is_valid() -> None:
    assert judged(VALID) is not None


@given(st.text())
def test_arbitrary_text(text: str) -> None:
    judged(text)


@given(st.text(st.sampled_from("[]{}\"'=.,#\n\\ ab1-_:\r\t")))
def test_arbitrary_marks(text: str) -> None:
    judged(text)


@given(st.integers(0, len(VALID)), st.integers(0, 6), st.text(max_size=4))
def test_a_valid_text_with_characters_changed(at: int, gone: int, added: str) -> None:
    judged(VALID[:at] + added + VALID[at + gone :])


@given(st.lists(st.sampled_from(LINES), max_size=len(LINES)))
def test_the_lines_of_a_valid_text_in_any_order(taken: list[str]) -> None:
    judged("\n".join(taken))


KEYS = [*sorted({line.partition(" = ")[0] for line in LINES if " = " in line}), "zzz", '"odd ]. key"', "limits.waits"]
KEYS += ["client_keys", "secret_key_file"]
SCALARS = st.one_of(
    st.integers(-(10**400), 10**400).map(str),
    st.integers(2**2_000, 2**20_000).map(hex),
    st.integers(-5, 70_000).map(str),
    st.floats().map(str),
    st.sampled_from(["true", "1979-05-27", "07:32:00", '""', '"open"', '"tcp:1"', '"\\u0000"', "'a b'", "-inf"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
        st.dictionaries(st.sampled_from(KEYS), inner, max_size=3).map(
            lambda items: "{" + ", ".join(f"{key} = {value}" for key, value in items.items()) + "}"
        ),
    ),
    max_leaves=6,
)
SECTIONS = [
    "[broker]",
    "[console]",
    "[[elko.listeners]]",
    "[elko.listeners.limits]",
    "[mc0]",
    "[[mtl.queues]]",
    "[dbp]",
    "[journal]",
    "[[journal.full_load]]",
    "[[launchers.table]]",
    "[[x]]",
    "",
]


@given(st.lists(st.one_of(st.sampled_from(SECTIONS), st.tuples(st.sampled_from(KEYS), VALUES).map(" = ".join))))
def test_any_value_at_any_key(statements: list[str]) -> None:
    judged("\n".join(statements))


@given(
    st.sampled_from(
        [
            "broker",
            "log",
            "console",
            "elko",
            "mc0",
            "dbp",
            "journal",
            "launchers",
            "elko.listeners",
            "mtl.queues",
            "journal.full_load",
            "launchers.table",
        ]
    ),
    VALUES,
)
def test_any_value_for_a_section(section: str, value: str) -> None:
    judged(f"{section} = {value}\n")


EXAMPLE = uncommented(examples=True).splitlines()
WRONG = [
    '"htpp"', "-1", "[1]", "{x = 1}", '""', '"a\\u0000b"', "0", "9223372036854775808", "1.5", "nan", "true", "[]",
    '["", 1]', "[[]]", "{}", "[{}]", '[{x = ""}]', "1979-05-27",
]  # fmt: skip


@pytest.mark.parametrize("value", sampled([None, *WRONG]))
def test_any_key_of_the_example_with_a_wrong_value_or_missing(value: str | None) -> None:
    """Each error has a line and a sentence; None leaves the key out."""
    table = ""
    for number, line in enumerate(EXAMPLE):
        key, equals, _ = line.partition(" = ")
        if line.startswith("["):
            table = line
        elif equals and not line.startswith("#"):
            # The other keys of the table stay, those of the other tables go.
            others = [each for each in _table(table) if each != line]
            judged("\n".join([table, *([] if value is None else [f"{key} = {value}"]), *others]))
            assert number


def _table(header: str) -> list[str]:
    begin = EXAMPLE.index(header) + 1
    rest = EXAMPLE[begin:]
    end = next((at for at, line in enumerate(rest) if line.startswith("[")), len(rest))
    return rest[:end]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=60), st.binary(max_size=20))
def test_arbitrary_bytes(tmp_path: Path, data: bytes, code: bytes) -> None:
    (tmp_path / "code").write_bytes(code)
    for content in (data, b'[[elko.listeners]]\nauth = "password"\ncode_file = "code"\n'):
        (tmp_path / "broker.toml").write_bytes(content)
        config = answer(lambda: read(tmp_path / "broker.toml"))
        assert isinstance(config, Config) or str(config).startswith(str(tmp_path))
