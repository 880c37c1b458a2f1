"""Input to the original server, and its interpretation.

Each row has the bytes of one write, and the messages that are read after it, or ERROR if the original refuses the text.
If the original waits for the empty line and this codec does not, the message is in the earlier row.
"""

from __future__ import annotations

from broker.wires.elko.codec.blocks import Auth, AuthDesc, Message, Ping, Pong

ERROR = None

Row = tuple[bytes, list[Message | None]]


AUTH_AND_PING: list[Row] = [
    (b'{"to":"broker","op":"auth","label":"one"}\n\n', [Auth("broker", label="one")]),
    (b'{"to":"broker","op":"ping"}\n\n', [Ping("broker")]),
    (b'{"to":"broker","op":"ping","tag":"x1"}\n\n', [Ping("broker", "x1")]),
    (b'{"to":"broker","op":"ping","tag":""}\n\n', [Ping("broker", "")]),
    (b'{"to":"admin","op":"ping","tag":"x2"}\n\n', [Ping("admin", "x2")]),
    (b'{"to":"error","op":"ping","tag":"x3"}\n\n', [Ping("error", "x3")]),
    (b'{"to":"broker","op":"pong","tag":"x4"}\n\n', [Pong("broker", "x4")]),
    (b'{"to":"broker","op":"ping","tag":null}\n\n', [Ping("broker")]),
    (
        b'{"to":"admin","op":"auth","auth":{"type":"auth","mode":"open"},"label":"adm"}\n\n',
        [Auth("admin", AuthDesc("open"), label="adm")],
    ),
    (b'{"to":"admin","op":"ping","tag":"y"}\n\n', [Ping("admin", "y")]),
]

FRAMING: list[Row] = [
    (b'{to:"broker", op:"ping", tag:"crlf"}\r\n\r\n', [Ping("broker", "crlf")]),
    (b'\n\n\n{to:"broker", op:"ping", tag:"leading blank lines"}\n\n', [Ping("broker", "leading blank lines")]),
    (
        b'{to:"broker", op:"ping", tag:"two"}{to:"broker", op:"ping", tag:"in one block"}\n\n',
        [Ping("broker", "two"), Ping("broker", "in one block")],
    ),
    (
        b'{to:"broker", op:"ping", tag:"two"}\n{to:"broker", op:"ping", tag:"on two lines"}\n\n',
        [Ping("broker", "two"), Ping("broker", "on two lines")],
    ),
    (b'{to:"broker",\n op:"ping",\r\n tag:"multi\nline string"}\n\n', [Ping("broker", "multi line string")]),
    (b'{to:"broker", op:"ping", tag:"no terminator yet"}\n', [Ping("broker", "no terminator yet")]),
    (b"\n", []),
    (b'{to:"bro', []),
    (b'ker", op:"pi', []),
    (b'ng", tag:"split"}', []),
    (b"\n", [Ping("broker", "split")]),
    (b"\n", []),
    (
        b'  \n{to:"broker", op:"ping", tag:"a line of spaces is not a terminator"}\n  \n',
        [Ping("broker", "a line of spaces is not a terminator")],
    ),
    (b"\n", []),
    (b"{to:'broker', 'op':'ping', \"tag\":'single quotes'}\n\n", [Ping("broker", "single quotes")]),
    (b'{to:"broker", op:"ping", tag:"trailing comma",}\n\n', [Ping("broker", "trailing comma")]),
    (b'/* comment */ {to:"broker", // line comment\n op:"ping", tag:"comments"} // tail\n\n', [ERROR]),
    (
        b'/* comment */ {to:"broker", /* x */ op:"ping", tag:"block comments"} /* tail */\n\n',
        [Ping("broker", "block comments")],
    ),
    (b'{to:"broker", op:"ping", $x_1:1, tag:"dollar keys"}\n\n', [Ping("broker", "dollar keys")]),
    (b'{to:"broker", op:"ping", tag:"dup 1", tag:"dup 2"}\n\n', [Ping("broker", "dup 2")]),
    (
        b'{to:"broker", op:"ping", tag:"esc \\u00e9 \\x41 \\n \\t \\b \\f \\r \\" \\\\ \\/ \\q \\\' end"}\n\n',
        [Ping("broker", "esc \u00e9 A \n \t \x08 \x0c \r \" \\ / q ' end")],
    ),
    (b'{to:"broker", op:"ping", tag:"octal \\101 \\0 \\7"}\n\n', [Ping("broker", "octal \u0e8b 3 3")]),
    (b'{to:"broker", op:"ping", tag:"utf8 \xc3\xa9 \xe4\xb8\xad end"}\n\n', [Ping("broker", "utf8 \u00e9 \u4e2d end")]),
    (b'{to:"broker", op:"ping", tag:"emoji \\ud83d\\ude00 end"}\n\n', [Ping("broker", "emoji \U0001f600 end")]),
    (b'{to:"broker", op:"ping", tag:"lone \\ud83d end"}\n\n', [Ping("broker", "lone ? end")]),
    (
        b'{to:"broker", op:"ping", tag:"ctl \\u0001\\u001f\\u007f\\u2028 end"}\n\n',
        [Ping("broker", "ctl \u0001\u001f\u007f\u2028 end")],
    ),
    (b'{to:"broker", op:"ping", tag:"nul\x00 and cr\r inside"}\n\n', [Ping("broker", "nul and cr inside")]),
    (b'{to:"broker", op:"ping", tag:"tab\tinside and del\x7f"}\n\n', [Ping("broker", "tab\tinside and del\u007f")]),
    (b'{"to":"broker","op":"ping","tag":"a/b"}\n\n', [Ping("broker", "a/b")]),
    (
        b'{"to":"broker","op":"ping","tag":"x","n":[1,2,{"a":[true,false,null]},],"m":{},"e":[],'
        b'"f":-1.5e+3,"h":0xFF,"o":017,"p":+5,"q":.5,"r":5.}\n\n',
        [Ping("broker", "x")],
    ),
    (b'\t{to:"broker", op:"ping", tag:"garbage after"} junk\n\n', [Ping("broker", "garbage after")]),
    (b'{to:"broker", op:"ping", tag:"one"} }{{to:"broker", op:"ping", tag:"lost"}', []),
    (b"\n\n", [Ping("broker", "one"), ERROR]),
    (
        b'{to:"broker", op:"ping"}\n\n' * 5,
        [Ping("broker")] * 5,
    ),
]

