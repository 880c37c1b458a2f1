"""The command ``cluster``: the brokers that share one registry, and the files of a new cluster."""

from __future__ import annotations

import os
import re
import secrets
import tomllib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import attrs
import click

from broker.brokerctl.answers import Exit, Failure, mapping, rows, usage
from broker.brokerctl.command_session import remote, session_of
from broker.brokerctl.list_commands import Selection, fetch
from broker.brokerctl.output import Column, text
from broker.brokerctl.plain_client import ApiClient
from broker.brokerctl.user_commands import editing

# The command ``cluster``: the brokers that share one registry, their lag, and the owners of queues.

MEMBERS = [
    Column("member"),
    Column("here"),
    Column("linked"),
    Column("draining"),
    Column("lag_ms"),
    Column("providers"),
    Column("services"),
    Column("version"),
    Column("listeners", wide=True),
    Column("link", wide=True),
    Column("instance", wide=True),
]

CLAIMS = [Column("queue"), Column("space"), Column("owner"), Column("endpoint")]

ETCD = [
    *map(Column, ("endpoint", "state", "since", "version", "size", "used", "defragment", "leases", "clock", "reason"))
]

ALL = Selection(limit=None)
"""All rows of a table."""


@click.group(invoke_without_command=True)
@remote
@click.pass_context
def cluster(context: click.Context) -> int | None:
    """Show the brokers of the cluster, the members of etcd and the owners of queues.

    The exit code is 1 if the broker that answers is degraded: it cannot reach etcd, a member of etcd or an expected
    broker is away, for example.
    """
    if context.invoked_subcommand is not None:
        return None
    session = session_of(context)

    async def ask(client: ApiClient) -> tuple[Mapping[str, Any], Sequence[Any], Sequence[Any]]:
        about = mapping(await client.get("/v1/cluster"))
        if about.get("clustered") is not True:
            return about, [], []
        claims, etcd = [await fetch(client, f"/v1/views/cluster/{each}", ALL) for each in ("claims", "etcd")]
        return about, rows(claims), rows(etcd)

    about, owned, etcd = session.run(ask)
    output = session.output
    degraded = rows(about, "degraded")
    if not output.for_people:
        output.values({**about, "queues": owned, "etcd": etcd})
    elif about.get("clustered") is not True:
        output.note("this broker runs alone: its configuration has no etcd")
    else:
        output.say(f"{text(about.get('name'))} of the farm {text(about.get('farm'))}", "bold")
        output.rows(rows(about, "members"), MEMBERS)
        output.say("")
        output.rows(etcd, ETCD)
        if owned:
            output.say("")
            output.rows(owned, CLAIMS)
        for each in degraded:
            output.say(f"degraded: {text(each.get('what'))}: {text(each.get('reason'))}", "bold yellow")
    return Exit.FAILED if degraded else Exit.OK


# The command ``cluster init``: the configuration, the users and the certificates of a new cluster.

ETC = "/etc/elkobroker"
"""Directory of the files at each machine."""

CONFIG = "elkobroker.toml"
USERS = "users.toml"
CA, CERTIFICATE, KEY = "ca.pem", "broker.pem", "broker.key"
"""The files of each machine."""

YEARS = 10
"""Years for which the certificates are valid: they are known to the machines of one cluster only."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
HOST = re.compile(r"[A-Za-z0-9._-]{1,255}")

TEMPLATE = """# Broker {name} of the cluster {farm}, by: brokerctl cluster init
[elko]
[[elko.listeners]]
endpoint = "tcp:9000{interface}"
publish = "{place}:9000"

[http]
endpoint = "tls:9080{interface}:certificate={etc}/broker.pem:key={etc}/broker.key"

[mtl]
endpoint = "tcp://{bind}:5975"

[access]
file = "users.toml"
"""

SECTION = """
[cluster]
etcd = ["embedded"]
members = [{members}]
name = "{name}"
farm = "{farm}"
link = "tcp://{bind}:9002"
{adopts}ca = "{prefix}ca.pem"
certificate = "{prefix}broker.pem"
key = "{prefix}broker.key"
"""

ADOPTED = "cluster-"
"""Prefix of the files of the members beside those of a configuration that exists."""

RIGHTS = """
[[rights]]
users = ["admin"]
operations = ["*"]

