"""The destination of the log, which twistd chooses: ``--logfile``, ``--syslog`` and ``--logger`` work as usual.

In the foreground, with the standard output connected to the journal of systemd, events go there by its own protocol.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import IO, Any

from twisted.application.service import IService, IServiceCollection, MultiService
from twisted.logger import FileLogObserver, FilteringLogObserver, ILogObserver, LogEvent
from twisted.python.components import Componentized
from twisted.python.logfile import LogFile
from zope.interface import implementer

from broker.logs.control import LogControl
from broker.logs.journald import JournaldObserver, streams_to_journal
from broker.logs.lines import json_line, text_lines


def observer(control: LogControl, out: IO[str], environ: Mapping[str, str] | None = None) -> ILogObserver:
    """Return an observer that writes the events that ``control`` lets pass to ``out``, in its format.

    Text goes to the journal of systemd instead if ``environ`` says that ``out`` is connected to it.
    """
    if isinstance(out, io.TextIOWrapper):
        # A character that the terminal's encoding lacks would cost the event.
        out.reconfigure(errors="backslashreplace")
    as_json, as_text = FileLogObserver(out, json_line), FileLogObserver(out, text_lines)
    text: Callable[[LogEvent], object] = as_text
    if environ is not None and streams_to_journal(environ, out):
        text = JournaldObserver(out)

    @implementer(ILogObserver)
    def write(event: LogEvent) -> None:
        if control.format == "json":
            as_json(event)
        else:
            text(event)

    return FilteringLogObserver(write, [control])


# twistd starts logging after `makeService`, with the observer that is a component of the application; without one, it
# makes its own from its options.


class LoggedService(MultiService):
    """The root of a twistd application: it holds ``service``, and has the application log in our format.

    ``twistd`` is twistd's own options (``Options.parent`` of a plugin's options; None if there are none).
    """

    def __init__(self, service: IService, twistd: Mapping[str, Any] | None, control: LogControl) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._logging = ({} if twistd is None else twistd, control)
        service.setServiceParent(self)

    def setServiceParent(self, parent: IServiceCollection) -> None:
        """Join an application; raises SystemExit, with a text, if its log file cannot be opened."""
        if isinstance(parent, Componentized):
            install(parent, *self._logging)
        super().setServiceParent(parent)  # type: ignore[no-untyped-call]


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
    out: IO[str] = sys.stdout if path == "-" or (foreground and not path) else _log_file(path or "twistd.log")
    environ = os.environ if out is sys.stdout else None
    application.setComponent(ILogObserver, observer(control, out, environ))


def _log_file(path: str) -> Any:
    try:
        file = LogFile.fromFullPath(path)
    except OSError as error:
        raise SystemExit(f"elkobroker: cannot write the log file {path}: {error.strerror}") from None

    def rotate(signal: int, frame: object) -> None:
        from twisted.internet import reactor

        reactor.callFromThread(file.rotate)  # type: ignore[attr-defined]

    # As twistd does for a log file of its own.
    if not signal.getsignal(signal.SIGUSR1):
        signal.signal(signal.SIGUSR1, rotate)
    return file
