"""Data leases, which the control flow issues and the data flow uses, and the other values that both flows share.

Rules:
- A token is 24 random bytes in text. Looking it up in a dictionary does not reveal by its time how much of a guess is
  right: a guess is compared with a token only if all 64 bits of their hashes agree, and the key of the hash is secret.
- A lease belongs to the principal that it was issued to, and to the CURVE key of that connection: a peer with another
  key cannot use it. Its first use binds it to the identity of that peer, which may use it again.
- An unused lease ends after its time. A used lease ends with its flow (`DataLeases.release`), or when the principal
  loses its access (`DataLeases.revoke`): then the data flow is notified.
- A session has a limited number of leases, used or not, and so has a user in all sessions; an anonymous user is limited
  by session only. The number of unused leases is limited in total: beyond it, the oldest ends early.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import TypeVar

import attrs

from broker.core.errors import Reason, Refusal, at_limit
from broker.core.interfaces import ILease, ILeases
from broker.core.silent_peers import EndAtOnce, Silence
from broker.net.peer_interfaces import Conversation, Part, RefusalLog
from broker.wires.mtl.codec.data_messages import is_data
from broker.wires.mtl.mtl_settings import Mtl
from broker.wires.mtl.sessions.access_policy import AccessPolicy, Principal
from broker.wires.mtl.sessions.profile_interface import Grant, Profile

TOKEN_BYTES = 24
"""Random bytes of a token: 192 bits cannot be guessed, and their 32 characters fit into a short string."""

K = TypeVar("K", bound=Hashable)


DEAD_AFTER = 3
"""Heartbeats without a frame after which the flows of a data peer end."""

SESSION_LEASES = 100
"""Data leases of one session: 50 data connections, each of which reads and writes."""

MAX_UNUSED_LEASES = 10_000
"""Unused leases of all sessions together: a second's worth of requests, some 10 MB. Clients use a lease at once, so a
flood of requests ends only leases of clients that are very slow."""


class DataLeases:
    """All data leases.

    ``ended``, which the data flow sets, is called with the tokens of used leases that are revoked together. They have
    ended by then: `take` returns None for them.
    """

    def __init__(self, leases: ILeases, config: Mtl) -> None:
        self.config = config
        self.ended: Callable[[Collection[str]], object] = _nothing
        self._leases = leases
        self._by_token: dict[str, _DataLease] = {}
        self._unused: dict[str, _DataLease] = {}
        """Oldest first."""
        self._by_principal: dict[Principal, dict[str, _DataLease]] = {}
        self._of_session: Counter[Hashable] = Counter()
        self._of_user: Counter[str] = Counter()
        self._expired = 0

    def __len__(self) -> int:
        return len(self._by_token)

    def held(self, session: Hashable) -> bool:
        """Return True while leases count for that session."""
        return self._of_session[session] > 0

    @property
    def unused(self) -> int:
        """Number of unused leases."""
        return len(self._unused)

    def counts(self) -> dict[str, int]:
        """Return the counters of leases."""
        return {"mtl_leases.expired": self._expired}

    # from the control flow

    def issue(self, grant: Grant, session: Hashable) -> str:
        """Issue a lease, and return its token. ``session`` is the one it is counted for. Raises `Refusal` LIMIT."""
        user, config = grant.principal.user, self.config
        if self._of_session[session] >= SESSION_LEASES:
            raise Refusal(Reason.LIMIT, f"a session may have {SESSION_LEASES} data leases, and no more")
        if user and self._of_user[user] >= config.flows:
            raise at_limit(f"a user may have {config.flows} data leases, and no more", "mtl.flows")
        if len(self._unused) >= MAX_UNUSED_LEASES:
            self._expire(next(iter(self._unused.values())))
        token = secrets.token_urlsafe(TOKEN_BYTES)
        lease = _DataLease(self._expire, token, grant, session)
        lease.unused = self._leases.hold(lease, self._leases.moment() + config.lease + self._leases.slack_exact)
        self._by_token[token] = self._unused[token] = lease
        self._by_principal.setdefault(grant.principal, {})[token] = lease
        self._of_session[session] += 1
        if user:
            self._of_user[user] += 1
        return token

    def principals(self) -> Collection[Principal]:
        """Return the principals that have leases."""
        return self._by_principal.keys()

    def revoke(self, principals: Collection[Principal]) -> None:
        """End all leases of these principals."""
        lost = [lease for principal in principals for lease in self._by_principal.get(principal, {}).values()]
        # All tables first: what the data flow calls at the end of a flow must find no lease of these principals.
        for lease in lost:
            self._forget(lease)
        self.ended([lease.token for lease in lost if lease.identity is not None])

    # from the data flow

    def take(self, token: str, identity: bytes, key: str) -> Grant | None:
        """Use a lease. Returns its grant, or None if the peer of that identity and CURVE key may not use it.

        ``key`` is "" without CURVE. The lease is in use by that peer until `release`.
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
        """End a lease together with its flow. No-op if it has ended already."""
        lease = self._by_token.get(token)
        if lease is not None:
            self._forget(lease)

    # end of leases

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
    """One lease. ``unused`` is the deadline of its first use; ``identity`` is the peer of that use, None before."""

    __slots__ = ("_expire", "grant", "identity", "session", "token", "unused")

    def __init__(self, expire: Callable[[_DataLease], None], token: str, grant: Grant, session: Hashable) -> None:
        self._expire = expire
        self.token = token
        self.grant = grant
        self.session = session
        self.identity: bytes | None = None
        self.unused: ILease

    def check(self, now: float) -> float | None:
        """End the lease at the deadline of its first use."""
        self._expire(self)
        return None


