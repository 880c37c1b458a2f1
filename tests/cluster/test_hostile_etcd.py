"""Real brokers with an etcd that others fill, lock or write to, and with others of their name."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.brokers import Broker, Brokers
from tests.cluster.etcd.authority import Authority
from tests.cluster.real_etcd import Etcd, base64_text
from tests.integration.mc0_clients import whole_log
from tests.patience import until

PREFIX = "/elkobroker/default/"

ATTACK = 4.0
"""Seconds of a stranger's writes, some hundred transactions."""

LINES = 400
"""Limit of the log lines for them: a hundred bad values, and those of links that are not possible."""


def defects(broker: Broker) -> list[str]:
    """Return the lines of an ended broker's log that no input excuses."""
    lines = whole_log(broker).splitlines()
    return [each for each in lines if "Traceback" in each or (" critical " in each and "elkobroker ends: " not in each)]


# strangers who write


def _garbage(rng: random.Random) -> tuple[str, str]:
    """Return a key under the prefix, and a value that may be one of the layout."""
    number = rng.randrange(10**9, 10**10)
    provider = {
        "broker": "evil",
        "label": rng.choice(["x", "\ud800"]),
        "wire": rng.choice(["elko", "a wire\nof nobody"]),
        "services": [{"name": rng.choice(["shop", "a\nb"]), "hostport": "h:1", "info": '{"a":"\\ud800"}'}],
        "replaces": [number - 1],
    }
    link, key = rng.choice(["", "garbage", "127.0.0.1:1"]), rng.choice(["", "k" * 40])
    member = {"instance": rng.choice(["1", "\ud800"]), "link": link, "key": key, "listeners": {"mtl": "\udfff"}}
    rest, value = rng.choice(
        [
            (f"p/{number:016}", provider),
            (f"p/{number:016}/000001.0", provider),
            (rng.choice(["b/evil", "b/evil\n", f"b/evil{number % 50}"]), member),
            (f"b/evil{number % 50}", {**member, "instance": str(number), "listeners": {}}),
            (f"l/evil/{number % 99}", {"loads": [[number, 1e300, 1, 2, 3, 4.0]]}),
            (f"beat/evil{number}", {"counter": 1, "lag": 1e300}),
            ("q/c3BhY2U=/am9icw==", {"owner": "a\n"}),
            ("q//", {"owner": "evil"}),
            (f"junk/{number}", None),
        ]
    )
    text = json.dumps(value)
    return rest, rng.choice([text, text, text[:-5], "[" * 5_000, "", text.replace("{", "[")])


@pytest.mark.long
def test_writes_of_a_stranger_leave_the_brokers_and_their_logs_alone(tmp_path: Path) -> None:
    rng = random.Random(18)
    with Brokers(tmp_path, "a", "b") as brokers:
        places = [f"10.0.0.{number}:80" for number in range(20)]
        for number, place in enumerate(places):
            brokers["ab"[number % 2]].offer("bank", place, str(number))
        brokers.see("bank", *places)
        lease = brokers.etcd.ask("lease/grant", {"TTL": 600})["ID"]
        pair = [brokers["a"], brokers["b"]]
        end = time.monotonic() + ATTACK
        while time.monotonic() < end:
            puts = dict(_garbage(rng) for _ in range(50))
            if rng.random() < 0.1:
                puts[f"p/{rng.randrange(10**9):016}"] = "x" * 900_000
            under = {"lease": lease} if rng.random() < 0.5 else {}
            operations = [
                {"request_put": {"key": base64_text(PREFIX + rest), "value": base64_text(value), **under}}
                for rest, value in puts.items()
            ]
            brokers.etcd.ask("kv/txn", {"success": operations})
            if rng.random() < 0.2:
                ends = {"key": base64_text(f"{PREFIX}b/evil"), "range_end": base64_text(f"{PREFIX}b/evim")}
                brokers.etcd.ask("kv/deleterange", ends)
            for each in pair:
                assert sorted(each.found("bank")) == sorted(places)
        for each in pair:
            for path in ("cluster", "providers", "services", "loads"):
                each.get(f"/v1/{path}")
        brokers["a"].offer("mint", "10.0.1.1:80")
        brokers.see("mint", "10.0.1.1:80")
        for name in ("a", "b"):
            broker = brokers[name]
            brokers.kill(name)
            assert defects(broker) == []
            assert len(broker.log) < LINES


@pytest.mark.long
def test_a_name_that_a_stranger_overwrites_is_taken_back(tmp_path: Path) -> None:
    with Brokers(tmp_path, "a", "b") as brokers:
        brokers["a"].offer("bank", "10.0.0.1:80")
        brokers.see("bank", "10.0.0.1:80")
        for value in ("a stranger's", '{"instance":"5e7c"}'):
            brokers.etcd.put(f"{PREFIX}b/a", value)
            until(lambda: brokers["b"].members() == ["b"], "the name is lost")
            until(lambda: brokers["b"].members() == ["a", "b"], "the name is taken back")
            brokers.see("bank", "10.0.0.1:80")


# one name


