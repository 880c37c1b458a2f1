"""The section of the cluster: its problems, its names, what --check says, and the options of the command line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from broker.app.configuration import Config, parse, report, settings
from broker.config.cluster_settings import MAX_ENDPOINTS, MAX_NAME, Cluster
from broker.config.key_checks import BadConfig
from tests.config.bad_values import assert_one_problem
from tests.config.certificates import certificate
from tests.config.command_line import configured

HERE = "[cluster]\n"
URL = "must be http://HOST:PORT or https://HOST:PORT, without user, path or query"
NAME = "must have 1 to 64 letters, digits, dots, hyphens and underscores, the first a letter or digit"
ETCD = 'etcd = ["https://e:2379"]\n'
EMBEDDED = 'etcd = ["embedded"]\n'

BAD = [
    (HERE + 'etcd = ["e:2379"]', 2, "cluster.etcd[0]", URL),
    (HERE + 'etcd = ["ftp://e:2379"]', 2, "cluster.etcd[0]", URL),
    (HERE + 'etcd = ["http://root:secret@e:2379"]', 2, "cluster.etcd[0]", URL),
    (HERE + 'etcd = ["http://e:2379/v3"]', 2, "cluster.etcd[0]", URL),
    (HERE + 'etcd = ["http://e:2379?x"]', 2, "cluster.etcd[0]", URL),
    (HERE + 'etcd = ["http://e:99999"]', 2, "cluster.etcd[0]", URL),
    (HERE + 'etcd = ["http://[::1"]', 2, "cluster.etcd[0]", URL),
    (HERE + 'etcd = ["http://"]', 2, "cluster.etcd[0]", URL),
    (HERE + 'etcd = ["http://a b"]', 2, "cluster.etcd[0]", URL),
    (HERE + 'etcd = ["http://e:1", "http://e:1"]', 2, "cluster.etcd[1]", "is given twice"),
    (HERE + 'etcd = ["http://e:1", "https://f:1"]', 2, "cluster.etcd", "mixes http and https"),
    (
        HERE + f"etcd = {[f'http://e:{n}' for n in range(1, MAX_ENDPOINTS + 2)]}",
        2,
        "cluster.etcd",
        f"more than {MAX_ENDPOINTS}",
    ),
    (HERE + 'etcd = ["embedded"]', 2, "cluster.etcd", "needs cluster.members as well"),
    (HERE + 'etcd = ["embedded", "http://e:1"]', 2, "cluster.etcd[0]", URL),
    (HERE + EMBEDDED + 'name = "b"\nmembers = ["a=127.0.0.1"]', 4, "cluster.members", "has no member b"),
    (
        HERE + EMBEDDED + 'name = "a"\nmembers = ["a=10.0.0.1"]',
        2,
        "cluster.etcd",
        "needs a certificate, a key and a ca",
    ),
    (HERE + EMBEDDED + 'name = "a"\nmembers = ["a"]', 4, "cluster.members[0]", "must be NAME=HOST or NAME=HOST:PORT"),
    (HERE + EMBEDDED + 'name = "a"\nmembers = ["a=127.0.0.1:65535"]', 4, "cluster.members[0]", "must be NAME=HOST"),
    (HERE + EMBEDDED + 'name = "a"\nmembers = ["a=b c"]', 4, "cluster.members[0]", "must be NAME=HOST"),
    (
        HERE + EMBEDDED + 'name = "a"\nmembers = ["a=127.0.0.1", "b=127.0.0.1"]',
        4,
        "cluster.members[1]",
        "has the name or the address of an earlier one",
    ),
    (
        HERE + EMBEDDED + 'name = "a"\nmembers = ["a=127.0.0.1"]\nuser = "x"\npassword = "y"',
        5,
        "cluster.user",
        "has no effect",
    ),
    (HERE + 'etcd_program = ""', 2, "cluster.etcd_program", "must be a path, or a name on PATH"),
    (HERE + 'name = ""', 2, "cluster.name", NAME),
    (HERE + 'name = "a/b"', 2, "cluster.name", NAME),
    (HERE + 'name = "-a"', 2, "cluster.name", NAME),
    (HERE + f'name = "{"x" * (MAX_NAME + 1)}"', 2, "cluster.name", NAME),
    (HERE + 'farm = "a b"', 2, "cluster.farm", NAME),
    (HERE + "ttl = 4", 2, "cluster.ttl", "must be between 5 and 300, not 4"),
    (HERE + "gather = nan", 2, "cluster.gather", "is no key any more: it is 0.03 s. Remove it"),
    (HERE + 'link = "tcp:9002"', 2, "cluster.link", "is no ZeroMQ endpoint"),
    (HERE + 'link = "ipc:///run/x"', 2, "cluster.link", "must be tcp://ADDRESS:PORT"),
    (HERE + 'advertise = "host:9002"', 2, "cluster.advertise", "without a port"),
    (HERE + 'advertise = ""', 2, "cluster.advertise", "without a port"),
    (HERE + 'certificate = "/x"', 2, "cluster.certificate", "needs cluster.key as well"),
    (HERE + 'key = "/x"', 2, "cluster.key", "needs cluster.certificate as well"),
    (HERE + ETCD + 'certificate = "/no"\nkey = "/no"', 3, "cluster.certificate", "/no cannot be read"),
    (HERE + ETCD + 'ca = "/no"', 3, "cluster.ca", "/no cannot be read"),
    (HERE + ETCD + 'ca = "/dev/null"', 3, "cluster.ca", "is no regular file"),
    (HERE + 'ca = ""', 2, "cluster.ca", "is no path"),
    (HERE + 'user = "u"', 2, "cluster.user", "needs cluster.password_file or cluster.password"),
    (HERE + 'user = ""\npassword = "p"', 2, "cluster.user", "is no name of a user"),
    (HERE + 'password = "p"', 2, "cluster.password", "needs cluster.user as well"),
    (HERE + 'user = "u"\npassword = ""', 3, "cluster.password", "is empty"),
    (HERE + 'user = "u"\npassword_file = "/no/such"', 3, "cluster.password_file", "cannot be read"),
]


@pytest.mark.parametrize(("text", "line", "key", "why"), BAD)
def test_bad_values(text: str, line: int, key: str, why: str) -> None:
    assert_one_problem(text, line, key, why)


def test_tls_files_have_no_effect_over_http(tmp_path: Path) -> None:
    made, _ = certificate(tmp_path, "ca")
    with pytest.raises(BadConfig, match="has no effect"):
        parse(f'[cluster]\netcd = ["http://e:2379"]\nca = "{made}"\n', "x")


@pytest.mark.parametrize(
    "text",
    [
        'etcd = ["http://127.0.0.1:2379"]',
        'etcd = ["https://[::1]:2379", "https://etcd-2.example.org"]',
        'etcd = ["http://e:2379/"]\nname = "7a.b_c-"\nfarm = "x"\nttl = 5',
        'link = "tcp://*:9002"\nadvertise = "10.0.0.1"',
        'link = "tcp://[::]:9002"\nadvertise = "broker_a.example.org"',
        'user = "u"\npassword = "p"',
    ],
)
def test_good_values(text: str) -> None:
    assert parse(HERE + text, "x").cluster != Cluster()


def test_the_password_is_read_from_its_file_and_never_shown(tmp_path: Path) -> None:
    (tmp_path / "pw").write_text("sesame\n")
    config = parse(HERE + 'user = "u"\npassword_file = "pw"\n', str(tmp_path / "x.toml"))
    assert config.cluster.password == "sesame"
    assert "sesame" not in repr(config)
    assert {each.key: each.value for each in settings(config)}["cluster.password"] == "(hidden)"


@pytest.mark.parametrize(
    ("cluster", "host", "name"),
    [
        (Cluster(name="a"), "host", "a"),
        (Cluster(), "host.example.org", "host.example.org"),
        (Cluster(), "-my host_", "my-host"),
        (Cluster(), "", "broker"),
        (Cluster(), "x" * 80, "x" * MAX_NAME),
    ],
)
def test_the_name_is_the_given_one_or_that_of_the_host(cluster: Cluster, host: str, name: str) -> None:
    assert cluster.effective_name(host) == name


def test_the_urls_of_an_embedded_etcd_are_those_of_its_members_the_own_one_first() -> None:
    members = 'members = ["a=127.0.0.1", "b=[::1]", "c=127.0.0.1:4000"]'
    cluster = parse(HERE + EMBEDDED + 'name = "b"\n' + members, "x").cluster
    assert cluster.urls == ("http://[::1]:2379", "http://127.0.0.1:2379", "http://127.0.0.1:4000")


def shown(cluster: Cluster) -> list[str]:
    """The lines of --check on the cluster, on a machine that resolves names with a dot."""
    lines = report(Config(cluster=cluster), resolves=lambda host: "." in host).split("\n")
    return [line for line in lines if "cluster" in line]


def test_check_says_nothing_of_a_single_broker() -> None:
    assert shown(Cluster()) == []


def test_check_describes_a_member_on_loopback() -> None:
    assert shown(Cluster(etcd=("http://127.0.0.1:2379",), name="a")) == [
        "cluster: a of the farm default, etcd http://127.0.0.1:2379, links on tcp 127.0.0.1:0, ttl 10 s"
    ]


def test_check_warns_of_what_surprises_in_a_cluster_of_several_machines() -> None:
    warned = shown(Cluster(etcd=("http://e:2379", "http://e.org:2379"), name="a"))[1:]
    assert warned == [
        "warning: cluster.etcd: e cannot be resolved on this machine",
        "warning: cluster.link: brokers on other machines cannot reach it, and messages of topics will not pass",
        "warning: cluster: every program that reaches etcd can change the registry: see docs/cluster.md on its "
        "protection",
    ]
    (warning,) = shown(Cluster(etcd=("http://127.0.0.1:2379",), name="a", link="tcp://*:9002"))[1:]
    assert warning.startswith("warning: cluster.advertise is not given: the other brokers will connect to ")


def client(folder: Path, attribute: x509.ObjectIdentifier, days: float) -> tuple[str, str]:
    """The files of a client certificate with one attribute in its subject, and of its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(attribute, "broker")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    made = builder.not_valid_before(now - timedelta(days=30)).not_valid_after(now + timedelta(days=days))
    paths = folder / "client.pem", folder / "client.key"
    paths[0].write_bytes(made.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    paths[1].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return str(paths[0]), str(paths[1])


@pytest.mark.parametrize(
    ("attribute", "days", "warnings"),
    [
        (x509.NameOID.ORGANIZATION_NAME, 30, []),
        (x509.NameOID.ORGANIZATION_NAME, 2, ["expires within 2 days"]),
        (x509.NameOID.ORGANIZATION_NAME, -1, ["has expired"]),
        (x509.NameOID.COMMON_NAME, 30, ["has a CN, and etcd refuses such clients of its gateway"]),
    ],
)
def test_check_warns_of_client_certificates_that_etcd_refuses(
    tmp_path: Path, attribute: x509.ObjectIdentifier, days: float, warnings: list[str]
) -> None:
    made, key = client(tmp_path, attribute, days)
    lines = shown(Cluster(etcd=("https://127.0.0.1:2379",), name="a", certificate=made, key=key))
    assert "with a client certificate" in lines[0]
    assert len(lines) == 1 + len(warnings)
    assert all(warning in line for warning, line in zip(warnings, lines[1:], strict=True))


def test_the_command_line_goes_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text('[cluster]\netcd = ["http://f:1"]\nname = "file"\nttl = 20\n')
    words = ("--config", str(file), "--cluster", "http://a:1, http://b:2", "--name", "line")
    assert configured(*words).cluster == Cluster(etcd=("http://a:1", "http://b:2"), name="line", ttl=20)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--cluster", ""), f"command line: cluster.etcd[0]: {URL}\n"),
        (("--cluster", "http://a:1,"), f"command line: cluster.etcd[1]: {URL}\n"),
        (("--cluster", "http://a:1", "--name", "a b"), f"command line: cluster.name: {NAME}\n"),
    ],
)
def test_bad_options_end_the_start(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], told: str) -> None:
    with pytest.raises(SystemExit) as ended:
        configured(*words)
    assert ended.value.code == 1
    assert capsys.readouterr().err == told


def test_the_link_listener_takes_part_in_the_check_of_addresses() -> None:
    with pytest.raises(BadConfig, match=r"127\.0\.0\.1:9000 is taken by"):
        parse(HERE + ETCD + 'link = "tcp://127.0.0.1:9000"\n', "x")
    assert parse(HERE + 'link = "tcp://127.0.0.1:9000"\n', "x"), "without etcd there are no links"
