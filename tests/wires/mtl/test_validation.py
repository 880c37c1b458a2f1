"""Problems of MTL's values."""

import sys

import pytest

from broker.app.configuration import Config, problems
from broker.wires.dbp.dbp_settings import Dbp
from broker.wires.mc0.mc0_settings import Mc0
from broker.wires.mtl.mtl_settings import MAX_HOSTS, Mtl, MtlQueue, split_password

SECRET = "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6"


def wrong(**keys: object) -> list[tuple[str, str]]:
    """The keys, without "mtl." before them, and what is said of them."""
    return [(key.removeprefix("mtl."), text) for key, text in problems(Config(mtl=Mtl(**keys)))]  # type: ignore[arg-type]


def test_the_defaults_are_good() -> None:
    assert wrong() == []


@pytest.mark.parametrize(
    ("keys", "key", "text"),
    [
        ({"endpoint": "5975"}, "endpoint", "is no ZeroMQ endpoint"),
        ({"data_port": 65_536}, "data_port", "between 0 and 65535"),
        ({"endpoint": "tcp://127.0.0.1:65535"}, "data_port", "no port after 65535"),
        ({"endpoint": "ipc:///run/mtl", "data_port": 1}, "data_port", "has no effect"),
        ({"endpoint": "systemd:domain=INET:name=mtl"}, "endpoint", "systemd socket mtl can be reached from other"),
        ({"endpoint": "systemd:domain=INET"}, "endpoint", "either index=N or name=NAME"),
        ({"data_endpoint": "systemd:domain=INET:name=mtl"}, "data_endpoint", "must begin with tcp:// or ipc://"),
        ({"data_endpoint": "here"}, "data_endpoint", "is no ZeroMQ endpoint"),
        ({"data_endpoint": "tcp://*:5976"}, "data_endpoint", "is no address that a client can reach"),
        ({"data_endpoint": "tcp://127.0.0.1:0"}, "data_endpoint", "is no address that a client can reach"),
        ({"endpoint": "tcp://*:1", "data_port": 1}, "endpoint", "0.0.0.0:1 can be reached from other machines"),
        ({"secret_key": "short"}, "secret_key", "is no CURVE key"),
        ({"hosts": ()}, "hosts", "is empty"),
        ({"queue_store": "mysql://u@h/d"}, "queue_store", "must be postgresql://"),
        ({"queue_store": "postgresql://u@h:x/d"}, "queue_store", "is no URL"),
        ({"queue_store": "postgresql://u@h"}, "queue_store", "names no database"),
        ({"queue_store": "postgresql://u@h/d?password=x"}, "queue_store", "has a secret among its options"),
        ({"queue_store_password": "x"}, "queue_store_password", "has no effect without queue_store"),
        ({"queue_store_password_file": "x"}, "queue_store_password_file", "has no effect without queue_store"),
        ({"hosts": ("a", "a")}, "hosts[1]", "is there twice"),
        ({"hosts": ("a\n",)}, "hosts[0]", "printable"),
        ({"hosts": tuple(map(str, range(MAX_HOSTS + 1)))}, "hosts", "more than"),
        ({"queues": (MtlQueue(queues=()),)}, "queues[0].queues", "is for no queue"),
        ({"queues": (MtlQueue(queues=("",)),)}, "queues[0].queues[0]", "is empty"),
        ({"queues": (MtlQueue(deliveries=0),)}, "queues[0].deliveries", "must be between"),
    ],
)
def test_one_thing_is_wrong(keys: dict[str, object], key: str, text: str) -> None:
    ((found, said),) = wrong(**keys)
    assert found == key
    assert text in said


def test_queues_that_are_good() -> None:
    assert wrong(queues=(MtlQueue(("a", "b*"), durable=True),), secret_key=SECRET, plain=True) == []


@pytest.mark.parametrize(
    ("endpoint", "port", "data"),
    [
        ("tcp://127.0.0.1:5975", None, "127.0.0.1:5976"),
        ("tcp://127.0.0.1:0", None, "127.0.0.1:0"),
        ("tcp://[::1]:7", 9, "[::1]:9"),
        ("tcp://127.0.0.1:7", 0, "127.0.0.1:0"),
        ("tcp://127.0.0.1:0", 0, "127.0.0.1:0"),
        ("tcp://127.0.0.1:7", 7, None),
        ("ipc:///run/mtl", None, None),
        ("systemd:domain=INET:name=mtl", None, None),
    ],
)
def test_where_data_flows_are_bound(endpoint: str, port: int | None, data: str | None) -> None:
    place = Mtl(endpoint=endpoint, data_port=port).data_place
    assert (place and place.where) == data


def test_both_ports_may_be_taken() -> None:
    config = Config(mc0=Mc0(endpoint="tcp://127.0.0.1:5976"), dbp=Dbp(endpoint="tcp://127.0.0.1:5975"))
    assert problems(config) == [
        ("mtl.endpoint", "127.0.0.1:5975 is taken by dbp.endpoint"),
        ("mtl.endpoint", "127.0.0.1:5976 is taken by mc0.endpoint"),
    ]
    config = Config(mc0=Mc0(endpoint="tcp://127.0.0.1:7"), mtl=Mtl(data_port=7))
    assert problems(config) == [("mtl.data_port", "127.0.0.1:7 is taken by mc0.endpoint")]


def test_a_queue_store_needs_psycopg(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wrong(queue_store="postgresql://u@h/d") == []
    monkeypatch.setitem(sys.modules, "psycopg", None)
    [(key, text)] = wrong(queue_store="postgresql://u@h/d")
    assert key == "queue_store"
    assert "elkobroker[daemon,postgresql]" in text


def test_a_password_leaves_the_url_of_the_queue_store() -> None:
    assert split_password("postgresql://u:a%2Fb@h:1/d?x=1") == ("postgresql://u@h:1/d?x=1", "a/b")
    assert split_password("postgresql://u@h/d") == ("postgresql://u@h/d", None)
    assert split_password("postgresql://[u:x@h/d") == ("postgresql://[u:x@h/d", None)
