"""Data leases: what the control flow gives, and the data flow takes.

Rules:
- A token is 24 random bytes in text. It is looked up in a dictionary, which does not tell by its time how much of a
  guess was right: a guess is compared with a token only where all 64 bits of their hashes agree, and nobody outside
  knows the key of the hash.
- A lease belongs to the principal that it was given to, and to the CURVE key of its connection: whoever has another
  key cannot use it. With its first use it belongs to the identity that used it, and to no other. That one may use it
  again.
- One that nobody uses ends after its time. One that is used ends with its flow (`DataLeases.release`), or when the
  principal loses its access (`DataLeases.revoke`): then those who serve the flow are told.
- A session has a limited number of leases, used or not, and so has a user in all its sessions; whoever has no name is
  held to the former only. Of unused leases there is a limited number in all: beyond it the oldest ends early.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Collection, Hashable
from typing import TypeVar

from twisted.logger import Logger

from broker.core.errors import Reason, Refusal
from broker.core.interfaces import ILease, ILeases
from broker.wires.mtl.sessions.principals import Principal
from broker.wires.mtl.sessions.profile_interface import Grant
from broker.wires.mtl.sessions.settings import MtlSettings

TOKEN_BYTES = 24
"""Random bytes of a token: nobody guesses 192 bits, and their 32 characters fit into a short string."""

K = TypeVar("K", bound=Hashable)


class DataLeases:
    """All data leases. Control issues them, Data takes them; ``ended`` is for Data to set.

    ``ended`` is called with the token of each lease in use that is revoked. `take` gives nothing for it any more.
    """

    log = Logger()

    def __init__(self, leases: ILeases, settings: MtlSettings) -> None:
        self.settings = settings
        self.ended: Callable[[str], object] = _nothing
        self._leases = leases
        self._by_token: dict[str, _DataLease] = {}
        self._unused: dict[str, _DataLease] = {}
        """The oldest first."""
        self._by_principal: dict[Principal, dict[str, _DataLease]] = {}
        self._of_session: Counter[Hashable] = Counter()
        self._of_user: Counter[str] = Counter()
        self._expired = 0

    def __len__(self) -> int:
        return len(self._by_token)

    @property
    def unused(self) -> int:
        """How many nobody has used yet."""
        return len(self._unused)

    def counts(self) -> dict[str, int]:
        """What is counted here, by name."""
        return {"mtl_leases.expired": self._expired}

    # from the control flow

    def issue(self, grant: Grant, session: Hashable) -> str:
        """A new lease; returns its token. Raises `Refusal` LIMIT. ``session`` is who asks, for the count."""
        user, settings = grant.principal.user, self.settings
        if self._of_session[session] >= settings.leases:
            raise Refusal(Reason.LIMIT, f"a session may have {settings.leases} data leases, and no more")
        if user and self._of_user[user] >= settings.flows:
            raise Refusal(Reason.LIMIT, f"a user may have {settings.flows} data leases, and no more")
        if len(self._unused) >= settings.max_unused:
            self._expire(next(iter(self._unused.values())))
        token = secrets.token_urlsafe(TOKEN_BYTES)
        lease = _DataLease(self._expire, token, grant, session)
        lease.unused = self._leases.hold(lease, self._leases.moment() + settings.lease_ttl + self._leases.slack_exact)
        self._by_token[token] = self._unused[token] = lease
        self._by_principal.setdefault(grant.principal, {})[token] = lease
        self._of_session[session] += 1
        if user:
            self._of_user[user] += 1
        return token

    def principals(self) -> Collection[Principal]:
        """All who have leases."""
        return self._by_principal.keys()

    def revoke(self, principals: Collection[Principal]) -> None:
        """These lose all that they have."""
        lost = [lease for principal in principals for lease in self._by_principal.get(principal, {}).values()]
        for lease in lost:
            self._forget(lease)
        for lease in lost:
            if lease.identity is not None:
                try:
                    self.ended(lease.token)
                except Exception:
                    self.log.failure("the end of a revoked data flow failed")

    # from the data flow

    def take(self, token: str, identity: bytes, key: str) -> Grant | None:
        """What the lease gives to the peer of that identity and CURVE key ("" without CURVE); None: it is forbidden.

        From now on it is in use by that peer, until `release`.
        """
        lease = self._by_token.get(token)
        if lease is None or lease.grant.principal.key != key:
            return None
        if lease.identity is None:
            lease.identity = identity
            lease.unused.cancel()
            del self._unused[token]
        return lease.grant if lease.identity == identity else None

    def release(self, token: str) -> None:
        """The flow of that lease is over, and so is the lease. Harmless if it is over already."""
        lease = self._by_token.get(token)
        if lease is not None:
            self._forget(lease)

    # the ends

    def _expire(self, lease: _DataLease) -> None:
        self._expired += 1
        self._forget(lease)

    def _forget(self, lease: _DataLease) -> None:
        token, principal = lease.token, lease.grant.principal
        del self._by_token[token]
        if self._unused.pop(token, None) is not None:
            lease.unused.cancel()
        own = self._by_principal[principal]
        del own[token]
        if not own:
            del self._by_principal[principal]
        _less(self._of_session, lease.session)
        if principal.user:
            _less(self._of_user, principal.user)


class _DataLease:
    """One lease. ``unused`` is the deadline for its first use; ``identity`` who made that."""

    __slots__ = ("_expire", "grant", "identity", "session", "token", "unused")

    def __init__(self, expire: Callable[[_DataLease], None], token: str, grant: Grant, session: Hashable) -> None:
        self._expire = expire
        self.token = token
        self.grant = grant
        self.session = session
        self.identity: bytes | None = None
        self.unused: ILease

    def check(self, now: float) -> float | None:
        """It was not used in time."""
        self._expire(self)
        return None


def _less(counter: Counter[K], key: K) -> None:
    """One less; who has none is not kept."""
    counter[key] -= 1
    if not counter[key]:
        del counter[key]


def _nothing(token: str) -> None:
    """Nobody serves flows yet, so that none is in use."""
