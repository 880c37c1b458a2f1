"""The destination of the log, which twistd chooses: ``--logfile``, ``--syslog`` and ``--logger`` work as usual.

In the foreground, with the standard output connected to the journal of systemd, events go there by its native protocol:
each event is one datagram of fields.

Rules of that protocol (systemd.io/JOURNAL_NATIVE_PROTOCOL):
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
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from twisted.application.service import IService, IServiceCollection, MultiService
from twisted.logger import FilteringLogObserver, ILogObserver, LogEvent
from twisted.python.components import Componentized
from zope.interface import implementer

from broker.logs.log_lines import (
    LogControl,
    cut,
    fields_of,
    json_line,
    level_of,
    message_of,
    namespace_of,
    text_lines,
    traceback_of,
    visible,
)
from broker.logs.log_writer import Destination, Line, LogWriter, RotatingFile, Stream

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
        """See `broker.logs.log_writer.Destination`."""
        return sum(
            self._out.write([each if isinstance(each, str) else prefixed(each)])
            for each in lines
            if isinstance(each, str) or not self._sent(each)
        )

    def reopen(self) -> None:
        """See `broker.logs.log_writer.Destination`."""

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


def observer(control: LogControl, destination: Destination) -> ILogObserver:
    """Return an observer that writes the events that ``control`` lets pass to a destination, in its format.

    ``control`` gets the writer.
    """
    writer = control.writer = LogWriter(destination)
    text = datagram if isinstance(destination, Journal) else text_lines

    @implementer(ILogObserver)
    def write(event: LogEvent) -> None:
        writer.put(json_line(event) if control.format == "json" else text(event))

    return FilteringLogObserver(write, [control])


# twistd starts logging after `makeService`, with the observer that is a component of the application; without one, it
# makes its own from its options.


class LoggedService(MultiService):
    """The root of a twistd application: it holds ``service``, and the log has the format of the broker.

    ``twistd`` is twistd's own options (``Options.parent`` of a plugin's options; None if there are none).
    """

    def __init__(self, service: IService, twistd: Mapping[str, Any] | None, control: LogControl) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._twistd = {} if twistd is None else twistd
        self._control = control
        service.setServiceParent(self)

    def setServiceParent(self, parent: IServiceCollection) -> None:
        """Join an application; raises SystemExit, with a text, if its log file cannot be opened."""
        if isinstance(parent, Componentized):
            install(parent, self._twistd, self._control)
        super().setServiceParent(parent)  # type: ignore[no-untyped-call]

    def startService(self) -> None:
        """Start the writer of the log, then the service. The last lines are those after the end of the reactor."""
        from twisted.internet import reactor

        if self._control.writer is not None:
            self._control.writer.start()
            reactor.addSystemEventTrigger("after", "shutdown", self._control.writer.finish)
        super().startService()  # type: ignore[no-untyped-call]


def install(application: Componentized, twistd: Mapping[str, Any], control: LogControl) -> None:
    """Make twistd log in the format of the broker, to the destination of its options.

    With ``--logger`` or ``--syslog`` nothing is installed, and twistd logs as it would. Call it before twistd starts
    logging, that is from `IService.setServiceParent`. Raises SystemExit, with a text, if the log file cannot be opened.
    """
    if twistd.get("logger") or twistd.get("syslog"):
        return
    path, foreground = twistd.get("logfile"), twistd.get("nodaemon", True)
    if path == "-" and not foreground:
        return  # twistd refuses it.
    destination: Destination
    if path == "-" or (foreground and not path):
        destination = output(sys.stdout, os.environ)
    else:
        destination = _log_file(path or "twistd.log", control)
    application.setComponent(ILogObserver, observer(control, destination))


def output(out: IO[str], environ: Mapping[str, str]) -> Destination:
    """Return the destination for an output: the journal of systemd if it leads there by the environment."""
    return Journal(out) if streams_to_journal(environ, out) else Stream(out)


def _log_file(path: str, control: LogControl) -> RotatingFile:
    try:
        return RotatingFile(path, control.file_bytes, control.files)
    except OSError as error:
        raise SystemExit(f"elkobroker: cannot write the log file {path}: {error.strerror}") from None
