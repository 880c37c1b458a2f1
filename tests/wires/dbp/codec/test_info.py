"""Infos of services: kept byte by byte, merged, listed; and the details that the broker itself reads."""

from __future__ import annotations

import json

import pytest

from broker.core.service_info import MAX_DEPTH, MAX_DIGITS, MAX_INFO
from broker.wires.dbp.codec.listings import (
    ERROR,
    MAX_BODY,
    MAX_HOST,
    BadInfo,
    Details,
    ListedAddress,
    ListedOffer,
    details,
    inactive,
    listing,
    mapping,
    merge_infos,
    place,
    take_name,
    unknown,
)
from tests.wires.dbp.codec.examples import MEMBERS, ROHAN


def info_of(text: str) -> str:
    return take_name(text.encode(), registering=False)[1].decode()


# Infos


@pytest.mark.parametrize(
    ("text", "info"),
    [
        ("{}", "{}"),
        ('{"name": "a"}', "{}"),
        ('{"x":1,"name":"a","y":2}', '{"x": 1, "y": 2}'),
        (' {\n"x" : 1.0e+00 , "y"\t:[1,2 , 3] }\n', '{"x": 1.0e+00, "y": [1,2 , 3]}'),
        ('{"x": 1, "y": 2, "x": 3}', '{"x": 3, "y": 2}'),
        ('{"é": "é", "\\u00e9\\"": "\\u00e9"}', '{"\\u00e9": "é", "\\u00e9\\"": "\\u00e9"}'),
        ('{"x": {"name": "b", "name": "c"}}', '{"x": {"name": "b", "name": "c"}}'),
        ('{"x": 123456789012345678901234567890, "y": 1e999}', '{"x": 123456789012345678901234567890, "y": 1e999}'),
        ('{"": null}', '{"": null}'),
    ],
)
def test_the_values_keep_their_bytes(text: str, info: str) -> None:
    assert info_of(text) == info


def test_an_info_is_taken_up_to_its_limits() -> None:
    deep = "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)
    for text in (
        f'{{"x": {deep}}}',
        '{"x": [' + "[],{}," * 1_000 + "1]}",
        '{"x": "' + "[" * 1_000 + '\\"' + "{" * 1_000 + '"}',
        f'{{"x": {"1" * MAX_DIGITS}}}',
        f'{{"x": "{"1" * 5_000}"}}',
        f'{{"x": "{"x" * (MAX_INFO - 9)}"}}',
    ):
        assert info_of(text) == text
        json.loads(text)


def test_an_info_that_grows_over_the_limit_as_it_is_written_is_refused() -> None:
    text = '{"%s": 1}' % ("é" * 4_000)
    assert len(text.encode()) < MAX_INFO
    with pytest.raises(BadInfo, match="more than 16384 bytes"):
        info_of(text)


def test_an_update_replaces_whole_members() -> None:
    info = f"{{{MEMBERS}null}}".encode()
    assert (
        merge_infos(info, b'{"topics": ["a"], "liveliness": 500}').decode() == f'{{{MEMBERS}["a"], "liveliness": 500}}'
    )
    assert merge_infos(b'{"x": {"a": 1}, "y": 2}', b'{"y": null, "x": {}}') == b'{"x": {}, "y": null}'
    assert merge_infos(info, b"{}") == info
    assert merge_infos(b"{}", info) == info


def test_updates_cannot_make_an_info_grow_without_end() -> None:
    info = b"{}"
    for number in range(16):
        info = merge_infos(info, b'{"k%02d": "%b"}' % (number, b"x" * 1_000))
    with pytest.raises(BadInfo, match="more than 16384 bytes"):
        merge_infos(info, b'{"k16": "%b"}' % (b"x" * 1_000))
    assert merge_infos(info, b'{"k15": "%b"}' % (b"y" * 1_000)) == info[:-1002] + b"y" * 1_000 + b'"}'


# Listings


def test_a_listing_is_what_hermes_writes() -> None:
    assert listing([]) == b"{}"
    assert listing([("Rohan", b'{"x": 1}'), ("Théoden\n", b"{}")]) == b'{"Rohan": {"x": 1}, "Th\\u00e9oden\\n": {}}'
    name, info, hermes = take_name(ROHAN.encode(), registering=True)
    assert (name, hermes) == ("Rohan", True)
    assert listing([("Rohan", info)]).decode() == f'{{"Rohan": {{{MEMBERS}null}}}}'


