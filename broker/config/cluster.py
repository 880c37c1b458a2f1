"""The section ``[cluster]``: the brokers that share one registry through etcd, and this broker's place among them."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import attrs
from cryptography import x509

from broker import pem
from broker.access.identity import is_address, is_local
from broker.config import zmq_endpoint
from broker.config.checks import expiring, secret
from broker.config.endpoint import BadEndpoint
from broker.config.files import Named as Files
from broker.config.problem import Problem, in_ranges
from broker.config.section import Binding, Resolves, Section
from broker.config.summary import zmq_bound

MAX_ENDPOINTS = 16
"""Limit of etcd's endpoints: a cluster of etcd has three, five or seven members."""

MAX_NAME = 64
"""Characters of the name of a broker and of the farm: parts of every key in etcd."""

MAX_HOST = 253
"""Characters of a host name, by DNS."""

RANGES: dict[str, tuple[float, float]] = {
    # Less does not outlast a change of etcd's leader; more leaves dead entries for minutes.
    "ttl": (5, 300),
    # 0 writes each change by itself; a second delays every peer that waits for a service.
    "gather": (0, 1),
    # Each write is kept by etcd until its compaction.
    "load_interval": (0.1, 60),
}
"""Minimum and maximum of each number, in the units of `Cluster`."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")

_FIT = f"must have 1 to {MAX_NAME} letters, digits, dots, hyphens and underscores, the first a letter or digit"


@attrs.frozen
class Cluster:
    """The cluster. Without endpoints of etcd the broker runs alone. Times in seconds."""

    etcd: tuple[str, ...] = ()
    """URLs of etcd's members: ``http://HOST:PORT`` or ``https://HOST:PORT``."""
    name: str | None = None
    """Name of this broker, unique in the cluster; None: the host's name."""
    farm: str = "default"
    """Name of the cluster, a part of all keys in etcd: several clusters may share an etcd."""
    ttl: int = 10
    """Time after which the entries of a dead broker go."""
    gather: float = 0.03
    """Time for which changes are gathered into one transaction of etcd."""
    load_interval: float = 1.0
    """Least time between two writes of the loads."""
    link: str = "tcp://127.0.0.1:0"
    """Endpoint for links of the other brokers, as ZeroMQ writes it."""
    advertise: str | None = None
    """Host under which other brokers and clients reach this broker; None: the address that a listener is bound to, or
    the host's name."""
    ca: str | None = None
    """File of the certificates that etcd's one is verified against; None: those of the system."""
    certificate: str | None = None
    """File of the client certificate for etcd, and of its ``key``."""
    key: str | None = None
    passphrase_file: str | None = None
    """File that has the passphrase of ``key`` on its only line; None: it has none."""
    user: str | None = None
    """User of etcd; None: etcd without authentication."""
    password: str | None = attrs.field(default=None, repr=False)
    password_file: str | None = None
    """A file that has ``password`` on its only line."""

    @property
    def enabled(self) -> bool:
        """True if this broker is a member of a cluster."""
        return bool(self.etcd)


def effective_name(cluster: Cluster, host: str) -> str:
    """Return the name of this broker in the cluster: the given one, else the valid part of ``host``, the host's
    name."""
    if cluster.name is not None:
        return cluster.name
    return _UNFIT.sub("-", host).strip("._-")[:MAX_NAME] or "broker"


def _problems(cluster: Cluster) -> Iterator[Problem]:
    yield from _endpoints(cluster)
    for key, name in (("name", cluster.name), ("farm", cluster.farm)):
        if name is not None and (len(name) > MAX_NAME or not _NAME.fullmatch(name)):
            yield Problem(f"cluster.{key}", _FIT)
    yield from in_ranges("cluster", cluster, RANGES)
    if _link(cluster) is None:
        try:
            where = zmq_endpoint.parse(cluster.link)
            yield Problem(
                "cluster.link", f"must be tcp://ADDRESS:PORT: other machines connect to it, not {where.where}"
            )
        except BadEndpoint as error:
            yield Problem("cluster.link", str(error))
    if cluster.advertise is not None and not _is_host(cluster.advertise):
        yield Problem("cluster.advertise", "must be the name or the address of this host, without a port")
    yield from _tls(cluster)
    yield from _login(cluster)


def _endpoints(cluster: Cluster) -> Iterator[Problem]:
    if len(cluster.etcd) > MAX_ENDPOINTS:
        yield Problem("cluster.etcd", f"has more than {MAX_ENDPOINTS} URLs")
    schemes: set[str] = set()
    for index, url in enumerate(cluster.etcd):
        key = f"cluster.etcd[{index}]"
        scheme = _scheme(url)
        if scheme is None:
            yield Problem(key, "must be http://HOST:PORT or https://HOST:PORT, without user, path or query")
        elif url in cluster.etcd[:index]:
            yield Problem(key, "is given twice")
        else:
            schemes.add(scheme)
    if len(schemes) > 1:
        yield Problem("cluster.etcd", "mixes http and https: the credentials would be sent in the clear as well")


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