def _less(counter: Counter[K], key: K) -> None:
    """Subtract one, and drop keys that reach zero: the counter must not grow with every user of the past."""
    counter[key] -= 1
    if not counter[key]:
        del counter[key]


def _nothing(tokens: Collection[str]) -> None:
    """No-op, until the data flow sets its own: no lease can be in use before."""


@attrs.frozen(eq=False)
class FlowContext:
    """Neighbours of a flow.

    - ``leases``: deadlines and the time. ``data_leases``: issued by the control flow, used by the data flow.
    - ``silence``: the rule for clients whose lease has expired.
    - ``refusal_log``: counters, and bounded log lines about peers.
    - ``config``: the section at the start; a reload gives another to each flow (``use``).
    """

    leases: ILeases
    data_leases: DataLeases
    refusal_log: RefusalLog
    config: Mtl
    silence: Silence = attrs.field(factory=EndAtOnce)


@attrs.frozen(eq=False)
class ProfileAccess:
    """Profiles, the policy that decides about their use, and the port of the data flow.

    ``data_port`` is 0 if the endpoint of the control flow carries the data flow, too. A function, since the port may be
    known only when the listener is bound.
    """

    policy: AccessPolicy
    profiles: Mapping[str, Profile]
    data_port: Callable[[], int]


# A ROUTER that carries both flows.


class SharedSocket:
    """Conversation of the ROUTER: passes each message to the conversation of its flow."""

    def __init__(self, control: Conversation, data: Conversation) -> None:
        self._control = control
        self._data = data

    def receive(self, identity: bytes, frames: list[Part], connection: int) -> None:
        """Process one message. The number of frames, and the first one, identify the flow (`is_data`)."""
        flow = self._data if is_data(frames) else self._control
        flow.receive(identity, frames, connection)

    def closed(self, connection: int) -> None:
        """End both flows of a connection that closed."""
        self._data.closed(connection)
        self._control.closed(connection)

    def needs(self, connection: int) -> bool:
        """Return True while either flow needs the connection."""
        return self._data.needs(connection) or self._control.needs(connection)

    def room(self, identity: bytes) -> None:
        """Report room to the data flow: only Contents and Pings are refused for lack of room."""
        self._data.room(identity)