SYNTAX: list[Row] = [
    (b"hello\n\n", []),
    (b"[1,2]\n\n", [ERROR]),
    (b'"str"\n\n', [ERROR]),
    (b"{\n\n", [ERROR]),
    (b"}\n\n", [ERROR]),
    (b"{to\n\n", [ERROR]),
    (b"{to:\n\n", [ERROR]),
    (b"{to:}\n\n", [ERROR]),
    (b'{to:"broker" op:"ping"}\n\n', [ERROR]),
    (b'{to:"broker", op:ping}\n\n', [ERROR]),
    (b"{,}\n\n", [ERROR]),
    (b'{to:"broker", op:"ping", tag:"unterminated}\n\n', [ERROR]),
    (b'{to:"broker", op:"ping", n:[1 2]}\n\n', [ERROR]),
    (b'{to:"broker", op:"ping", n:[,]}\n\n', [ERROR]),
    (b"{true:1}\n\n", [ERROR]),
    (b"{5:1}\n\n", [ERROR]),
    (b'{to:"broker", op:"ping", n:1.2.3}\n\n', [ERROR]),
    (b'{to:"broker", op:"ping", n:0x}\n\n', [ERROR]),
    (b'{to:"broker", op:"ping", n:-}\n\n', [Ping("broker")]),
    (b'{to:"broker", op:"ping", n:1e}\n\n', [ERROR]),
    (b'{to:"broker", op:"ping", n:.}\n\n', [ERROR]),
    (b'{to:"broker", op:"ping", n:NaN}\n\n', [ERROR]),
    (b"{a-b:1}\n\n", [ERROR]),
    (b"{\xc3\xa9:1}\n\n", [ERROR]),
    (b'\xef\xbb\xbf{to:"broker", op:"ping", tag:"bom"}\n\n', [ERROR]),
    (b"/* unterminated\n\n", []),
    (b"/\n\n", []),
    (b'{to:"broker", op:"ping", tag:"\\u12"}\n\n', [ERROR]),
    (b'{to:"broker", op:"ping", tag:"\\uzzzz"}\n\n', [Ping("broker", "\ueeef")]),
    (b'{to:"broker", op:"ping", tag:"still alive"}\n\n', [Ping("broker", "still alive")]),
]
