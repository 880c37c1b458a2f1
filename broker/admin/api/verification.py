"""The endpoint that compares the rows of the stores with their checksums."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
from twisted.internet.defer import Deferred

from broker.admin.api.pieces import answer
from broker.core.model import Verified
from broker.web.http_endpoint import Call, Endpoint
from broker.web.messages import Response


@attrs.frozen
class StoreVerified:
    """The result for one store: rows that were compared, rows that do not match their checksums, a line for each of the
    first hundred of these, and rows that were set aside before."""

    store: str
    rows: int
    damaged: int
    named: Sequence[str]
    aside: int


@attrs.frozen
class Verification:
    """The results for all stores."""

    stores: Sequence[StoreVerified]


def endpoints(verify: Callable[[], Deferred[list[tuple[str, Verified]]]]) -> list[Endpoint]:
    """Return the endpoint. ``verify`` compares all rows, or fails with a `broker.core.errors.Refusal`."""

    def shown(results: list[tuple[str, Verified]]) -> Response:
        return answer(Verification([StoreVerified(name, r.rows, r.damaged, r.named, r.aside) for name, r in results]))

    def verification(call: Call) -> Deferred[Response]:
        return verify().addCallback(shown)

    return [
        Endpoint(
            "GET",
            "/v1/verification",
            "verify_state",
            "Compares all rows of the stores with their checksums, and changes nothing.",
            verification,
            answer=Verification,
            tag="health",
        )
    ]
