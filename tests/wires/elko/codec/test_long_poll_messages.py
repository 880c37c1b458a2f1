"""Sessions over HTTP on the wire: paths, bodies, and replies to the space."""

from __future__ import annotations

import pytest

from broker.core.errors import Malformed, Reason
from broker.wires.elko.codec import long_poll_messages
from broker.wires.elko.codec.long_poll_messages import MAX_FIELDS, Connect, Disconnect, Select, Xmit

FORM = "application/x-www-form-urlencoded"


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("/admin/connect", Connect()),
        ("/admin/connect/", Connect()),
        ("/admin/connect/random123?x=1", Connect()),
        ("/ADMIN/Connect", Connect()),
        ("/admin/xmit/123/1", Xmit("123", 1)),
        ("/admin/select/1916843325209208746/22?again", Select("1916843325209208746", 22)),
        ("/admin/disconnect/123", Disconnect("123")),
        ("/admin/connected", None),
        ("/admin/", None),
        ("/admin", None),
        ("/administrator/connect", None),
        ("/other/connect", None),
        ("/connect", None),
        ("", None),
        ("/admin/xmit/123", None),
        ("/admin/xmit/123/", None),
        ("/admin/xmit/123/one", None),
        ("/admin/xmit/x/1", None),
        ("/admin/xmit/123/1/2", None),
        ("/admin/select/123/-1", None),
        ("/admin/select/123/1\n", None),
        ("/admin/disconnect/123/1", None),
        ("/admin/disconnect/", None),
        ("/admin/xmit/" + "1" * 65 + "/1", None),
        ("/admin/xmit/1/" + "1" * 19, None),
        ("/admin/xmit/\xb2/1", None),
    ],
)
def test_paths(uri: str, expected: long_poll_messages.Request | None) -> None:
    for root in ("/admin", "/Admin/"):
        assert long_poll_messages.request(uri, root) == expected


@pytest.mark.parametrize("root", ["/", ""])
def test_paths_without_a_root(root: str) -> None:
    assert long_poll_messages.request("/connect", root) == Connect()
    assert long_poll_messages.request("/select/1/2", root) == Select("1", 2)


@pytest.mark.parametrize(
    ("body", "content_type", "blocks"),
    [
        (b'{"to":"x"}', "", b'{"to":"x"}\n\n'),
        (b'{"to":"x"}\n\n{', "text/plain", b'{"to":"x"}\n\n{\n\n'),
        (b"", "", b"\n\n"),
        (b"a=%7B%7D", "text/plain", b"a=%7B%7D\n\n"),
        (b"msg=%7Bto%3A%22a+b%22%7D", FORM, b'{to:"a b"}\n\n'),
        (b"msg=%7Bto%3A%22a+b%22%7D", FORM.upper() + "; charset=UTF-8", b'{to:"a b"}\n\n'),
        (b"a=1&b=2", FORM, b"1\n\n2\n\n"),
        (b"a=%C3%A9%ff", FORM, b"\xc3\xa9\xff\n\n"),
        (b"nothing", FORM, b""),
        (b"", FORM, b""),
    ],
)
def test_bodies(body: bytes, content_type: str, blocks: bytes) -> None:
    assert long_poll_messages.messages(body, content_type) == blocks


@pytest.mark.parametrize("body", [b"a=\xff", b"&".join([b"a=1"] * (MAX_FIELDS + 1))])
def test_bodies_that_are_no_forms(body: bytes) -> None:
    with pytest.raises(Malformed) as malformed:
        long_poll_messages.messages(body, FORM)
    assert malformed.value.reason is Reason.SYNTAX


def test_replies_are_those_of_the_original_to_the_space() -> None:
    assert long_poll_messages.connected("1916843325209208746") == b'{ "sessionid": "1916843325209208746" }\n'
    assert long_poll_messages.received(2) == b'{ "seqnum": "2" }\n'
    assert long_poll_messages.selected([], 4) == b'{ "msgs": [], "seqnum": "4" }\n'
    assert long_poll_messages.selected([b'{"a":1}\n\n'], 2) == b'{ "msgs": [{"a":1}], "seqnum": "2" }\n'
    several = [b'{"a":1}\n\n{"b":2}\n\n', b'{"c":3}\n\n']
    assert (
        long_poll_messages.selected(several, long_poll_messages.LAST)
        == b'{ "msgs": [{"a":1}, {"b":2}, {"c":3}], "seqnum": "-1" }\n'
    )
    assert long_poll_messages.error(long_poll_messages.SEQUENCE) == b'{ "error": "sequenceError" }\n'
    assert long_poll_messages.error(long_poll_messages.SESSION_ID) == b'{ "error": "sessionIDError" }\n'
    assert long_poll_messages.disconnected() == b"{ }\n"
