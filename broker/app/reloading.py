"""The reload of the configuration: changed and refused keys, and those that need a restart.

Rules:
- Files are read and checked in a thread; the reactor's thread applies the result.
- A file with errors changes nothing, nor does a TLS listener whose files are unusable.
- Keys that a reload cannot apply keep their running values until the next start, and are reported; all others apply
  (docs/adr/0034-a-reload-applies-what-it-can.md).
- The configuration that results from both must be valid as well: a listener that keeps its open address must not take
  the new, open authentication of another one. Otherwise nothing changes.
- `Reloaded.text` is the one form of the outcome: the log, the console and the HTTP API print it, and ``--check``
  prints the same lines for errors and warnings.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.app.configuration import differences, found, merged, settings, warnings
from broker.blocking import blocking
from broker.config.key_checks import BadConfig, Problem
from broker.config.load import Config
from broker.config.reload import Difference
from broker.core.operator_interfaces import KeyChange, KeyState, Reloaded
from broker.net.tls import Certificates, Identity

log = Logger()


@attrs.frozen(eq=False)
class _Usable:
    """Result of a reading: a configuration, the certificates of TLS listeners, and the outcome once both are in use."""

    config: Config
    identities: Sequence[tuple[Certificates, Identity]]
    result: Reloaded


class Reloader:
    """The reload. ``read`` reads the configuration again and raises `BadConfig`; None without a file.

    ``running`` returns the configuration in use, ``apply`` uses another one. ``certificates`` returns those of the
    listeners, which are read again with the configuration. ``in_thread`` calls a function in a thread.

    A reload that is called for while another one reads the files begins after it.
    """

    def __init__(
        self,
        running: Callable[[], Config],
        read: Callable[[], Config] | None,
        certificates: Callable[[], Sequence[Certificates]],
        apply: Callable[[Config], object],
        in_thread: Callable[..., Deferred[Any]],
    ) -> None:
        self._running = running
        self._read = read
        self._certificates = certificates
        self._apply = apply
        self._in_thread = in_thread
        self._waiting: list[Deferred[Reloaded]] = []
        """Callers that the next reload serves."""
        self._reading = False

    def reload(self) -> Deferred[Reloaded]:
        """Reload, and log the outcome."""
        done: Deferred[Reloaded] = Deferred()
        self._waiting.append(done)
        if not self._reading:
            self._begin()
        return done

    def _begin(self) -> None:
        self._reading = True
        served, self._waiting = self._waiting, []

        def ended(result: Reloaded) -> None:
            self._reading = False
            _log(result)
            for each in served:
                each.callback(result)
            if self._waiting and not self._reading:
                self._begin()

        reading = self._in_thread(self._read_all, self._running(), self._certificates())
        reading.addCallback(self._use).addErrback(_defect).addCallback(ended)

    def settings(self) -> Sequence[KeyState]:
        """Return the keys of the running configuration."""
        return [KeyState(each.key, each.value, each.reloadable) for each in settings(self._running())]

    def _use(self, found: Reloaded | _Usable) -> Reloaded:
        if isinstance(found, Reloaded):
            return found
        self._apply(found.config)
        for certificates, identity in found.identities:
            certificates.use(identity)
        return found.result

    @blocking
    def _read_all(self, running: Config, shown: Sequence[Certificates]) -> Reloaded | _Usable:
        """Read all files. Returns the result, or the outcome if nothing is to be used. Runs in a thread."""
        if self._read is None:
            return Reloaded(problems=("there is no configuration file to read again",))
        try:
            new = self._read()
        except BadConfig as error:
            return Reloaded(problems=tuple(str(error).splitlines()))
        differing = differences(running, new)
        restart = _changes(each for each in differing if not each.reloadable)
        wanted = _changes(each for each in differing if each.reloadable)
        warned = tuple(warnings(new))
        usable = merged(running, new) if restart else new
        later = {each.key for each in restart}
        problems = [
            f"{each.key}: {each.text} ({_until_restart(each, later)})" for each in (found(usable) if restart else ())
        ]
        identities: list[tuple[Certificates, Identity]] = []
        for each in shown:
            try:
                identities.append((each, each.read()))
            except ValueError as error:
                problems.append(str(error))
        if problems:
            return Reloaded((), wanted, restart, tuple(problems), warned)
        return _Usable(usable, identities, Reloaded(wanted, (), restart, (), warned))


def _log(result: Reloaded) -> None:
    if result.problems:
        log.error("the configuration was not reloaded: {problems}", problems="; ".join(result.problems))
    else:
        log.info("the configuration was reloaded")
    for line in result.lines:
        if line not in result.problems:
            log.info("reload: {line}", line=line)


def _defect(failure: Failure) -> Reloaded:
    log.failure("a defect in the reload", failure)
    return Reloaded(problems=("the broker failed, see its log",))


def _until_restart(problem: Problem, later: Collection[str]) -> str:
    """Return the part that the keys ``later``, which need a restart, have in a problem of the merged configuration."""
    if problem.other in later:
        return f"{problem.other} takes its new value at a restart only"
    return "with the keys that need a restart"


def _changes(differing: Iterable[Difference]) -> tuple[KeyChange, ...]:
    return tuple(KeyChange(each.key, each.old, each.new, each.why) for each in differing)
