"""The rule on outgoing connections: hostports that peers choose, and the addresses that may be connected to."""

import socket
from collections import Counter
from contextlib import suppress
from ipaddress import ip_address

import pytest

from broker.config.checks_settings import Checks
from broker.core.errors import Refusal
from broker.net.outgoing_addresses import Outgoing, is_here, split

ANYWHERE = ["0.0.0.0/0", "::/0"]


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
    with pytest.raises(Refusal):
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
    counts: Counter[str] = Counter()
    rule = Outgoing(Checks().networks, list, lambda kind: counts.update([kind]))
    if expected is not None:
        assert str(rule.permitted(addresses, 80, local)) == expected
        assert not counts
        return
    with pytest.raises(Refusal) as refused:
        rule.permitted(addresses, 80, local)
    assert str(refused.value)
    assert counts.total() == 1


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("169.254.169.254", "a link-local address"),
        ("::ffff:169.254.169.254", "a link-local address"),
        ("2002:a9fe:a9fe::1", "a link-local address"),
        ("fe80::1", "a link-local address"),
        ("224.0.0.1", "a multicast address"),
        ("ff02::1", "a multicast address"),
        ("0.0.0.0", "an unspecified address"),
        ("::", "an unspecified address"),
        ("255.255.255.255", "a reserved or broadcast address"),
        ("64:ff9b::a9fe:a9fe", "a reserved or broadcast address"),
        ("::127.0.0.1", "a reserved or broadcast address"),
    ],
)
@pytest.mark.parametrize("local", [True, False])
def test_special_addresses_are_refused_in_every_network(address: str, reason: str, local: bool) -> None:
    counts: Counter[str] = Counter()
    rule = Outgoing(ANYWHERE, list, lambda kind: counts.update([kind]))
    with pytest.raises(Refusal, match=reason):
        rule.permitted([address], 80, local)
    assert counts == {"special": 1}
    assert str(rule.permitted([address, "192.0.2.1"], 80, local)) == "192.0.2.1", "another address of the name"


@pytest.mark.parametrize(
    ("own", "address", "refused"),
    [
        ("127.0.0.1:5246", "127.0.0.1", True),
        ("127.0.0.1:5246", "::ffff:127.0.0.1", True),
        ("127.0.0.1:5246", "127.0.0.2", False),
        ("127.0.0.1:5247", "127.0.0.1", False),
        ("0.0.0.0:5246", "127.0.0.2", True),
        ("0.0.0.0:5246", "192.0.2.1", False),
        ("[::]:5246", "::1", True),
        ("[::]:5246", "127.0.0.1", True),
        ("[::1]:5246", "::1", True),
        ("[::1]:5246", "127.0.0.1", False),
        ("192.0.2.1:5246", "192.0.2.1", True),
        ("/run/5246", "127.0.0.1", False),
        ("@name:5246", "127.0.0.1", False),
    ],
)
def test_listeners_of_the_broker_are_refused(own: str, address: str, refused: bool) -> None:
    counts: Counter[str] = Counter()
    rule = Outgoing(ANYWHERE, lambda: [own], lambda kind: counts.update([kind]))
    if not refused:
        rule.permitted([address], 5246, True)
        return
    with pytest.raises(Refusal, match="is a listener of this broker"):
        rule.permitted([address], 5246, True)
    assert counts == {"own-listener": 1}


def test_the_addresses_of_this_machine_are_known() -> None:
    assert is_here(ip_address("127.9.9.9"))
    assert not is_here(ip_address("192.0.2.1"))
    with suppress(socket.gaierror):  # in a container, the machine may have no name
        for *_, where in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET):
            assert is_here(ip_address(where[0]))
    for family, remote in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with socket.socket(family, socket.SOCK_DGRAM) as probe, suppress(OSError):  # without a route, there is none
            probe.connect((remote, 9))
            assert is_here(ip_address(probe.getsockname()[0]))


def test_other_networks_hold_at_once() -> None:
    rule = Outgoing(["10.0.0.0/8"], list, lambda kind: None)
    with pytest.raises(Refusal, match="none of the networks"):
        rule.permitted(["192.0.2.1"], 80, False)
    rule.use(["192.0.2.0/24"])
    assert str(rule.permitted(["192.0.2.1"], 80, False)) == "192.0.2.1"
