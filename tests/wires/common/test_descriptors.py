"""Descriptors of services, as providers write them."""

from __future__ import annotations

import pytest

from broker.core.model import Auth, Service
from broker.wires.common.descriptors import offered, read_offer


@pytest.mark.parametrize(
    ("text", "service"),
    [
        (b'{"service":"a","hostport":"h:1"}', Service("a", "h:1", 7)),
        (b'{"service":"a","hostport":"h:1","protocol":"http","label":"x"}', Service("a", "h:1", 7, "http", "x")),
        (b'{"service":"a","hostport":"h:1","auth":{"mode":"open"}}', Service("a", "h:1", 7)),
        (
            b'{"service":"a","hostport":"h:1","auth":{"mode":"password","code":"c"}}',
            Service("a", "h:1", 7, auth=Auth("password", "c", None)),
        ),
        (b'{"service":"a"}', None),
        (b'{"service":"a","failure":"no such service"}', None),
        (b'{"service":"a","hostport":"h:1","failure":"no such service"}', None),
    ],
)
def test_a_descriptor_offers_a_service_unless_it_lacks_an_address_or_describes_a_failure(
    text: bytes, service: Service | None
) -> None:
    assert offered(read_offer(text), 7) == service