[[rights]]
users = ["service"]
operations = ["find", "offer", "publish", "subscribe"]
"""


@attrs.frozen
class Machine:
    """A machine of the cluster: the name of its broker, and the host under which others reach it."""

    name: str
    host: str

    @classmethod
    def parse(cls, given: str) -> Machine:
        """Return the machine of ``NAME=HOST``, or of a host, whose first label is the name then."""
        name, equals, place = given.rpartition("=")
        host = place[1:-1] if place.startswith("[") and place.endswith("]") else place
        name = name if equals else host if _is_address(host) else host.partition(".")[0]
        six = place != host or ":" in host
        # The scope of a link-local address differs from machine to machine.
        known = _is_address(host) and ":" in host and "%" not in host if six else HOST.fullmatch(host)
        if not known or not NAME.fullmatch(name.replace(":", "-")):
            raise usage(f"{given!r} is no machine: give HOST or NAME=HOST")
        return cls(name.replace(":", "-"), host)

    @property
    def place(self) -> str:
        """The host in front of a port."""
        return f"[{self.host}]" if ":" in self.host else self.host


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


@cluster.command()
@click.argument("machines", nargs=-1, required=True, metavar="MACHINE...")
@click.option(
    "--out", "out", default="cluster", show_default=True, type=click.Path(file_okay=False), help="A new directory."
)
@click.option("--farm", default="default", show_default=True, help="Name of the cluster.")
def init(machines: Sequence[str], out: str, farm: str) -> None:
    """Write the files of a new cluster, one directory for each MACHINE: HOST or NAME=HOST.

    Each machine runs a broker and a member of etcd, which talk to the others by TLS. Nothing is sent anywhere: copy
    each directory to its machine. Of the passwords only verifiers are kept; they are printed once.
    """
    # Without the libraries of the daemon it fails, before anything is written.
    editing()
    members, folder = _begun(machines, out, farm)
    passwords = {name: secrets.token_urlsafe(15) for name in ("admin", "service")}
    users = _users(folder / USERS, passwords)
    for machine in members:
        _write(folder / machine.name / CONFIG, (_listeners(machine, farm) + _section(machine, members, farm)).encode())
        _write(folder / machine.name / USERS, users)
    (folder / USERS).unlink()
    for machine in members:
        click.echo(f"{folder / machine.name}: copy its files to {ETC} on {machine.host}")
    click.echo("On each of them, with etcd installed (Debian: etcd-server):")
    click.echo(f"    twistd -n elkobroker --config {ETC}/{CONFIG}")
    for name, password in passwords.items():
        click.echo(f"password of {name}: {password}")
    click.echo(
        f"brokerctl --url https://{members[0].place}:9080 --ca {folder / members[0].name / CA} --user admin cluster"
    )


@cluster.command()
@click.argument("config", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("machines", nargs=-1, required=True, metavar="MACHINE...")
@click.option(
    "--out", "out", default="cluster", show_default=True, type=click.Path(file_okay=False), help="A new directory."
)
@click.option("--farm", default="default", show_default=True, help="Name of the cluster.")
def adopt(config: Path, machines: Sequence[str], out: str, farm: str) -> None:
    """Make the broker of a configuration file, on the first MACHINE, a cluster with the other ones.

    Its services, instances and durable queues go on. Each machine gets its configuration with a section [cluster], and
    certificates for the members; the listeners, users and other files are as they were. The running broker is not
    asked.
    """
    try:
        text = config.read_text()
        content = tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise Failure(f"{config} cannot be read: {error}") from None
    if "cluster" in content:
        raise Failure(f"{config} has a section [cluster] already")
    members, folder = _begun(machines, out, farm, ADOPTED)
    for machine in members:
        section = _section(machine, members, farm, ADOPTED, "" if machine is members[0] else members[0].name)
        _write(folder / machine.name / config.name, (text.rstrip() + "\n" + section).encode())
    first, *others = members
    for machine in others:
        click.echo(f"{folder / machine.name}: copy its files, and those that {config.name} names, to {machine.host}")
    click.echo("There, with etcd installed (Debian: etcd-server), start the broker: it waits for the others.")
    click.echo(f"{folder / first.name}: copy its files to the directory of {config} on {first.host}")
    click.echo("Restart the broker there, with its state directory: its services are found at all brokers then.")


def _begun(machines: Sequence[str], out: str, farm: str, prefix: str = "") -> tuple[list[Machine], Path]:
    """Return the machines and the new directory, which has a certificate for each of them. Raises `Failure`."""
    members = [Machine.parse(each) for each in machines]
    if len({each.name for each in members}) < len(members) or len({each.host for each in members}) < len(members):
        raise usage("two machines have the same name or host: give NAME=HOST")
    if not NAME.fullmatch(farm):
        raise usage(f"{farm!r} is no name of a cluster")
    folder = Path(out)
    if folder.exists():
        raise Failure(f"{out} exists already: a second set of certificates would not fit those that are in use")
    folder.mkdir(mode=0o700, parents=True)
    authority = Authority(farm)
    for machine in members:
        place = folder / machine.name
        place.mkdir(mode=0o700)
        certificate, key = authority.certify(machine)
        _write(place / f"{prefix}{CA}", authority.certificate)
        _write(place / f"{prefix}{CERTIFICATE}", certificate)
        _write(place / f"{prefix}{KEY}", key)
    _write(folder / "ca.key", authority.key)
    return members, folder


def _bind(machine: Machine) -> str:
    """Return the address of listeners: all, unless the host is an address, which may be one of several of a machine."""
    return machine.place if _is_address(machine.host) else "*"


def _listeners(machine: Machine, farm: str) -> str:
    bind = _bind(machine)
    interface = "" if bind == "*" else ":interface=" + machine.host.replace(":", r"\\:")
    return TEMPLATE.format(etc=ETC, name=machine.name, farm=farm, place=machine.place, interface=interface, bind=bind)


def _section(machine: Machine, members: Sequence[Machine], farm: str, prefix: str = "", adopts: str = "") -> str:
    return SECTION.format(
        adopts=f'adopts = "{adopts}"\n' if adopts else "",
        prefix=prefix,
        name=machine.name,
        farm=farm,
        bind=_bind(machine),
        members=", ".join(f'"{each.name}={each.place}"' for each in members),
    )


def _users(path: Path, passwords: Mapping[str, str]) -> bytes:
    """Return the users file, which is made at a path."""
    edit = editing()
    for name, password in passwords.items():
        edit.add_user(str(path), name)
        edit.set_password(str(path), name, password)
    return path.read_bytes() + RIGHTS.encode()


def _write(path: Path, data: bytes) -> None:
    """Write a file that only its owner may read."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


