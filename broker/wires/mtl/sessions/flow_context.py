"""Contexts of the flows: what both share, and the profiles that the control flow gives access to."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from broker.core.interfaces import ILeases
from broker.core.silent_peers import EndAtOnce, Silence
from broker.net.interfaces.router import Complaints
from broker.wires.mtl.sessions.access_policy import AccessPolicy
from broker.wires.mtl.sessions.data_leases import DataLeases
from broker.wires.mtl.sessions.profile_interface import Profile
from broker.wires.mtl.sessions.settings import MtlSettings


@attrs.frozen(eq=False)
class FlowContext:
    """Neighbours of a flow.

    - ``leases``: deadlines and the time. ``data_leases``: issued by the control flow, used by the data flow.
    - ``silence``: the rule for clients whose time is over.
    - ``complaints``: counters, and bounded log lines about peers.
    - ``settings``: those at the start; a reload gives others to each flow (``use``).
    """

    leases: ILeases
    data_leases: DataLeases
    complaints: Complaints
    settings: MtlSettings
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
