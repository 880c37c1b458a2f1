"""Schedule of health checks: one target for each question, supervised by a lease.

Rules:
- A *target* is a question and its subjects: the services of one provider that are checked by its ping, or those of one
  host:port. It is asked once for all of them.
- Checks are made every interval, with a random deviation of `JITTER`, so that checks that began together spread out.
  The first ping follows a whole interval after the registration; other first checks come earlier, at random.
- A check of a doubtful target is repeated after its timeout, without a deviation: `down` failures take little longer
  than `down` timeouts.
- A provider that reports its load regularly, and misses a report, is pinged early (`hasten`).
- Timeouts count on the lifetime clock, which excludes stalls of the broker: a broker that was stopped finds no service
  failing because of that.
- At most ``concurrency`` checks with connections of their own are open; further ones queue in the order in which they
  fall due. Pings use connections that exist, and do not queue.
- At most `MAX_TARGETS` targets are supervised; subjects beyond are not checked, and are counted.
- An outcome is applied to all subjects before the next check is due.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from math import inf

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from broker.core.checks.check_rules import (
    Asker,
    CheckKind,
    CheckSettings,
    Outcome,
    Progress,
    Question,
    Subject,
    TargetInfo,
)
from broker.core.interfaces import ILease, ILeases
from broker.core.model import Check, CheckState, Policy

JITTER = 0.25
"""Largest deviation from the interval, as a share of it."""

MAX_TARGETS = 50_000
"""Limit of targets: some 30 MB when full. At the default interval that is 1,700 checks a second, a third of a core."""

LINES = 100
"""Log lines a minute. More than that fail only together, and all of them are in the view."""

MAX_SHOWN = 100
"""Characters of a name in the log."""

RETRY = 0.1
"""Intervals until the next attempt of a check that was impossible."""


class Target:
    """One question with its subjects. Its lease calls `check`."""

    __slots__ = ("_schedule", "begun", "cancel", "due", "lease", "progress", "question", "running", "subjects")

    def __init__(self, schedule: Schedule, question: Question, progress: Progress, due: float) -> None:
        self._schedule = schedule
        self.question = question
        self.progress = progress
        self.subjects: dict[Subject, None] = {}
        self.due = due
        """Lifetime of the next check, or of the timeout of the one that runs."""
        self.begun = 0.0
        """Lifetime at the beginning of the last check."""
        self.lease: ILease | None = None
        self.running: object | None = None
        """Identity of the check that runs; None between two."""
        self.cancel: Callable[[], None] | None = None
        """Ends the check that runs."""

    def check(self, now: float) -> float | None:
        """Begin a check, or end one that got no answer. Returns the time of the next call."""
        return self._schedule.check(self, now)


class Schedule:
    """All targets. ``asker`` makes the checks; ``random`` returns a number from 0 to 1."""

    log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        leases: ILeases,
        asker: Asker,
        random: Callable[[], float],
        settings: CheckSettings | None = None,
    ) -> None:
        self._clock = clock
        self._leases = leases
        self.asker = asker
        self._random = random
        self._settings = CheckSettings() if settings is None else settings
        self._targets: dict[Question, Target] = {}
        self._waiting: OrderedDict[Target, None] = OrderedDict()
        self._open = 0
        """Checks with connections of their own that run."""
        self._outcomes: Counter[str] = Counter()
        self._stopped = False
        self._minute = -inf
        """Clock at the beginning of the present minute of the log."""
        self._lines = 0
        """Lines of that minute, those beyond `LINES` included."""

    @property
    def settings(self) -> CheckSettings:
        """The present settings."""
        return self._settings

    def use(self, settings: CheckSettings) -> None:
        """Apply other settings. Targets stay: the owners of the subjects replace those whose rule has changed."""
        self._settings = settings
        self._begin_waiting()

    # subjects

    def supervise(self, question: Question, subject: Subject) -> Target | None:
        """Add a subject to the target of a question. It is notified of the present state. None if the table is full."""
        target = self._targets.get(question)
        if target is None:
            if len(self._targets) >= MAX_TARGETS or self._stopped:
                self._outcomes["beyond_limit"] += 1
                return None
            ping = question.rule.kind is CheckKind.PING
            # The whole interval for a ping: a client that is gone within seconds never sees one.
            wait = self._interval(question) if ping else self._random() * question.rule.interval
            due = self._leases.moment() + wait
            target = Target(self, question, Progress.begin(ping, self._clock.seconds()), due)
            self._targets[question] = target
            target.lease = self._leases.hold(target, due)
        target.subjects[subject] = None
        subject.judged(target.progress.check, question.rule.policy)
        return target

    def release(self, target: Target, subject: Subject) -> None:
        """Remove a subject, and the target with its last one."""
        del target.subjects[subject]
        if not target.subjects:
            del self._targets[target.question]
            self._end(target)
            if target.lease is not None:
                target.lease.cancel()
                target.lease = None
            self._waiting.pop(target, None)
            self._begin_waiting()
        subject.judged(None, Policy.SHOW)

    def hasten(self, target: Target) -> None:
        """Make the next check of a target now, since there is a reason to doubt it."""
        if target.running is None and target.lease is not None:
            before, target.due = target.lease, self._leases.moment()
            target.lease = self._leases.hold(target, target.due)
            # Cancelled last: while no lease is held at all, the lifetime clock stops.
            before.cancel()

    def stop(self) -> None:
        """End all checks. The states stay as they are."""
        self._stopped = True
        self._waiting.clear()
        for target in self._targets.values():
            self._end(target)
            if target.lease is not None:
                target.lease.cancel()
                target.lease = None

    # for operators

    def targets(self) -> Iterator[TargetInfo]:
        """Return all targets, the oldest first."""
        for target in list(self._targets.values()):
            names = tuple(str(subject) for _, subject in zip(range(3), target.subjects, strict=False))
            progress = target.progress
            policy = target.question.rule.policy
            yield TargetInfo(target.question, progress.check, policy, progress.streak, names, len(target.subjects))

    def counts(self) -> Mapping[str, int]:
        """Return counters and gauges by name."""
        states = Counter(target.progress.check.state for target in self._targets.values())
        return {
            **{f"check_results.{name}": self._outcomes[name] for name in OUTCOMES},
            "checks.targets": len(self._targets),
            "checks.running": sum(target.running is not None for target in self._targets.values()),
            "checks.waiting": len(self._waiting),
            **{f"checks.{state}": states[state] for state in CheckState},
        }

    # checks

    def check(self, target: Target, now: float) -> float | None:
        """Begin a check of a target, or end one that got no answer. Returns the lifetime of the next call."""
        rule = target.question.rule
        if now < target.due:
            return target.due
        if target.running is not None:
            self._end(target)
            self._outcomes["timed_out"] += 1
            self._apply(target, self._unanswered(target.question))
            self._begin_waiting()
            target.due = self._next_due(target)
            return target.due
        if target.progress.hopeless:
            target.lease = None
            return None
        if rule.kind is CheckKind.PING or self._open < self._settings.concurrency:
            return self._begin(target, now)
        self._outcomes["delayed"] += 1
        self._waiting[target] = None
        target.lease = None
        return None

    def _begin(self, target: Target, now: float) -> float:
        """Begin a check. Returns the lifetime of its timeout."""
        running = target.running = object()
        target.begun = now
        if target.question.rule.kind is not CheckKind.PING:
            self._open += 1

        def answered(outcome: Outcome) -> None:
            if target.running is not running:
                return  # after the timeout, or the end of the target
            target.cancel = None
            self._end(target)
            self._outcomes[_name(outcome)] += 1
            self._apply(target, outcome)
            # The lease stays until the timeout, and is moved then.
            target.due = self._next_due(target)
            self._begin_waiting()

        target.cancel = self.asker.ask(target.question, answered)
        if target.cancel is None:
            self._end(target)
            self._outcomes["impossible"] += 1
            target.due = now + RETRY * target.question.rule.interval
        else:
            target.due = now + target.question.rule.timeout + self._leases.slack_exact
        return target.due

    def _unanswered(self, question: Question) -> Outcome:
        """Return the outcome of a check that got no answer."""
        within = f"within {question.rule.timeout:g} s"
        if question.rule.kind is not CheckKind.PING:
            return Outcome(False, f"no answer {within}")
        if self.asker.unreachable(question):
            return Outcome(False, f"its host did not acknowledge a ping {within}", unreachable=True)
        return Outcome(False, f"no answer to a ping {within}")

    def _end(self, target: Target) -> None:
        """End the check that runs, if there is one."""
        if target.running is None:
            return
        target.running = None
        if target.question.rule.kind is not CheckKind.PING:
            self._open -= 1
        cancel, target.cancel = target.cancel, None
        if cancel is not None:
            cancel()

    def _begin_waiting(self) -> None:
        """Begin the checks that waited, the oldest first, as far as there is room."""
        while self._waiting and self._open < self._settings.concurrency:
            target, _ = self._waiting.popitem(last=False)
            now = self._leases.moment()
            target.lease = self._leases.hold(target, self._begin(target, now))

    def _apply(self, target: Target, outcome: Outcome) -> None:
        """Apply an outcome to the state, and notify all subjects if that has changed."""
        rule = target.question.rule
        before = target.progress.check
        target.progress = target.progress.after(outcome, rule.up, rule.down, self._clock.seconds())
        check = target.progress.check
        if check == before:
            return
        if check.state is not before.state and CheckState.FAILING in (check.state, before.state):
            self._report(target, check)
        for subject in list(target.subjects):
            subject.judged(check, rule.policy)

    def _report(self, target: Target, check: Check) -> None:
        """Log that a target begins or ceases to fail, within `LINES` a minute."""
        now = self._clock.seconds()
        if not 0 <= now - self._minute < 60:
            if self._lines > LINES:
                self.log.info("{count} more checks began or ceased to fail", count=self._lines - LINES)
            self._minute, self._lines = now, 0
        self._lines += 1
        if self._lines <= LINES:
            name = next((str(subject) for subject in target.subjects), "")[:MAX_SHOWN]
            self.log.info(
                "{kind} check of {name!r}: {state}, {reason}",
                kind=target.question.rule.kind.value,
                name=name,
                state=check.state.value,
                reason=check.reason,
            )

    def _next_due(self, target: Target) -> float:
        if target.progress.doubtful:
            return target.begun + min(target.question.rule.timeout, target.question.rule.interval)
        return target.begun + self._interval(target.question)

    def _interval(self, question: Question) -> float:
        return question.rule.interval * (1 + JITTER * (2 * self._random() - 1))


OUTCOMES = ("passed", "failed", "timed_out", "unproven", "impossible", "delayed", "beyond_limit")
"""Names of the outcomes that are counted."""


def _name(outcome: Outcome) -> str:
    return "unproven" if outcome.alive is None else "passed" if outcome.alive else "failed"
