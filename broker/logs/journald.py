"""The journal of systemd, by its native protocol: each event is one datagram of fields.

Rules (systemd.io/JOURNAL_NATIVE_PROTOCOL):
- A field is ``NAME=VALUE`` and a line end; a value with line ends is ``NAME``, a line end, its length in eight bytes,
  little endian, the value and a line end.
- Names have capitals, digits and underscores. The broker's own begin with ``ELKOBROKER_``.
- ``JOURNAL_STREAM`` has the device and inode of the stream to the journal: only a process whose output is that stream
  logs to the journal (systemd.exec(5)).
- A datagram that the journal does not take goes to the output as a line with a priority, ``<6>TEXT`` (sd-daemon(3)).
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import IO

from twisted.logger import LogEvent

from broker.logs.lines import cut, fields_of, level_of, message_of, namespace_of, traceback_of, visible
from broker.logs.writer import Line, Stream

SOCKET = "/run/systemd/journal/socket"
"""The socket of the journal."""

PRIORITIES = {"debug": 7, "info": 6, "warn": 4, "error": 3, "critical": 2}
"""Priorities of syslog by level."""

MAX_NAME = 64
"""Characters of the name of a field: the limit of journald."""

_NAME = re.compile("[^A-Z0-9_]")


def streams_to_journal(environ: Mapping[str, str], out: IO[str]) -> bool:
    """Return True if ``out`` is the stream to the journal that the environment names."""
    device, _, inode = environ.get("JOURNAL_STREAM", "").partition(":")
    if not (device.isdecimal() and inode.isdecimal()):
        return False
    try:
        status = os.fstat(out.fileno())
    except (OSError, ValueError):  # a stream without a descriptor
        return False
    return (status.st_dev, status.st_ino) == (int(device), int(inode))


def datagram(event: LogEvent) -> bytes:
    """Return an event as one message of the protocol."""
    fields = {
        "MESSAGE": visible(message_of(event)),
        "PRIORITY": str(PRIORITIES.get(level_of(event), 6)),
        "SYSLOG_IDENTIFIER": "elkobroker",
        "ELKOBROKER_NAMESPACE": namespace_of(event),
    }
    for name, value in fields_of(event).items():
        fields[f"ELKOBROKER_{_NAME.sub('_', name.upper())}"[:MAX_NAME]] = cut(str(value))
    traceback = traceback_of(event)
    if traceback:
        fields["ELKOBROKER_TRACEBACK"] = traceback
    return b"".join(_field(name, value) for name, value in fields.items())


def prefixed(data: bytes) -> str:
    """Return a message of the protocol as lines of text, each with its priority."""
    fields = dict(_fields(data))
    ids = [fields[name] for name in ("ELKOBROKER_CONVERSATION", "ELKOBROKER_REQUEST_ID") if name in fields]
    about = f" [{' '.join(ids)}]" if ids else ""
    lines = [f"{fields['ELKOBROKER_NAMESPACE']}{about} {fields['MESSAGE']}"]
    lines += [f"\t{line}" for line in fields.get("ELKOBROKER_TRACEBACK", "").splitlines()]
    return "".join(f"<{fields['PRIORITY']}>{visible(line)}\n" for line in lines)


class Journal:
    """Destination of messages of the protocol: the journal at ``path``, or ``out`` if that does not take them.

    Text goes to ``out``.
    """

    def __init__(self, out: IO[str], path: str = SOCKET) -> None:
        self._out = Stream(out)
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def write(self, lines: Sequence[Line]) -> int:
        """See `broker.logs.writer.Destination`."""
        return sum(
            self._out.write([each if isinstance(each, str) else prefixed(each)])
            for each in lines
            if isinstance(each, str) or not self._sent(each)
        )

    def reopen(self) -> None:
        """See `broker.logs.writer.Destination`."""

    def _sent(self, data: bytes) -> bool:
        try:
            self._socket.sendto(data, self._path)
        except OSError:
            return False
        return True


def _fields(data: bytes) -> Iterator[tuple[str, str]]:
    """Yield the names and the values of the fields of a message."""
    while data:
        line, _, data = data.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            size = int.from_bytes(data[:8], "little")
            value, data = data[8 : 8 + size], data[8 + size + 1 :]
        yield name.decode(), value.decode("utf-8", "backslashreplace")


def _field(name: str, value: str) -> bytes:
    data = value.encode("utf-8", "backslashreplace")
    if b"\n" in data:
        return name.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n"
    return name.encode() + b"=" + data + b"\n"
