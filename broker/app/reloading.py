"""The reload of the configuration: what changes, what is refused, and what needs a restart.

Rules:
- A file with errors changes nothing, nor does a TLS listener whose files are unusable.
- Keys that a reload cannot apply keep their running values until the next start, and are reported; all others apply
  (docs/adr/0034-a-reload-applies-what-it-can.md).
- The configuration that results from both must be valid as well: a listener that keeps its open address must not take
  the new, open authentication of another one. Otherwise nothing changes.
- `ReloadResult.text` is the one form of the outcome: the log, the console and the HTTP API print it, and ``--check``
  prints the same lines for errors and warnings.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from twisted.logger import Logger

from broker.app.configuration import differences, found, merged, settings, warnings
from broker.config.errors import BadConfig
from broker.config.problem import Problem
from broker.config.reload import Difference
from broker.config.schema import Config
from broker.core.control import KeyChange, KeyState, ReloadResult
from broker.net.tls import Certificates, Identity

log = Logger()


class Reloader:
    """The reload. ``read`` reads the configuration again and raises `BadConfig`; None without a file.

    ``running`` returns the configuration in use, ``apply`` uses another one. ``certificates`` returns those of the open
    listeners, which are read again with the configuration.
    """

    def __init__(
        self,
        running: Callable[[], Config],
        read: Callable[[], Config] | None,
        certificates: Callable[[], Sequence[Certificates]],
        apply: Callable[[Config], object],
    ) -> None:
        self._running = running
        self._read = read
        self._certificates = certificates
        self._apply = apply

    def reload(self) -> ReloadResult:
        """Reload, and log the outcome."""
        result = self._reload()
        if result.problems:
            log.error("the configuration was not reloaded: {problems}", problems="; ".join(result.problems))
        else:
            log.info("the configuration was reloaded")
        for line in result.lines:
            if line not in result.problems:
                log.info("reload: {line}", line=line)
        return result

    def settings(self) -> Sequence[KeyState]:
        """Return the keys of the running configuration."""
        return [KeyState(each.key, each.value, each.reloadable) for each in settings(self._running())]

    def _reload(self) -> ReloadResult:
        if self._read is None:
            return ReloadResult(problems=("there is no configuration file to read again",))
        try:
            new = self._read()
        except BadConfig as error:
            return ReloadResult(problems=tuple(str(error).splitlines()))
        running = self._running()
        differing = differences(running, new)
        restart = _changes(each for each in differing if not each.reloadable)
        wanted = _changes(each for each in differing if each.reloadable)
        warned = tuple(warnings(new))
        usable = merged(running, new) if restart else new
        later = {each.key for each in restart}
        problems = [
            f"{each.key}: {each.text} ({_until_restart(each, later)})" for each in (found(usable) if restart else ())
        ]
        shown = self._certificates()
        contexts: list[Identity] = []
        for each in shown:
            try:
                contexts.append(each.read())
            except (OSError, ValueError) as error:
                problems.append(str(error))
        if problems:
            return ReloadResult((), wanted, restart, tuple(problems), warned)
        self._apply(usable)
        for certificates, context in zip(shown, contexts, strict=True):
            certificates.use(context)
        return ReloadResult(wanted, (), restart, (), warned)


def _until_restart(problem: Problem, later: Collection[str]) -> str:
    """Return the part that the keys ``later``, which need a restart, have in a problem of the merged configuration."""
    if problem.other in later:
        return f"{problem.other} takes its new value at a restart only"
    return "with the keys that need a restart"


def _changes(differing: Iterable[Difference]) -> tuple[KeyChange, ...]:
    return tuple(KeyChange(each.key, each.old, each.new, each.why) for each in differing)
