"""Messages of real peers, byte for byte: strict JSON, a space after each comma, an empty line after each message."""

from __future__ import annotations

END = b"\n\n"


def message(text: str) -> bytes:
    """One message as it goes over the wire."""
    return text.encode() + END


PING = message('{"to":"broker", "op":"ping", "tag":"0"}')

WATCH_LOADS = message('{"to":"admin", "op":"watch", "load":true}')

WATCH_SERVICES = message('{"to":"admin", "op":"watch", "services":true}')

SERVICEDESC = message('{"to":"admin", "op":"servicedesc"}')


def auth(label: str, to: str = "broker") -> bytes:
    """The first message of a connection; ``to`` is the role."""
    return message(f'{{"to":"{to}", "op":"auth", "label":"{label}"}}')


def willserve(names: list[str], hostport: str = "127.0.0.1:7000", label: str = "server") -> bytes:
    """An offer of several services in one message, with the properties that real servers give."""
    services = ", ".join(
        f'{{"type":"servicedesc", "service":"{name}", "hostport":"{hostport}", "protocol":"tcp", "label":"{label}"}}'
        for name in names
    )
    return message(f'{{"to":"broker", "op":"willserve", "services":[{services}]}}')


def wontserve(names: list[str]) -> bytes:
    """The end of such an offer."""
    return message(
        f'{{"to":"broker", "op":"wontserve", "services":[{", ".join(f"{chr(34)}{n}{chr(34)}" for n in names)}]}}'
    )


def find(name: str, wait: int = 0) -> bytes:
    """A query; real servers always give a tag."""
    return message(f'{{"to":"broker", "op":"find", "service":"{name}", "wait":{wait}, "tag":"0"}}')


def load(factor: float) -> bytes:
    """A load report, always of the same length."""
    return message(f'{{"to":"broker", "op":"load", "factor":{factor:.2f}}}')