class Authority:
    """A new authority for the certificates of a cluster."""

    def __init__(self, farm: str) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec

        self._key = ec.generate_private_key(ec.SECP256R1())
        # Without a common name: the gateway of etcd refuses clients that have one.
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, f"elkobroker {farm}")])
        ca = x509.BasicConstraints(ca=True, path_length=0)
        self.certificate = self._signed(self._name, self._key.public_key(), (ca, True))
        self.key = _private(self._key)

    def certify(self, machine: Machine) -> tuple[bytes, bytes]:
        """Return the certificate and the key of a machine, in PEM."""
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509 import oid

        key = ec.generate_private_key(ec.SECP256R1())
        host = machine.host
        at = x509.IPAddress(ip_address(host)) if _is_address(host) else x509.DNSName(host)
        names = x509.SubjectAlternativeName([at, x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))])
        # Of a server and a client: etcd's gateway connects to itself by it.
        usage = x509.ExtendedKeyUsage([oid.ExtendedKeyUsageOID.SERVER_AUTH, oid.ExtendedKeyUsageOID.CLIENT_AUTH])
        subject = x509.Name([x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, machine.name)])
        return self._signed(subject, key.public_key(), (names, False), (usage, False)), _private(key)

    def _signed(self, subject: Any, key: Any, *extensions: tuple[Any, bool]) -> bytes:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.serialization import Encoding

        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder(self._name, subject, key, x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))  # the clocks of the machines may differ
            .not_valid_after(now + timedelta(days=365 * YEARS))
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)


def _private(key: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    data: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return data