def test_what_is_not_there_makes_hermes_see_an_error() -> None:
    assert listing([], unknown("Rohan")) == b'{"Error": "No Registered Service With the Name Rohan"}'
    assert json.loads(listing([("a", b"{}")], inactive("Rohan", 1795246621.35))) == {
        "a": {},
        ERROR: "The Registered Service With the Name Rohan Is Inactive",
        "status": "inactive",
        "last_seen": 1795246621.35,
    }
    assert json.loads(listing([], unknown("a", 'b"\n')))[ERROR].split("; ") == [
        "No Registered Service With the Name a",
        'No Registered Service With the Name b"\n',
    ]


def test_a_question_is_answered_under_its_own_name() -> None:
    assert listing([], {"mmi.service": "200"}) == b'{"mmi.service": "200"}'


def test_a_listing_that_would_be_too_long_is_an_error_and_not_a_part() -> None:
    info = b'{"x": "%b"}' % (b"x" * 16_000)
    most = (MAX_BODY - 2) // (len(info) + len('"n0000": ') + 2)
    entries = [(f"n{number:04}", info) for number in range(most + 1)]
    assert MAX_BODY - 20_000 < len(listing(entries[:most])) <= MAX_BODY
    assert list(json.loads(listing(entries))) == [ERROR]


def test_a_surrogate_that_stands_alone_spoils_no_listing() -> None:
    assert listing([("a\ud800é", b"{}")]) == b'{"a?\\u00e9": {}}'


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("h:1", ListedAddress("h", 1)),
        ("10.0.0.1:65535", ListedAddress("10.0.0.1", 65_535)),
        ("[::1]:00080", ListedAddress("::1", 80)),
        ("[fe80::1%eth0]:80", ListedAddress("fe80::1%eth0", 80)),
        *((text, None) for text in ("", ":", ":1", "h", "h:", "h:0", "h:65536", "h:000001", "h:x", "h: 1", "h:٣")),
        *((text, None) for text in ("h:1:2", "::1", "[::1]", "[]:1", "[h]:1", "[::1:1", "h:1\n")),
    ],
)
def test_a_place_is_a_host_and_a_port_or_nothing(text: str, where: ListedAddress | None) -> None:
    assert place(text) == where


def test_a_mapping_has_the_place_twice_and_all_offers_if_there_are_several() -> None:
    first = ListedOffer(
        ip="::1", port=1, hostport="[::1]:1", protocol="ws", label="é", wire="elko", provider=3, load=0.5
    )
    second = ListedOffer(hostport="x", protocol="tcp", provider=4, load=float("inf"), restored=True)
    where, rest = '"ip":"::1","port":1,', '"protocol":"ws","label":"é","wire":"elko","provider":3,"load":0.5'
    told = f'{where}"hostport":"[::1]:1",{rest}'
    other = '{"hostport":"x","protocol":"tcp","provider":4,"load":null,"restored":true}'
    whole = told.replace('"hostport"', '"interfaces":{"ws":{"ip":"::1","port":1}},"hostport"')
    both = f'"providers":[{{{told}}},{other}]'
    assert mapping([first]).decode() == f"{{{whole}}}"
    assert mapping([second]).decode() == other
    assert mapping([first, second]).decode() == f"{{{whole},{both}}}"
    assert mapping([first, second], 7).decode() == f'{{{whole},{both},"omitted":7}}'


# Members of an info that the broker reads

