"""Places of checks: hostports that peers choose, and the addresses that may be connected to."""

import pytest

from broker.config.values import Checks
from broker.net.checks.places import networks, permitted, split
from broker.net.checks.refusals import NotChecked

DEFAULT = networks(Checks().networks)


@pytest.mark.parametrize(
    ("hostport", "expected"),
    [
        ("h:1", ("h", 1)),
        ("192.0.2.1:65535", ("192.0.2.1", 65_535)),
        ("[::1]:80", ("::1", 80)),
        ("tcp://h.example:80", ("h.example", 80)),
        ("h:9000/ROOT", ("h", 9_000)),
    ],
)
def test_hostports(hostport: str, expected: tuple[str, int]) -> None:
    assert split(hostport) == expected


@pytest.mark.parametrize(
    "hostport",
    [
        "",
        "h",
        "h:",
        ":1",
        "h:0",
        "h:65536",
        "h:1:2",
        "::1:80",
        "h h:1",
        "h\r\nX: y:1",
        "user@h:1",
        "h:1x",
        "h:٣",
        "[]:1",
        "[h]:1",
        "[::1%lo]:1",
        "[::g]:1",
        "a..b:1",
        ".a:1",
        "a.:1",
        "x" * 64 + ".org:1",
        "a." * 150 + "org:1",
        "é:1",
        "h/x:1",
        "h?:1",
    ],
)
def test_hostports_without_a_host_and_a_port(hostport: str) -> None:
    with pytest.raises(NotChecked):
        split(hostport)


@pytest.mark.parametrize(
    ("addresses", "local", "expected"),
    [
        (["10.1.2.3"], False, "10.1.2.3"),
        (["8.8.8.8", "192.168.1.1"], False, "192.168.1.1"),
        (["127.0.0.1"], True, "127.0.0.1"),
        (["::1"], True, "::1"),
        (["fd00::1"], False, "fd00::1"),
        (["::ffff:10.0.0.1"], False, "10.0.0.1"),
        (["127.0.0.1"], False, None),
        (["::1"], False, None),
        (["::ffff:127.0.0.1"], False, None),
        (["8.8.8.8"], True, None),
        (["169.254.169.254"], True, None),
        (["::ffff:169.254.169.254"], True, None),
        (["0.0.0.0"], True, None),
        (["::"], True, None),
        (["fe80::1%eth0"], True, None),
        (["224.0.0.1"], True, None),
        (["nonsense"], True, None),
        ([], True, None),
    ],
)
def test_addresses(addresses: list[str], local: bool, expected: str | None) -> None:
    if expected is not None:
        assert str(permitted(addresses, DEFAULT, local)) == expected
        return
    with pytest.raises(NotChecked) as refused:
        permitted(addresses, DEFAULT, local)
    assert str(refused.value)
