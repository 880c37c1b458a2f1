"""Conversations of DBP as they were recorded with Hermes' broker, services and clients, and what these make of replies.

Each line is what a peer sent (``>``) and what the broker answered: ``<`` is an answer that we give too, byte by byte;
``~`` one that we do not give, and ``-`` is silence where we answer. The empty frame is left out; frames stand between
bars, each character is one byte, and the frame T is `TIME`.
"""

from __future__ import annotations

TIME = b"\x94\x02\xd6N"
"""A time frame as Hermes sent it, at 1795246621.35."""

SECONDS = 1795246592.0
"""The text of the message."""

MEMBERS = (
    '"interfaces": {"router": {"ip": "127.0.0.1", "port": 5247}}, "reg_time": "Sat Nov 21 07:37:01 2026", "topics": '
)
ROHAN = f'{{"name": "Rohan", {MEMBERS}null}}'
MORDOR = f'{{"name": "Mordor", {MEMBERS}null}}'
NO = "No Registered Service With the Name"

CONVERSATIONS = {
    "registrations": [
        f"> UwU|T|{ROHAN}",
        "< OwO|T|",
        f"> UwU|T|{ROHAN}",
        "< OwO|T|",
        '> UwU|T|{"name": "doc", "ip": "127.0.0.1", "port": 6000, "function": "demo", "heartbeat": 1000}',
        "< OwO|T|",
        '> UwU|T|{"name": "doc2"}|extra frame',
        "< OwO|T|",
        '> UwU|T|{"port": 1}',
        "-",
        "> UwU|T|not json",
        "-",
        '> UwU|T|["a"]',
        "-",
        '> UwU|T|{"name": ""}',
        "~ OwO|T|",
        '> UwU|T|{"name": 7}',
        "~ OwO|T|",
        '> UwU|T|{"name": "doc"}',
        "< OwO|T|",
        "> u_U|T|",
        f'~ o_O|T|{{"Rohan": {{{MEMBERS}null}}, "doc": {{}}, "doc2": {{}}, "": {{}}, "7": {{}}}}',
    ],
    "requests": [
        "> u_U|T|",
        "< o_O|T|{}",
        "> u_U|T|Rohan",
        f'< o_O|T|{{"Error": "{NO} Rohan"}}',
        f"> UwU|T|{ROHAN}",
        "< OwO|T|",
        f"> UwU|T|{MORDOR}",
        "< OwO|T|",
        "> u_U|T|",
        f'< o_O|T|{{"Rohan": {{{MEMBERS}null}}, "Mordor": {{{MEMBERS}null}}}}',
        "> u_U|T|Rohan",
        f'< o_O|T|{{"Rohan": {{{MEMBERS}null}}}}',
        "> u_U|T|nobody",
        f'< o_O|T|{{"Error": "{NO} nobody"}}',
        "> u_U|T|Rohan|Mordor",
        f'~ o_O|T|{{"Rohan": {{{MEMBERS}null}}}}',
        "> u_U|T|Rohan,Mordor",
        f'< o_O|T|{{"Error": "{NO} Rohan,Mordor"}}',
        "> u_U|T|\xff\xfe",
        "-",
        "> u_U|T|Th\xc3\xa9oden",
        f'< o_O|T|{{"Error": "{NO} Th\\u00e9oden"}}',
    ],
    "updates": [
        f"> UwU|T|{ROHAN}",
        "< OwO|T|",
        '> UoU|T|{"name": "Rohan", "topics": ["a", "b"], "liveliness": 500}',
        "< u.u|T|",
        "> u_U|T|Rohan",
        f'< o_O|T|{{"Rohan": {{{MEMBERS}["a", "b"], "liveliness": 500}}}}',
        '> UoU|T|{"name": "nobody", "x": 1}',
        "-",
        '> UoU|T|{"x": 1}',
        "-",
        '> UoU|T|{"name": "Rohan", "topics": null}',
        "< u.u|T|",
        "> u_U|T|Rohan",
        f'< o_O|T|{{"Rohan": {{{MEMBERS}null, "liveliness": 500}}}}',
    ],
    "a client takes the broker for a service": [
        "> ping|T|Hello!",
        "< pong|T|Rohan",
        "> ping|T|",
        "< pong|T|Rohan",
    ],
}
"""In the last one Hermes' answers are those of its service Rohan. Its broker does not know the command."""

AFTER_A_SHORT_REPLY = [
    f"UwU|T|{ROHAN}||T|Error: Invalid Message Envelope.",
    'UoU|T|{"name": "Rohan"}||T|Error: Invalid Message Envelope.',
    "u_U|T|Rohan||T|Error: Invalid Message Envelope.",
]
"""The messages of Hermes' nodes after a reply without a frame behind the time: their last request, and three frames."""

TO_A_SERVICE = {
    "OwO|T|": True,
    "OwO|T": False,
    "OwO|1795246810.591244|": False,
    "OwO|\x1d\xd7\xa5\xb6R\xc0\xdaA|": False,
    'OwO|T|{"heartbeat": 1000}||': True,
    "OmO|T|name already taken": False,
    "(O_O)|T|name already taken": False,
    "</3|T": False,
    "</3|T|": False,
    "u.u|T|": False,
}
"""Replies to a registration that were tried on Hermes' service, and whether it took itself for registered."""


def frames(text: str) -> list[bytes]:
    """The frames of a line, with the empty one."""
    return [b"", *(TIME if frame == "T" else frame.encode("latin-1") for frame in text.split("|"))]


def exchanges(name: str) -> list[tuple[list[bytes], str, list[bytes]]]:
    """The question, the mark of the answer, and the answer of each exchange of a conversation."""
    lines = CONVERSATIONS[name]
    return [
        (frames(asked.removeprefix("> ")), answer[0], frames(answer[2:]))
        for asked, answer in zip(lines[::2], lines[1::2], strict=True)
    ]


def read_as_hermes(sent: list[bytes]) -> tuple[bytes, bytes]:
    """The command and the body of a reply to a Hermes node. It has a REQ socket, which needs the empty frame; it needs
    a frame after the time, and dies of a time that has not four bytes."""
    delimiter, command, time, body, *_ = sent
    assert delimiter == b""
    assert len(time) == 4
    return command, body
