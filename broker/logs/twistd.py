"""The destination of the log, which twistd chooses: ``--logfile``, ``--syslog`` and ``--logger`` work as usual.

In the foreground, with the standard output connected to the journal of systemd, events go there by its own protocol.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import IO, Any

from twisted.application.service import IService, IServiceCollection, MultiService
from twisted.logger import FilteringLogObserver, ILogObserver, LogEvent
from twisted.python.components import Componentized
from zope.interface import implementer

from broker.logs.control import LogControl
from broker.logs.journald import Journal, datagram, streams_to_journal
from broker.logs.lines import json_line, text_lines
from broker.logs.writer import Destination, LogWriter, RotatingFile, Stream


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
    """The root of a twistd application: it holds ``service``, and has the application log in our format.

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
    """Make twistd log in our format, to the destination of its options.

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
    """Return the destination for an output: the journal of systemd if the environment says that it leads there."""
    return Journal(out) if streams_to_journal(environ, out) else Stream(out)


def _log_file(path: str, control: LogControl) -> RotatingFile:
    try:
        return RotatingFile(path, control.file_bytes, control.files)
    except OSError as error:
        raise SystemExit(f"elkobroker: cannot write the log file {path}: {error.strerror}") from None
