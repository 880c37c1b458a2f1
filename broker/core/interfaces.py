"""What the core promises to the wires, and what it asks of whoever wires it up."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from twisted.internet.defer import Deferred
from zope.interface import Attribute, Interface

from broker.core.errors import Refusal
from broker.core.model import Change, Kind, Launcher, Load, Provider, Rights, Service


class IWait(Interface):
    """A standing query that can be ended."""

    def cancel() -> None:
        """End it. Nothing is told any more; doing so twice is harmless."""


class IRegistry(Interface):
    """The one registry behind every wire.

    Changes are made first and told afterwards: no method calls a peer in the middle of a change. All methods are for
    the reactor thread.
    """

    revision: int = Attribute("The number of changes so far; each change raises it by one.")

    def join(label: str, wire: str, address: str) -> int:
        """Register a peer as a provider. Returns its id: from 1 upwards, never used again, not even after a restart.

        ``wire`` names the format that it speaks, ``address`` where it comes from.
        """

    def relabel(provider: int, label: str) -> None:
        """Give a provider another label."""

    def leave(provider: int) -> None:
        """The provider is gone: withdraw all its services. Harmless for one that left already."""

    def offer(services: Sequence[Service], rights: Rights) -> list[Refusal]:
        """Add services of one provider that joined (``Service.provider`` names it), each a distinct object.

        For each service, in order, first the waiting finds hear of it, then the watchers. The same service may be
        offered more than once. Services that may not be added are left out; for each of them the returned list has a
        `Refusal` that says why.
        """

    def withdraw(provider: int, names: Iterable[str]) -> None:
        """Remove all services of the provider with one of these names, in every protocol. Unknown names are ignored."""

    def load(provider: int, load: float) -> None:
        """Set a provider's load; a negative one counts as 0.0."""

    def lookup(name: str, protocol: str, restored: bool = False) -> tuple[Service, ...]:
        """The services of that name and protocol, in the order in which they were offered.

        With ``restored``, and where no live one is known, those remembered from before a restart.
        """

    def find(name: str, seconds: float | None) -> Deferred[Service]:
        """Wait for a service of that name, in any protocol, to be offered; ``None`` waits for ever.

        Fires with the first one offered, fails with a `Refusal` NO_SUCH_SERVICE when the time is up, or with LIMIT at
        once when too many wait. Cancel the Deferred when the peer goes.
        """

    def monitor(
        name: str, seconds: float | None, offered: Callable[[Service], None], ended: Callable[[], None]
    ) -> IWait:
        """Call ``offered`` for each service of that name, in any protocol, as it is offered.

        ``ended`` is called once when the time is up (never, if ``seconds`` is None or the wait was cancelled). Raises
        `Refusal` LIMIT when too many wait.
        """

    def services(name: str | None = None, protocol: str | None = None) -> Sequence[Service]:
        """Every live service, the broker's own included; or those of a name, or of a name and a protocol."""

    def loads() -> Sequence[Load]:
        """The loads of all providers but the broker itself, those that offer nothing included."""

    def provider(provider: int) -> Provider | None:
        """The provider of that id as it is now; None when there is none."""

    def providers() -> Sequence[Provider]:
        """All providers but the broker itself, in order of their ids."""

    def watch(changed: Callable[[Change], None], kinds: Collection[Kind] = ...) -> IWait:
        """Call ``changed`` with every later change of these kinds (by default all), in order, until cancelled."""

    def changes_since(revision: int) -> Sequence[Change] | None:
        """The changes after ``revision``, or None when they are no longer known: take a snapshot instead."""


class ILaunchers(Interface):
    """The table of programs that administrators may start."""

    def launch(name: str) -> str:
        """Start the program of that name, and return the status text: ``start NAME`` or ``fail NAME WHY``."""

    def describe() -> Sequence[Launcher]:
        """All launchers, in the order of the configuration."""

    def switch_off(name: str) -> None:
        """The program of that name is no longer wanted. Unknown names are ignored."""


class IControl(Interface):
    """What an administrator may do to the broker process itself."""

    def reinitialize() -> None:
        """Read the configuration again."""

    def shut_down(kill: bool) -> None:
        """End the process: in good order, or with ``kill`` at once."""
