"""The section of the bridges: its problems, and what --check says."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker import brokerkeys
from broker.app.configuration import parse, report
from broker.config.bridge_settings import Bridges
from broker.config.key_checks import BadConfig
from tests.config.bad_values import assert_one_problem

KEY = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
OTHER = "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6"
HERE = f'[bridges]\nsite = "west"\nsecret_key = "{OTHER}"\nlisten = "tcp://127.0.0.1:5777"\n'
TO = f'{HERE}[[bridges.to]]\nname = "east"\nkey = "{KEY}"\n'
CONNECT = "must be tcp://HOST:PORT, the endpoint bridges.listen of the other broker"


@pytest.mark.parametrize(
    ("text", "line", "key", "why"),
    [
        ('[bridges]\nsite = "a b"', 2, "bridges.site", "must have 1 to 64"),
        ('[bridges]\nsecret_key = "x"', 2, "bridges.secret_key", "is no CURVE key"),
        ('[bridges]\nlisten = "http://x"', 2, "bridges.listen", "is no ZeroMQ endpoint"),
        ('[bridges]\nlisten = "ipc:///run/x"', 2, "bridges.listen", "must be tcp://ADDRESS:PORT"),
        (TO + 'connect = "https://east.example.org"', 8, "bridges.to[0].connect", CONNECT),
        (TO + 'connect = "tcp://east.example.org"', 8, "bridges.to[0].connect", CONNECT),
        (TO + 'connect = "tcp://localhost:5777"', 8, "bridges.to[0].connect", "is bridges.listen of this broker"),
        (TO + 'prefix = "a/"', 8, "bridges.to[0].prefix", "must have up to 64"),
        (TO + "hops = 9", 8, "bridges.to[0].hops", "must be between 1 and 8"),
        (TO + 'send_topics = [""]', 8, "bridges.to[0].send_topics[0]", "is empty"),
        (TO + f'[[bridges.to]]\nname = "east"\nkey = "{OTHER}"', 9, "bridges.to[1].name", "of another bridge too"),
        (TO + f'[[bridges.to]]\nname = "south"\nkey = "{KEY}"', 10, "bridges.to[1].key", "of another bridge too"),
        (TO.replace('"east"', '"west"'), 6, "bridges.to[0].name", "is the name of this site itself"),
        (TO.replace('listen = "tcp://127.0.0.1:5777"', ""), 5, "bridges.to[0].connect", "is needed, or bridges.listen"),
        (TO.replace('site = "west"', ""), 1, "bridges.site", "is needed"),
        (TO.replace(f'secret_key = "{OTHER}"', ""), 1, "bridges.secret_key_file", "is needed: run brokerkeys"),
    ],
)
def test_bad_values(text: str, line: int, key: str, why: str) -> None:
    assert_one_problem(text, line, key, why)


def test_a_bridge_to_the_brokers_own_key_is_refused(tmp_path: Path) -> None:
    brokerkeys.new("west", str(tmp_path), force=False)
    own = (tmp_path / "west.public").read_text().strip()
    text = TO.replace(f'secret_key = "{OTHER}"', 'secret_key_file = "west.private"').replace(KEY, own)
    with pytest.raises(BadConfig, match="is the public key of this broker itself"):
        parse(text, str(tmp_path / "x.toml"))


def shown(text: str) -> list[str]:
    lines = report(parse(text, "x"), resolves=lambda host: "." in host).split("\n")
    return [line for line in lines if "bridges" in line]


def test_check_describes_the_bridges_and_warns() -> None:
    assert shown("") == []
    warned = shown(TO + 'connect = "tcp://nowhere-at-all:1"\nsend_topics = ["*"]')[1:]
    assert warned[0] == "warning: bridges: nowhere-at-all, the host of east, cannot be resolved on this machine"
    assert warned[1].startswith("warning: bridges: tcp://nowhere-at-all:1, to east: the name of the host cannot be ")
    assert shown(TO) == [
        "bridges: site west on tcp 127.0.0.1:5777, to east",
        "warning: bridges: nothing is sent to east, nor received from it: give its patterns",
    ]


def test_without_bridges_nothing_is_needed() -> None:
    assert not Bridges().enabled
    assert parse('[bridges]\nsite = "west"\n', "x").bridges.site == "west"
