"""Texts that describe a service: each wire that offers one takes them, and each face of the real daemon shows them."""

from __future__ import annotations

import gzip
import json
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs

from broker.cluster import layout
from broker.core.cluster.cluster_interfaces import Registration, key_of
from broker.core.model import DESCRIPTIONS, NOBODY, Provider, Service
from tests.integration.daemon import Daemon
from tests.integration.http_api import ask
from tests.integration.mtl_peers import configured, peers_of

TEXTS: dict[str, Any] = {
    **{name: f"the {name} of it" for name in DESCRIPTIONS},
    "tags": ["v2", "a tag, with \u00fcmlaut"],
    "meta": {"team": "bank", "rev": "7"},
}


def test_each_wire_takes_them_and_each_face_shows_them(tmp_path: Path) -> None:
    options = ("--config", configured(tmp_path, ""), "--state", str(tmp_path / "state"))

    def shown(daemon: Daemon, name: str) -> list[dict[str, Any]]:
        with daemon.connect() as peer:
            by_elko = peer.ask(to="client", op="find", service=name)["desc"][0]
        by_http = ask(daemon, "GET", f"/v1/services/{name}")[1]["services"][0]
        [row] = ask(daemon, "GET", f"/v1/services?where=service={name}")[1]["rows"] or [{}]
        return [{key: each.get(key) for key in TEXTS} for each in (by_elko, by_http, row or by_http)]

    with Daemon(tmp_path, *options) as daemon, ExitStack() as held:
        peer = held.enter_context(daemon.connect())
        peer.send(to="client", op="willserve", services=[{"service": "by-elko", "hostport": "h:1", **TEXTS}])
        peer.done()
        assert ask(daemon, "PUT", "/v1/services/by-http/a", {"hostport": "h:2", **TEXTS})[0] == 201
        writer = held.enter_context(peers_of(daemon)).writer("registry", "service/by-mtl", confirm="full")
        descriptor = json.dumps({"type": "servicedesc", "service": "by-mtl", "hostport": "h:3", **TEXTS}).encode()
        assert writer.settled(writer.write(descriptor, "service/by-mtl", {"type": "offer"})) == []
        for name in ("by-elko", "by-http", "by-mtl"):
            assert shown(daemon, name) == [TEXTS] * 3, name
        daemon.signal(signal.SIGTERM)
        daemon.ended()
    segments = (tmp_path / "state" / "journal" / "segments").glob("*/*/*.gz")
    records = [json.loads(line) for each in segments for line in gzip.decompress(each.read_bytes()).splitlines()]
    registered = [record for record in records if record["event"] == "register"]
    assert {record["service"]: record["zone"] for record in registered} == dict.fromkeys(
        ("by-elko", "by-http", "by-mtl"), TEXTS["zone"]
    )
    with Daemon(tmp_path, *options) as daemon:
        for name in ("by-elko", "by-http", "by-mtl"):
            assert shown(daemon, name)[:2] == [TEXTS] * 2, name


def test_other_brokers_of_a_cluster_have_them() -> None:
    service = Service("bank", "h:1", 7, **{**TEXTS, "tags": tuple(TEXTS["tags"])})
    provider = Provider(7, "it", "elko", "192.0.2.1:1", 0.0, 0.0, ())
    key = key_of("elko", service, NOBODY)
    value = layout.registration_value(Registration(key, provider, service, 1), "east")
    assert layout.registration(key, value).service == service


def test_a_text_that_is_not_given_is_none() -> None:
    assert all(getattr(Service("bank", "h:1", 7), name) is None for name in DESCRIPTIONS)
    assert set(DESCRIPTIONS) <= {field.name for field in attrs.fields(Service)}
