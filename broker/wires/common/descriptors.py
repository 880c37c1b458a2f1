"""Descriptors: services and loads of the registry as JSON objects, for wires without a format of their own.

The members are those of the Elko Broker document, which has the richest description of a service. A descriptor never
contains a secret: a wire that discloses secrets does so to trusted peers only, in a format of its own.
"""

from __future__ import annotations

import msgspec

from broker.core.model import BAD_STATES, DESCRIPTIONS, NO_DETAILS, Auth, Check, Load, Service, description

DEFAULT_PROTOCOL = "tcp"
"""The protocol of a service whose descriptor names none."""


class Authentication(msgspec.Struct, frozen=True, gc=False):
    """Authentication that a service requires: a mode, with a code and an id where the mode needs them."""

    mode: str
    code: str | None = None
    id: str | None = None


class OfferDescriptor(msgspec.Struct, frozen=True, gc=False):
    """A descriptor with which a peer offers a service. With ``failure`` it describes the lack of a service instead."""

    service: str
    hostport: str | None = None
    protocol: str | None = None
    label: str | None = None
    auth: Authentication | None = None
    failure: str | None = None
    provider: int | float | None = None
    zone: str | None = None
    tags: tuple[str, ...] | None = None
    meta: dict[str, str] | None = None


class ServiceDescriptor(
    msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag_field="type", tag="servicedesc"
):
    """A service. ``restored`` is true if it is known from before a restart of the broker and was not offered since.

    ``check`` is "failing" if its health check fails, "doubtful" while its silence is verified, with the ``reason``.

    Members without a value are omitted, as in the Elko Broker's descriptors; a null would differ from them.
    """

    service: str
    hostport: str
    protocol: str
    label: str | None = None
    provider: int
    restored: bool = False
    check: str | None = None
    reason: str | None = None
    zone: str | None = None
    tags: tuple[str, ...] | None = None
    meta: dict[str, str] | None = None


class LoadDescriptor(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag_field="type", tag="loaddesc"):
    """The load of a provider, with those details that it reported."""

    label: str
    load: float
    provider: int
    requests: int | None = None
    errors: int | None = None
    in_flight: int | None = None
    latency_ms: float | None = None


encode_descriptor = msgspec.json.Encoder().encode
"""Encodes a descriptor."""

read_offer = msgspec.json.Decoder(OfferDescriptor).decode
"""Decodes a descriptor that offers a service. Raises `msgspec.DecodeError`."""


def offered(offer: OfferDescriptor, provider: int) -> Service | None:
    """Return the service that a provider's descriptor offers; None if it has no hostport, or describes a failure."""
    if offer.hostport is None or offer.failure is not None:
        return None
    auth = offer.auth
    # The mode "open" is equivalent to no authentication.
    secret = None if auth is None or auth.mode == "open" else Auth(auth.mode, auth.code, auth.id)
    texts = {name: description(name, getattr(offer, name)) for name in DESCRIPTIONS}
    return Service(offer.service, offer.hostport, provider, offer.protocol or DEFAULT_PROTOCOL, auth=secret, **texts)


def service_descriptor(service: Service, check: Check | None = None) -> ServiceDescriptor:
    """Return the descriptor of a service, without its secret, with the result of its checks in `BAD_STATES`."""
    shown = check if check is not None and check.state in BAD_STATES else None
    return ServiceDescriptor(
        service=service.name,
        hostport=service.hostport,
        protocol=service.protocol,
        provider=service.provider,
        restored=service.restored,
        check=None if shown is None else shown.state.value,
        reason=None if shown is None else shown.reason,
        **service.descriptions,
    )


def load_descriptor(load: Load) -> LoadDescriptor:
    """Return the descriptor of a load."""
    details = load.details or NO_DETAILS
    return LoadDescriptor(
        load.label, load.load, load.provider, details.requests, details.errors, details.in_flight, details.latency_ms
    )