AT_HOME = Details("127.0.0.1", 5247, hermes=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", Details()),
        (f"{{{MEMBERS}null}}", AT_HOME),
        (f'{{{MEMBERS}["a"], "liveliness": 500}}', Details("127.0.0.1", 5247, 0.5, hermes=True)),
        (
            '{"ip": "10.0.0.1", "port": 6000, "function": "demo", "heartbeat": 1000}',
            Details("10.0.0.1", 6000, 1.0),
        ),
        ('{"ip_addr": "10.0.0.1", "port": "6000"}', Details("10.0.0.1", 6000)),
        ('{"ip_address": "10.0.0.1", "port": 6e3}', Details("10.0.0.1", 6000)),
        ('{"ip": 7, "ip_addr": "", "ip_address": "h"}', Details("h")),
        ('{"ip": "10.0.0.1", "interfaces": {"router": {"ip": "127.0.0.1", "port": 5247}}}', Details("10.0.0.1", 5247)),
        ('{"port": 1, "interfaces": {"router": {"ip": "127.0.0.1", "port": 5247}}}', Details("127.0.0.1", 1)),
        (
            '{"interfaces": {"pub": {"ip": "a", "port": 1}, "router": {"ip": "b", "port": 2}}}',
            Details("b", 2),
        ),
        ('{"interfaces": {"x": {"ip": "a"}, "pub": {"ip": "b", "port": 3}, "router": null}}', Details("b", 3)),
        ('{"interfaces": [], "ip": "a"}', Details("a")),
        ('{"port": 0}', Details()),
        ('{"port": 65535}', Details(port=65535)),
        ('{"port": 65536}', Details()),
        ('{"port": 1.5}', Details()),
        ('{"port": true}', Details()),
        ('{"port": -1}', Details()),
        ('{"port": "x"}', Details()),
        ('{"port": {"x": 1}}', Details()),
        (f'{{"ip": "{"h" * MAX_HOST}"}}', Details("h" * MAX_HOST)),
        (f'{{"ip": "{"h" * (MAX_HOST + 1)}"}}', Details()),
        ('{"liveness": 4}', Details(liveness=4)),
        ('{"retry": 3}', Details(liveness=3)),
        ('{"retry": 3, "liveness": 5}', Details(liveness=5)),
        ('{"retry": 0}', Details()),
        ('{"retry": 1e300}', Details()),
        ('{"load": 0}', Details(load=0.0)),
        ('{"load": 0.75}', Details(load=0.75)),
        ('{"load": "12"}', Details(load=12.0)),
        ('{"load": -1}', Details()),
        ('{"load": false}', Details()),
        ('{"load": null}', Details()),
        ('{"load": "nan"}', Details()),
        ('{"load": "inf"}', Details()),
        ('{"load": 1e999}', Details()),
        (f'{{"load": {"1" * 1_000}}}', Details()),
        ('{"x": 1e999, "y": 123456789012345678901234567890, "load": 1}', Details(load=1.0)),
        ("", Details()),
        ("not json", Details()),
        ("[1]", Details()),
        ('{"load": 1', Details()),
        ('{"load": ' + "[" * 5_000 + "}", Details()),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_details_are_read_and_what_makes_no_sense_is_absent(text: str, expected: Details) -> None:
    assert details(text.encode()) == expected


@pytest.mark.parametrize(
    ("text", "interval"),
    [
        ('"heartbeat": 1000', 1.0),
        ('"heartbeat": 1000.0', 1.0),
        ('"heartbeat": 50', 0.05),
        ('"heartbeat": 49', 49.0),
        ('"heartbeat": 1', 1.0),
        ('"heartbeat": 0.5', 0.5),
        ('"heartbeat": 60.5', 60.5),
        ('"heartbeat": "2.5"', 2.5),
        ('"heartbeat_interval": 2', 2.0),
        ('"heartbeat_timing": 2000', 2.0),
        ('"interval": 3', 3.0),
        ('"heartbeat_ms": 20', 0.02),
        ('"heartbeat_interval_ms": 0.5', 0.0005),
        ('"interval_ms": 1500', 1.5),
        ('"liveliness": 1000', 1.0),
        ('"liveliness": 1', 0.001),
        ('"liveliness": 1000, "heartbeat": 2, "interval_ms": 10', 0.01),
        ('"liveliness": 1000, "heartbeat": 2', 2.0),
        ('"liveliness": 1000, "heartbeat": 0', 1.0),
        ('"liveliness": 1000, "heartbeat": "often"', 1.0),
        ('"heartbeat": 0', None),
        ('"heartbeat": -1', None),
        ('"heartbeat": null', None),
        ('"heartbeat": true', None),
        ('"heartbeat": {"interval": 1}', None),
        ('"heartbeat_ms": 5e-324', None),
    ],
)
def test_an_interval_is_in_seconds_whatever_it_was_given_in(text: str, interval: float | None) -> None:
    assert details(f"{{{text}}}".encode()) == Details(interval=interval)


def test_details_of_bytes_that_are_no_utf_8_are_none() -> None:
    assert details(b'{"ip": "\xff"}') == Details()
    assert details(b'{"\xff": 1}') == Details()
