"""Conversations of mc0 as they were recorded with the original broker.

Each line is what one client sent (``>``) or was sent (``<``), without the delimiter: frames stand between bars, and
each character is one byte. The last conversation is spelled out, since its frames have bars in them.
"""

from __future__ import annotations

REPLY_TO = "mcollective reply node1.example.com 4242"
UUID = "7e1b3c9e-8f43-4b6e-9d5b-0c7d37c0f00"

RECORDED = {
    "CONNECT with an ID": [
        ">A CONNECT|VERSION|0.3|TTL|30000|ID|c-1",
        "<A OK|ID|c-1",
    ],
    "CONNECT without an ID": [
        ">A CONNECT|VERSION|0.3|TTL|30000",
        "<A NOOP",
    ],
    "CONNECT with neither TTL nor VERSION": [
        ">A CONNECT|ID|c-1",
        "<A OK|ID|c-1",
    ],
    "what the real connector sends": [
        f">A CONNECT|ID|{UUID}1|TTL|30000|VERSION|0.2",
        f"<A OK|ID|{UUID}1",
        f">A SUB|ID|{UUID}2||{REPLY_TO}",
        f"<A OK|ID|{UUID}2",
        ">A NOOP",
        f">A PUT|TOPIC|{REPLY_TO}|X-REPLY-TO|{REPLY_TO}||payload",
        f"<A MESSAGE|X-REPLY-TO|{REPLY_TO}|TOPIC|{REPLY_TO}||payload",
        f">A UNSUB|ID|{UUID}3||{REPLY_TO}",
        f"<A OK|ID|{UUID}3",
        ">A DISCONNECT",
    ],
    "NOOP without and with an ID": [
        ">A NOOP",
        ">A NOOP|ID|1234",
        "<A OK|ID|1234",
    ],
    "one publishes, another is subscribed": [
        ">B SUB|ID|s1||topic1",
        "<B OK|ID|s1",
        ">A PUT|TOPIC|topic1||hello",
        "<B MESSAGE|TOPIC|topic1||hello",
    ],
    "many topics, and none": [
        ">B SUB|ID|s1||t1|t2|t3",
        "<B OK|ID|s1",
        ">A PUT|TOPIC|t1||first t1",
        ">A PUT|TOPIC|t2||first t2",
        ">A PUT|TOPIC|t3||first t3",
        "<B MESSAGE|TOPIC|t1||first t1",
        "<B MESSAGE|TOPIC|t2||first t2",
        "<B MESSAGE|TOPIC|t3||first t3",
        ">B UNSUB|ID|u1||t2|never-subscribed",
        "<B OK|ID|u1",
        ">A PUT|TOPIC|t1||second t1",
        ">A PUT|TOPIC|t2||second t2",
        ">A PUT|TOPIC|t3||second t3",
        "<B MESSAGE|TOPIC|t1||second t1",
        "<B MESSAGE|TOPIC|t3||second t3",
        ">B SUB|ID|s2|",
        "<B OK|ID|s2",
        ">B UNSUB|ID|u2|",
        "<B OK|ID|u2",
        ">B SUB|ID|s3",
        "<B OK|ID|s3",
    ],
    "a subscriber publishes to itself": [
        ">A SUB|ID|s1||t",
        "<A OK|ID|s1",
        ">A PUT|TOPIC|t|ID|p1||body",
        "<A MESSAGE|TOPIC|t||body",
        "<A OK|ID|p1",
    ],
    "two subscribers, then one": [
        ">A SUB|ID|sa||t",
        ">B SUB|ID|sb||t",
        "<A OK|ID|sa",
        "<B OK|ID|sb",
        ">C PUT|ID|p1|TOPIC|t||one",
        "<B MESSAGE|TOPIC|t||one",
        "<A MESSAGE|TOPIC|t||one",
        "<C OK|ID|p1",
        ">A UNSUB|ID|ua||t",
        "<A OK|ID|ua",
        ">C PUT|ID|p2|TOPIC|t||two",
        "<B MESSAGE|TOPIC|t||two",
        "<C OK|ID|p2",
    ],
    "headers": [
        ">B SUB|ID|s||t",
        "<B OK|ID|s",
        ">A PUT|TOPIC|t|X-REPLY-TO|r||1",
        "<B MESSAGE|X-REPLY-TO|r|TOPIC|t||1",
        ">A PUT|X-REPLY-TO|r|TOPIC|t||2",
        "<B MESSAGE|TOPIC|t|X-REPLY-TO|r||2",
        ">A PUT|ID|p3|X-A|1|X-B|2|X-C|3|TOPIC|t|FOO|bar|VERSION|9|TTL|1|MESSAGE|m||3",
        "<B MESSAGE|VERSION|9|FOO|bar|MESSAGE|m|TOPIC|t|X-C|3|X-A|1|TTL|1|X-B|2||3",
        "<A OK|ID|p3",
        ">A PUT|TOPIC|t|id|lower|topic|lower||4",
        "<B MESSAGE|topic|lower|id|lower|TOPIC|t||4",
    ],
    "shapes of bodies": [
        ">B SUB|ID|s||t",
        "<B OK|ID|s",
        ">A PUT|TOPIC|t",
        "<B MESSAGE|TOPIC|t|",
        ">A PUT|TOPIC|t|",
        "<B MESSAGE|TOPIC|t|",
        ">A PUT|TOPIC|t||",
        "<B MESSAGE|TOPIC|t||",
        ">A PUT|TOPIC|t||a|b|c",
        "<B MESSAGE|TOPIC|t||a|b|c",
        ">A PUT|TOPIC|t||||TOPIC|other|",
        "<B MESSAGE|TOPIC|t||||TOPIC|other|",
    ],
}

BINARY = b"\x00\xff\x01 bin"
EVERY_BYTE = bytes(range(256))
LONG = b"\xa5" * 1_048_576

Said = tuple[str, str, list[bytes]]
"""The direction, the client, and the frames with their delimiter."""


def _said(line: str) -> Said:
    return line[0], line[1], [b"", *line[3:].encode("latin-1").split(b"|")]


CONVERSATIONS: dict[str, list[Said]] = {name: [_said(line) for line in lines] for name, lines in RECORDED.items()}
CONVERSATIONS["bytes of every value, and a body of a megabyte"] = [
    (">", "B", [b"", b"SUB", b"ID", b"s", b"", BINARY]),
    ("<", "B", [b"", b"OK", b"ID", b"s"]),
    (">", "A", [b"", b"PUT", b"TOPIC", BINARY, b"X-BIN", EVERY_BYTE, b"", EVERY_BYTE]),
    ("<", "B", [b"", b"MESSAGE", b"X-BIN", EVERY_BYTE, b"TOPIC", BINARY, b"", EVERY_BYTE]),
    (">", "A", [b"", b"PUT", b"TOPIC", BINARY, b"", LONG]),
    ("<", "B", [b"", b"MESSAGE", b"TOPIC", BINARY, b"", LONG]),
]


def read_as_the_connector(frames: list[bytes]) -> tuple[bytes, dict[bytes, bytes], list[bytes]]:
    """Verb, headers and body as the connector takes them: the first empty frame anywhere ends the headers."""
    assert frames[0] == b""
    verb, rest = frames[1], frames[2:]
    end = rest.index(b"") if b"" in rest else len(rest)
    pairs = rest[:end]
    assert len(pairs) % 2 == 0, "the connector loses a message whose number of header frames is odd"
    return verb, dict(zip(pairs[::2], pairs[1::2], strict=True)), rest[end + 1 :]