def _tls(cluster: Cluster) -> Iterator[Problem]:
    files = {
        name: getattr(cluster, name)
        for name in ("ca", "certificate", "key", "passphrase_file")
        if getattr(cluster, name) is not None
    }
    for name, path in files.items():
        if not path or "\0" in path:
            yield Problem(f"cluster.{name}", "is no path")
            return
    if files and cluster.etcd and not any(url.startswith("https:") for url in cluster.etcd):
        yield Problem(f"cluster.{next(iter(files))}", "has no effect: the URLs of etcd are http", "cluster.etcd")
    if (cluster.certificate is None) != (cluster.key is None):
        has, lacks = ("certificate", "key") if cluster.key is None else ("key", "certificate")
        yield Problem(f"cluster.{has}", f"needs cluster.{lacks} as well")
    elif cluster.certificate is not None and cluster.key is not None:
        try:
            pem.Files(cluster.certificate, cluster.key, cluster.passphrase_file, cluster.ca).read()
        except ValueError as error:
            yield Problem("cluster.certificate", str(error))
    elif cluster.ca is not None:
        try:
            pem.certificates(cluster.ca)
        except ValueError as error:
            yield Problem("cluster.ca", str(error))
    if cluster.passphrase_file is not None and cluster.key is None:
        yield Problem("cluster.passphrase_file", "needs cluster.key as well")


def _login(cluster: Cluster) -> Iterator[Problem]:
    if cluster.password is not None:
        yield from secret("cluster.password", cluster.password)
    if cluster.user is None:
        if cluster.password is not None or cluster.password_file is not None:
            given = "password" if cluster.password_file is None else "password_file"
            yield Problem(f"cluster.{given}", "needs cluster.user as well")
    elif not cluster.user or not cluster.user.isprintable():
        yield Problem("cluster.user", "is no name of a user")
    elif cluster.password is None and cluster.password_file is None:
        yield Problem("cluster.user", "needs cluster.password_file or cluster.password as well")


def _link(cluster: Cluster) -> zmq_endpoint.ZEndpoint | None:
    """Return the endpoint of links; None if it is none, or no endpoint of TCP."""
    try:
        where = zmq_endpoint.parse(cluster.link)
    except BadEndpoint:
        return None
    return where if where.kind == "tcp" else None


def _bindings(cluster: Cluster) -> Iterator[Binding]:
    where = _link(cluster)
    if cluster.enabled and where is not None:
        yield Binding("cluster.link", "links", where.stream)


def _summary(cluster: Cluster) -> Iterator[str]:
    if not cluster.enabled:
        return
    name = effective_name(cluster, socket.gethostname())
    where = zmq_endpoint.parse(cluster.link)
    login = [] if cluster.user is None else [f"as user {cluster.user}"]
    login += [] if cluster.certificate is None else ["with a client certificate"]
    yield (
        f"cluster: {name} of the farm {cluster.farm}, etcd {' '.join([', '.join(cluster.etcd), *login])}, "
        f"links on {zmq_bound(where)}, ttl {cluster.ttl} s"
    )


def _warnings(cluster: Cluster, resolves: Resolves) -> Iterator[str]:
    if not cluster.enabled:
        return
    hosts = [urlsplit(url).hostname or "" for url in cluster.etcd]
    for host in dict.fromkeys(hosts):
        if not resolves(host):
            yield f"cluster.etcd: this machine knows no address of {host}"
    away = not all(is_local(host) for host in hosts)
    where = zmq_endpoint.parse(cluster.link)
    if away and where.loopback:
        yield "cluster.link: brokers on other machines cannot reach it, and messages of topics will not pass"
    if where.wildcard and cluster.advertise is None:
        yield f"cluster.advertise is not given: the other brokers are told to connect to {socket.gethostname()}"
    if away and cluster.certificate is None and cluster.user is None:
        yield "cluster: every program that reaches etcd can change the registry: see docs/cluster.md on its protection"
    if cluster.certificate is not None:
        yield from _certificate_warnings(cluster.certificate)


def _certificate_warnings(path: str) -> Iterator[str]:
    yield from expiring("cluster.certificate", path, time.time())
    try:
        subject = pem.certificates(path)[0].subject
    except ValueError:
        return
    if subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME):
        yield f"cluster.certificate: {path} has a CN, and etcd refuses such clients of its gateway"


def _files(cluster: Cluster, files: Files) -> Cluster:
    return attrs.evolve(
        cluster,
        ca=files.absolute(cluster.ca),
        certificate=files.absolute(cluster.certificate),
        key=files.absolute(cluster.key),
        passphrase_file=files.absolute(cluster.passphrase_file),
        password=files.secret("cluster.password_file", cluster.password, cluster.password_file),
    )


CLUSTER = Section(
    "cluster",
    Cluster,
    Cluster(),
    _problems,
    _bindings,
    _summary,
    _warnings,
    read=_files,
    example=(Path(__file__).with_name("cluster.toml")).read_text,
)
"""The section. A member keeps its name, its lease and its links until it stops: no key is reloadable."""
