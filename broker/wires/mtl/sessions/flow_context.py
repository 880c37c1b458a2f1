"""Context of the two flows: what control flow and data flow share."""

from __future__ import annotations

import attrs

from broker.core.interfaces import ILeases
from broker.net.interfaces.router import Complaints
from broker.wires.mtl.sessions.data_leases import DataLeases
from broker.wires.mtl.sessions.settings import MtlSettings


@attrs.frozen(eq=False)
class FlowContext:
    """Neighbours of a flow.

    - ``leases``: deadlines and the time. ``data_leases``: issued by the control flow, used by the data flow.
    - ``complaints``: counters, and bounded log lines about peers.
    - ``settings``: those at the start; a reload gives others to each flow (``use``).
    """

    leases: ILeases
    data_leases: DataLeases
    complaints: Complaints
    settings: MtlSettings
