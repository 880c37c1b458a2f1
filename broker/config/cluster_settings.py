"""The section ``[cluster]``: the brokers that share one registry through etcd, and this broker's place among them."""

from __future__ import annotations

import re
import shutil
import socket
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import attrs

from broker import pem
from broker.access.identity import is_address, is_local, joined
from broker.blocking import blocking
from broker.config import endpoint, key_checks
from broker.config.key import Binding, Resolves, Section, Settings
from broker.config.key import key as setting  # one of the keys is called so
from broker.config.key_checks import Problem

MAX_ENDPOINTS = 16
"""Limit of etcd's endpoints: a cluster of etcd has three, five or seven members."""

EMBEDDED = "embedded"
"""The value of ``etcd`` for one member of etcd beside each broker."""

ETCD_PORT = 2379
"""Port of embedded members for their clients; that for each other is the next one."""

MAX_NAME = 64
"""Characters of the name of a broker and of the farm: parts of every key in etcd."""

MAX_HOST = 253
"""Characters of a host name, by DNS."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")

_FIT = f"must have 1 to {MAX_NAME} letters, digits, dots, hyphens and underscores, the first a letter or digit"


def _fits(here: str, name: str) -> Iterator[Problem]:
    if len(name) > MAX_NAME or not _NAME.fullmatch(name):
        yield Problem(here, _FIT)


@attrs.frozen
class EtcdMember:
    """A member of the embedded etcd, beside the broker ``name``: host and port for clients."""

    name: str
    host: str
    port: int = ETCD_PORT

    @classmethod
    def parse(cls, text: str) -> EtcdMember | None:
        """Return the member of ``NAME=HOST`` or ``NAME=HOST:PORT``; None for any other text."""
        name, _, place = text.partition("=")
        found = key_checks.hostport(place)
        host, port = (place.strip("[]"), ETCD_PORT) if found is None else found
        if not _NAME.fullmatch(name) or len(name) > MAX_NAME or not _is_host(host) or port > 65_534:
            return None
        return cls(name, host, port)

    def place(self, ahead: int = 0) -> str:
        """Return ``host:port``, of the port that is so many further."""
        return joined(self.host, self.port + ahead)


def _members(here: str, members: tuple[str, ...]) -> Iterator[Problem]:
    if len(members) > MAX_ENDPOINTS:
        yield Problem(here, f"has more than {MAX_ENDPOINTS} members")
    seen: dict[str, int] = {}
    for index, text in enumerate(members):
        member = EtcdMember.parse(text)
        if member is None:
            yield Problem(f"{here}[{index}]", "must be NAME=HOST or NAME=HOST:PORT, with the name of a broker")
        elif seen.setdefault(member.name, index) != index or seen.setdefault(member.place(), index) != index:
            yield Problem(f"{here}[{index}]", "has the name or the address of an earlier one")


def _urls(here: str, urls: tuple[str, ...]) -> Iterator[Problem]:
    if urls == (EMBEDDED,):
        return
    if len(urls) > MAX_ENDPOINTS:
        yield Problem(here, f"has more than {MAX_ENDPOINTS} URLs")
    schemes: set[str] = set()
    for index, url in enumerate(urls):
        scheme = _scheme(url)
        if scheme is None:
            text = "must be http://HOST:PORT or https://HOST:PORT, without user, path or query"
            yield Problem(f"{here}[{index}]", text)
        elif url in urls[:index]:
            yield Problem(f"{here}[{index}]", "is given twice")
        else:
            schemes.add(scheme)
    if len(schemes) > 1:
        yield Problem(here, "mixes http and https: the credentials would be sent in the clear as well")


def _scheme(url: str) -> str | None:
    """Return the scheme of a URL of etcd; None for any other text."""
    try:
        parts = urlsplit(url)
        good = parts.port != 0 and parts.username is None and parts.hostname and _is_host(parts.hostname)
    except ValueError:
        return None
    rest = parts.path.strip("/") or parts.query or parts.fragment
    return parts.scheme if good and not rest and parts.scheme in ("http", "https") else None


def _is_host(host: str) -> bool:
    return is_address(host.strip("[]")) or (len(host) <= MAX_HOST and _HOST.fullmatch(host) is not None)


def _host(here: str, host: str) -> Iterator[Problem]:
    if not _is_host(host):
        yield Problem(here, "must be the name or the address of this host, without a port")


def _program(here: str, program: str) -> Iterator[Problem]:
    if not program or "\0" in program:
        yield Problem(here, "must be a path, or a name on PATH")


def _user(here: str, user: str) -> Iterator[Problem]:
    if not user or not user.isprintable():
        yield Problem(here, "is no name of a user")


@attrs.frozen
class Cluster(Settings):
    """A cluster: brokers that share one registry through etcd. docs/cluster.md describes it. Without etcd the broker
    runs alone. A member keeps its name, its lease and its links until it stops: all keys need a restart."""

    etcd: tuple[str, ...] = setting(
        (),
        'URLs of etcd\'s members, such as "https://etcd1.example.org:2379"; on the command line, --cluster URL,URL. '
        '"embedded" alone: this broker runs a member of its own, from the program etcd of the system.',
        check=_urls,
    )
    members: tuple[str, ...] = setting(
        (),
        "Brokers with an embedded etcd, this one included: NAME=HOST or NAME=HOST:PORT, by default port 2379. The next "
        "port is that of the members among themselves. Three outlast the loss of one. With another etcd these are only "
        "the brokers that should be there: a missing one is a reason for `degraded`.",
        check=_members,
        example=("broker-a=broker-a.example.org", "broker-b=broker-b.example.org", "broker-c=broker-c.example.org"),
    )
    etcd_joins: bool = setting(
        False, "The embedded member joins an etcd that exists, after `etcdctl member add`, with no data of its own yet."
    )
    adopts: str | None = setting(
        None,
        "A broker that ran alone and becomes one of this cluster: at its first start, this one waits until that one is "
        "a member and has claimed its queues. `brokerctl cluster adopt` sets it.",
        check=_fits,
        example="broker-a",
    )
    etcd_program: str = setting("etcd", "Program of the embedded etcd, a path or a name on PATH.", check=_program)
    name: str | None = setting(
        None,
        "Name of this broker, unique in the cluster (--name). By default the host's name.",
        check=_fits,
        example="broker-a",
    )
    farm: str = setting(
        "default", "Name of the cluster, a part of all keys in etcd: several clusters may share an etcd.", check=_fits
    )
    # Less does not outlast a change of the leader of etcd; more leaves dead entries for minutes.
    ttl: int = setting(10, "Time after which the entries of a dead broker go.", unit="s", within=(5, 300))
    link: str = setting(
        "tcp://127.0.0.1:0",
        "Endpoint for links of the other brokers, by which topics travel: tcp://ADDRESS:PORT, or tcp://*:PORT for "
        "all addresses. Links are encrypted, and admit members of the cluster only. Port 0 is any free port.",
        check=key_checks.zmq_tcp,
    )
    advertise: str | None = setting(
        None,
        "Host under which other brokers and clients reach this broker. By default that of cluster.members, or else "
        "the address that a listener is bound to, or the host's name for a listener on all addresses.",
        check=_host,
        example="broker-a.example.org",
    )
    ca: str | None = setting(
        None,
        "Certificates that etcd's one is verified against. By default those of the system; an embedded etcd verifies "
        "its clients and the other members against them, too.",
        path=True,
        example="etcd-ca.pem",
    )
    certificate: str | None = setting(
        None,
        "Client certificate for etcd, without a CN; also that of an embedded etcd.",
        path=True,
        example="broker.pem",
    )
    key: str | None = setting(None, "Key of the client certificate.", path=True, secret_file=True, example="broker.key")
    passphrase_file: str | None = setting(
        None,
        "File that has the passphrase of the key on its only line. By default the key has none.",
        path=True,
        secret_file=True,
        example="broker.passphrase",
    )
    user: str | None = setting(None, "User of etcd.", check=_user, example="broker")
    password: str | None = setting(
        None, "Password of the user.", check=key_checks.secret, secret=True, example="change me"
    )
    password_file: str | None = setting(
        None,
        "File that has the password on its only line, relative to this file.",
        holds="password",
        example="etcd.password",
    )

    @property
    def enabled(self) -> bool:
        """True if this broker is a member of a cluster."""
        return bool(self.etcd)

    @property
    def embedded(self) -> bool:
        """True if this broker runs a member of etcd."""
        return self.etcd == (EMBEDDED,)

    @property
    def etcd_members(self) -> list[EtcdMember]:
        """The members of the embedded etcd."""
        return [member for each in self.members if (member := EtcdMember.parse(each)) is not None]

    def own_member(self) -> EtcdMember | None:
        """Return the member of the embedded etcd that this broker runs; None without one."""
        name = self.effective_name(socket.gethostname())
        return next((each for each in self.etcd_members if self.embedded and each.name == name), None)

    @property
    def scheme(self) -> str:
        """The scheme of the URLs of an embedded etcd."""
        return "http" if self.certificate is None else "https"

    @property
    def urls(self) -> tuple[str, ...]:
        """The URLs of etcd's members; those of an embedded one begin with this broker's."""
        if not self.embedded:
            return self.etcd
        own = self.own_member()
        return tuple(
            f"{self.scheme}://{each.place()}" for each in sorted(self.etcd_members, key=lambda each: each != own)
        )

    @property
    def reached_at(self) -> str | None:
        """The host under which others reach this broker; None if the configuration has none."""
        own = self.own_member()
        return self.advertise if self.advertise is not None or own is None else own.host

    def effective_name(self, host: str) -> str:
        """Return the name of this broker in the cluster: the given one, else the valid part of ``host``, the host's
        name."""
        if self.name is not None:
            return self.name
        return _UNFIT.sub("-", host).strip("._-")[:MAX_NAME] or "broker"

    def problems(self, here: str) -> Iterator[Problem]:
        """Yield files and credentials that do not go together, or cannot be used."""
        yield from self._tls(here)
        yield from self._login(here)
        yield from self._embedding(here)

    def _embedding(self, here: str) -> Iterator[Problem]:
        if not self.embedded:
            return  # ``etcd`` may be given on the command line
        if not self.members:
            yield Problem(f"{here}.etcd", f"needs {here}.members as well: the brokers that run the members of etcd")
            return
        if len(self.etcd_members) < len(self.members):
            return  # it is a problem of that key by itself
        if self.own_member() is None:
            name = self.effective_name(socket.gethostname())
            yield Problem(f"{here}.members", f"has no member {name}, the name of this broker", f"{here}.name")
        if self.certificate is None and not all(is_local(each.host) for each in self.etcd_members):
            text = "needs a certificate, a key and a ca: every program of the network could change the registry"
            yield Problem(f"{here}.etcd", f"{text} (brokerctl cluster init makes them)")
        if self.certificate is not None and self.ca is None:
            yield Problem(f"{here}.certificate", f"needs {here}.ca as well, by which members of etcd verify each other")
        if self.user is not None:
            yield Problem(f"{here}.user", "has no effect: an embedded etcd knows its clients by their certificates")

    def _tls(self, here: str) -> Iterator[Problem]:
        files = {
            name: getattr(self, name)
            for name in ("ca", "certificate", "key", "passphrase_file")
            if getattr(self, name) is not None
        }
        if any(tuple(key_checks.path(here, path)) for path in files.values()):
            return  # it is a problem of that key by itself
        if files and self.etcd and not any(url.startswith("https:") for url in self.urls):
            yield Problem(f"{here}.{next(iter(files))}", "has no effect: the URLs of etcd are http", f"{here}.etcd")
        if (self.certificate is None) != (self.key is None):
            has, lacks = ("certificate", "key") if self.key is None else ("key", "certificate")
            yield Problem(f"{here}.{has}", f"needs {here}.{lacks} as well")
        elif self.certificate is not None and self.key is not None:
            try:
                pem.Files(self.certificate, self.key, self.passphrase_file, self.ca).read()
            except ValueError as error:
                yield Problem(f"{here}.certificate", str(error))
        elif self.ca is not None:
            try:
                pem.certificates(self.ca)
            except ValueError as error:
                yield Problem(f"{here}.ca", str(error))
        if self.passphrase_file is not None and self.key is None:
            yield Problem(f"{here}.passphrase_file", f"needs {here}.key as well")

    def _login(self, here: str) -> Iterator[Problem]:
        if self.user is None:
            if self.password is not None or self.password_file is not None:
                given = "password" if self.password_file is None else "password_file"
                yield Problem(f"{here}.{given}", f"needs {here}.user as well")
        elif self.password is None and self.password_file is None:
            yield Problem(f"{here}.user", f"needs {here}.password_file or {here}.password as well")

    def bindings(self) -> Iterator[Binding]:
        """Yield the socket of links."""
        where = endpoint.parse_zmq(self.link)
        if self.enabled and where.kind == "tcp":
            yield Binding("cluster.link", "links", where.stream, members=True)

    def summary(self) -> Iterator[str]:
        """Yield a line if the broker is a member."""
        if not self.enabled:
            return
        login = [] if self.user is None else [f"as user {self.user}"]
        login += [] if self.certificate is None else ["with a client certificate"]
        yield (
            f"cluster: {self.effective_name(socket.gethostname())} of the farm {self.farm}, "
            f"etcd {' '.join([', '.join(self.etcd), *login])}"
            f"{f' ({len(self.members)} members)' if self.embedded else ''}, "
            f"links on {endpoint.parse_zmq(self.link).shown}, ttl {self.ttl} s"
        )

    def warnings(self, resolves: Resolves) -> Iterator[str]:
        """Yield warnings of endpoints that other brokers cannot reach, and of those that every program can."""
        if not self.enabled:
            return
        hosts = [urlsplit(url).hostname or "" for url in self.urls]
        for host in dict.fromkeys(hosts):
            if not resolves(host):
                yield f"cluster.etcd: {host} cannot be resolved on this machine"
        away = not all(is_local(host) for host in hosts)
        where = endpoint.parse_zmq(self.link)
        if away and where.loopback:
            yield "cluster.link: brokers on other machines cannot reach it, and messages of topics will not pass"
        if self.embedded and not _is_installed(self.etcd_program):
            yield f"cluster.etcd_program: {self.etcd_program} was not found: install etcd (Debian: etcd-server)"
        if self.embedded and len(self.members) % 2 == 0:
            yield f"cluster.members: {len(self.members)} members of etcd outlast no more losses than one less"
        if where.wildcard and self.reached_at is None:
            host = socket.gethostname()
            yield f"cluster.advertise is not given: the other brokers will connect to {host}"
        if away and self.certificate is None and self.user is None:
            why = "every program that reaches etcd can change the registry"
            yield f"cluster: {why}: see docs/cluster.md on its protection"
        if self.certificate is not None:
            yield from _certificate_warnings(self.certificate)


@blocking
def _is_installed(program: str) -> bool:
    """Return True if a program is found in the PATH."""
    return shutil.which(program) is not None


def _certificate_warnings(path: str) -> Iterator[str]:
    from cryptography.x509.oid import NameOID

    yield from key_checks.expiring("cluster.certificate", path, time.time())
    try:
        subject = pem.certificates(path)[0].subject
    except ValueError:
        return
    if subject.get_attributes_for_oid(NameOID.COMMON_NAME):
        yield f"cluster.certificate: {path} has a CN, and etcd refuses such clients of its gateway"


CLUSTER = Section("cluster", Cluster())
"""The section."""