@pytest.mark.long
def test_one_of_many_brokers_that_start_with_one_name_serves(tmp_path: Path) -> None:
    with Brokers(tmp_path) as brokers:
        several = [brokers.launch("a", directory=f"a{number}") for number in range(6)]
        until(lambda: [each.process.poll() for each in several].count(None) == 1, "all but one end")
        [one] = [each for each in several if each.process.poll() is None]
        assert one.members() == ["a"]
        one.offer("bank", "10.0.0.1:80")
        for each in several:
            if each is not one:
                assert (each.ended(), defects(each)) == (1, [])
                each.wait_for("elkobroker ends: another broker at .* has the name a")


@pytest.mark.long
def test_a_suspended_broker_whose_name_another_has_taken_ends(tmp_path: Path) -> None:
    with Brokers(tmp_path, "a", "b") as brokers:
        first = brokers.running.pop("a")
        first.offer("bank", "10.0.0.1:80")
        brokers.see("bank", "10.0.0.1:80")
        first.process.send_signal(signal.SIGSTOP)
        until(lambda: brokers["b"].members() == ["b"], "the end of the lease")
        second = brokers.running["a"] = brokers.launch("a", directory="second")
        second.wait_for("console on")
        second.offer("bank", "10.0.0.2:80")
        brokers.see("bank", "10.0.0.2:80")
        first.process.send_signal(signal.SIGCONT)
        assert (first.ended(), defects(first)) == (1, [])
        first.wait_for("elkobroker ends: another broker at .* has the name a")
        brokers.see("bank", "10.0.0.2:80")


# credentials


@pytest.mark.long
def test_wrong_credentials_end_the_start_with_a_sentence(tmp_path: Path) -> None:
    with Brokers(tmp_path) as brokers:
        brokers.etcd.enable_auth("broker", "secret")
        for name, config, sentence in (
            ("none", "", "user name is empty|requires a user|authentication"),
            ("wrong", 'user = "broker"\npassword = "wrong"\n', "password"),
        ):
            broker = brokers.launch(name, config=config)
            assert (broker.ended(), defects(broker)) == (1, [])
            broker.wait_for(f"elkobroker ends: etcd refuses this broker: .*({sentence})")
        brokers.start("right", config='user = "broker"\npassword = "secret"\n')


@pytest.mark.long
def test_wrong_certificates_end_the_start_with_a_sentence(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    own = authority.client()
    etcd: dict[str, Any] = {"tls": authority.server(), "client_ca": authority.file, "own": own}
    with Brokers(tmp_path, **etcd) as brokers:
        for name, ca, certificate, sentence in (
            ("other-authority", stranger, own, "not of an authority that this broker trusts"),
            ("no-certificate", authority, None, "requires a client certificate"),
            ("expired", authority, authority.client("expired", ends=-1), "expired"),
            ("foreign", authority, stranger.client("foreign"), "refuses the client certificate"),
        ):
            broker = brokers.launch(name, config=_tls(ca, certificate))
            assert (broker.ended(), defects(broker)) == (1, [])
            broker.wait_for(f"elkobroker ends: .*{sentence}")
        brokers.start("right", config=_tls(authority, own))


def _tls(ca: Authority, certificate: tuple[Path, Path] | None) -> str:
    """Return the keys of the configuration for an authority and a client certificate."""
    keys = {
        "ca": ca.file,
        **({} if certificate is None else dict(zip(("certificate", "key"), certificate, strict=True))),
    }
    return "".join(f'{name} = "{file}"\n' for name, file in keys.items())


# no space


@pytest.mark.long
def test_a_broker_that_restarts_while_etcd_has_no_space_serves_what_the_others_have(tmp_path: Path) -> None:
    with Brokers(tmp_path, "a", "b", ttl=10, options=["--quota-backend-bytes", "2000000"]) as brokers:
        brokers["b"].offer("bank", "10.0.0.1:80")
        brokers["a"].offer("mint", "10.0.0.2:80")
        brokers.see("bank", "10.0.0.1:80")
        brokers.see("mint", "10.0.0.2:80")
        brokers.etcd.fill()
        brokers.kill("a")
        a = brokers.start("a")
        assert a.found("bank") == ["10.0.0.1:80"]
        assert "etcd has no space" in str(a.degraded())
        assert brokers["b"].call("DELETE", "/v1/services/bank/1")[0] == 204
        until(lambda: a.found("bank") == [], "the departure")
        brokers.kill("a")
        until(lambda: brokers["b"].members() == ["b"], "the end of the lease")
        brokers["b"].offer("bank", "10.0.0.3:80", "2")
        a = brokers.start("a")
        assert (a.members(), brokers["b"].members(), brokers["b"].found("mint")) == (["a", "b"], ["b"], [])
        assert "etcd has no space" in str(a.degraded())
        _make_space(brokers.etcd)
        brokers.see("bank", "10.0.0.3:80")
        until(lambda: not a.degraded(), "the broker is whole again")


def _make_space(etcd: Etcd) -> None:
    """Delete what `Etcd.fill` wrote, and end the alarm, as an operator does."""
    etcd.ask("kv/deleterange", {"key": base64_text("/fill/"), "range_end": base64_text("/fill0")})
    etcd.ask("kv/compaction", {"revision": etcd.revision()})
    etcd.ask("maintenance/defragment")
    for alarm in etcd.ask("maintenance/alarm", {})["alarms"]:
        etcd.ask("maintenance/alarm", {"action": "DEACTIVATE", "alarm": "NOSPACE", "memberID": alarm["memberID"]})
