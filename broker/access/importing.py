"""Import of users and rights from a configuration of a former version, whose listeners had passwords, key directories
and rules of their own.

Rules:
- Each listener gives its peers the rights that they had there: users for codes, verifiers and keys, and the user
  ``anonymous`` for peers without any. Listeners that are on by default count as well.
- A code becomes a token, a verifier a password, ``NAME.public`` a key, ``{key}`` the placeholder ``{user}``.
- A part of a rule that rights cannot express is reported (`Imported.conflicts`); see `broker.access.imported_rights`.

The module writes new files and changes none. It has the former keys by their names only: no section has them now.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from glob import escape
from pathlib import Path
from typing import Any

import attrs

from broker import curve_keys
from broker.access import passwords as password_verifiers
from broker.access.identity import ANONYMOUS
from broker.access.imported_rights import FormerRule, Gathered, add_rules, extended_text, users_text
from broker.access.passwords import BadPassword, is_user
from broker.access.users_document import parse
from broker.access.users_file import MODE, BadUsers, EditFailed, locked, read, replace
from broker.blocking import blocking
from broker.config import endpoint, files
from broker.config.endpoint import BadEndpoint
from broker.config.files import BadFile
from broker.config.removed_keys import keys_of_users, without_users
from broker.config.toml_values import toml

ADMIN = ("view", "admin.*")
"""Operations of administrators, besides those of their role."""

EVERYTHING = ("find", "offer", "publish", "subscribe")
"""Operations of a client of MTL to which no rule applied."""

OPERATOR = "operator"
"""The user for the former password of the console."""


@attrs.frozen
class Imported:
    """The result: the text of the users file, the configuration without the former keys, and the remaining work.

    ``users`` is None if all listeners were open to this machine only, since no users file is needed then.
    """

    users: str | None
    configuration: str
    conflicts: tuple[str, ...] = ()
    """Rights that are in the file as comments only: sentences."""
    left: tuple[str, ...] = ()
    """Former keys that the new configuration still has, since they are in inline tables."""


@blocking
def write(path: str, to: str) -> Imported:
    """Write the users file ``to``, and the configuration without the former keys beside the old one, with ``.new`` at
    the end of its name. The old one stays. Raises `EditFailed` or `BadUsers`, with nothing written."""
    folder = os.path.dirname(os.path.abspath(path))
    beside = os.path.relpath(to, folder)
    found = imported(path, os.path.abspath(to) if beside.startswith(os.pardir) else beside)
    written = {f"{path}.new": found.configuration} | ({} if found.users is None else {to: found.users})
    for each in written:
        if os.path.lexists(each):
            raise EditFailed(f"{each} exists already: remove it, or name another file by --to")
    made: list[str] = []
    try:
        for each, text in written.items():
            with locked(each) as real:
                replace(real, text)
                made.append(real)
                # The broker may read the old file by its group.
                old = os.stat(path)
                if (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()) and os.geteuid() == 0:
                    os.chown(real, old.st_uid, old.st_gid)
                os.chmod(real, MODE | old.st_mode & stat.S_IRGRP)
    except EditFailed:
        # One of them alone would stand in the way of the next import.
        for each in made:
            with suppress(OSError):
                os.unlink(each)
        raise
    return found


def imported(path: str, to: str = "users.toml") -> Imported:
    """Return the new form of the configuration at ``path``, which names the users file ``to`` if it named none before.

    Raises `EditFailed` or `BadUsers`, which show no secret.
    """
    try:
        text = files.text(Path(path))
        data = tomllib.loads(text)
    except (BadFile, ValueError, RecursionError) as error:
        raise EditFailed(f"{path} {error if isinstance(error, BadFile) else 'is no TOML'}") from None
    gathered = Gathered(Path(path).parent)
    try:
        for wire in (_elko, _director, _mc0, _mtl, _dbp, _dns, _http, _console):
            wire(gathered, data)
    except (AttributeError, TypeError):
        raise EditFailed(f"{path} is not valid: run its --check by the former version") from None
    former = _table(data, "access").get("file")
    users = None
    if former is not None:
        users = extended_text(read(str(Path(path).parent / str(former))), gathered)
    elif gathered.needed:
        users = users_text(gathered)
    if users is not None:
        parse("users.toml", users)
    configuration = without_users(text)
    if users is not None and former is None:
        configuration = _naming(configuration, to)
    left = tuple(keys_of_users(configuration))
    return Imported(users, configuration, tuple(gathered.conflicts), left)


# listeners


def _table(data: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = data.get(name, {})
    return found


def _elko(gathered: Gathered, data: dict[str, Any]) -> None:
    listeners = _table(data, "elko").get("listeners", [{}])
    _listeners(gathered, "elko", listeners, "tcp:9000:interface=127.0.0.1", ("client", "admin"))


def _director(gathered: Gathered, data: dict[str, Any]) -> None:
    director = data.get("director")
    if director is None or not director.get("enabled", True):
        return
    listeners = director.get("listeners", [{}])
    _listeners(gathered, "director", listeners, "tcp:9010:interface=127.0.0.1", ("user", "provider", "admin"))


def _listeners(
    gathered: Gathered, wire: str, listeners: list[dict[str, Any]], default: str, roles: tuple[str, ...]
) -> None:
    for listener in listeners:
        name = listener.get("name", "main")
        local = _is_local(endpoint.parse, listener.get("endpoint", default))
        title = f"{wire} listener {name!r}"
        auth = listener.get("auth") or ("open" if local else "password")
        who = ANONYMOUS
        if auth == "users":
            gathered.needed = True
            continue
        if auth == "password":
            code = gathered.secret(listener, "code")
            if code is None:
                raise EditFailed(f"{title} has no code")
            who = gathered.user(f"{wire}-{name}", "tokens", code, title)
            gathered.coded.append((who, title))
        gathered.needed |= not local
        offers = tuple(listener.get("offer") or (("*",) if wire == "director" or auth != "open" or local else ()))
        allow = listener.get("allow", roles)
        gathered.permit([who], ("find",), title)
        if offers and {"client", "provider"} & set(allow):
            gathered.permit([who], ("offer",), title, *offers)
        if "admin" in allow:
            gathered.permit([who], ADMIN, title)
        if listener.get("allow_before_auth") and who != ANONYMOUS:
            gathered.permit([ANONYMOUS], ("find",), title)


def _mc0(gathered: Gathered, data: dict[str, Any]) -> None:
    mc0 = _table(data, "mc0")
    if not mc0.get("enabled", True):
        return
    keyed = (mc0.get("auth") or ("curve" if _has_secret(mc0) else "open")) != "open"
    realm = _keys(gathered, mc0.get("client_keys") if keyed else None, "mc0.client_keys")
    nameless = not keyed or bool(mc0.get("any_key"))
    gathered.needed |= (
        keyed or "rules" in mc0 or not _is_local(endpoint.parse_zmq, mc0.get("endpoint", "tcp://127.0.0.1:61616"))
    )
    if "rules" not in mc0:
        users = [*realm, *([ANONYMOUS] if nameless else [])]
        gathered.permit(users, ("find", "publish", "subscribe"), "mc0")
        return
    rules = []
    for number, rule in enumerate(mc0["rules"]):
        topics = {
            operation: [f"topic:{_topic(pattern)}" for pattern in rule.get(operation, ())]
            for operation in ("publish", "subscribe")
        }
        permits = [(operation, "mc0", name) for operation, names in topics.items() for name in names]
        if topics["subscribe"]:
            # Without it, the topics of the registry would show nothing.
            permits.append(("find", "mc0", "*"))
        rules.append(FormerRule(f"mc0.rules[{number}]", tuple(rule.get("keys", ("*",))), tuple(permits)))
    add_rules(gathered, rules, realm, nameless)


def _mtl(gathered: Gathered, data: dict[str, Any]) -> None:
    mtl = _table(data, "mtl")
    if not mtl.get("enabled", True):
        return
    sasl = (mtl.get("auth") or ("sasl" if mtl.get("users") is not None or _has_secret(mtl) else "open")) != "open"
    realm = _keys(gathered, mtl.get("client_keys") if sasl else None, "mtl.client_keys")
    if sasl and mtl.get("users"):
        for name, verifier in _verifiers(gathered.base / mtl["users"]):
            realm.append(gathered.user(name, "passwords", verifier, "mtl.users"))
    nameless = not sasl or bool(mtl.get("anonymous"))
    gathered.needed |= (
        sasl or "rules" in mtl or not _is_local(endpoint.parse_zmq, mtl.get("endpoint", "tcp://127.0.0.1:5975"))
    )
    if sasl and mtl.get("any_key") and not nameless:
        gathered.permit([ANONYMOUS], ("login",), "mtl")
    realm = sorted(set(realm))
    hosts = mtl.get("hosts", ["/"])
    if "rules" not in mtl:
        for listener in ("mtl", "mtl *")[: len(hosts)]:
            gathered.permit([*realm, *([ANONYMOUS] if nameless else [])], EVERYTHING, listener)
        return
    rules = []
    for number, rule in enumerate(mtl["rules"]):
        key = f"mtl.rules[{number}]"
        lost: list[str] = []
        listeners = list(_hosts(rule.get("hosts", ("*",)), hosts, lost))
        permits = tuple(dict.fromkeys(_resources(rule, lost)))
        everywhere = tuple((operation, listener, name) for listener in listeners for operation, name in permits)
        rules.append(FormerRule(key, tuple(rule.get("users", ("*",))), everywhere, tuple(lost)))
    add_rules(gathered, rules, realm, nameless)


def _dbp(gathered: Gathered, data: dict[str, Any]) -> None:
    dbp = _table(data, "dbp")
    if dbp.get("enabled", True):
        local = _is_local(endpoint.parse_zmq, dbp.get("endpoint", "tcp://127.0.0.1:5246"))
        _open(gathered, "dbp", dbp, local)


def _dns(gathered: Gathered, data: dict[str, Any]) -> None:
    dns = _table(data, "dns")
    if dns.get("enabled", False):
        gathered.needed |= not _is_local(endpoint.parse, dns.get("endpoint", "tcp:9053:interface=127.0.0.1"))
        gathered.permit([ANONYMOUS], ("find",), "dns")


def _http(gathered: Gathered, data: dict[str, Any]) -> None:
    http = _table(data, "http")
    if not http.get("enabled", True):
        return
    if http.get("auth") == "users":
        gathered.needed = True
        return
    local = _is_local(endpoint.parse, http.get("endpoint", "tcp:9080:interface=127.0.0.1"))
    _open(gathered, "http", http, local)
    gathered.permit([ANONYMOUS], ADMIN, "http")


def _open(gathered: Gathered, wire: str, table: dict[str, Any], local: bool) -> None:
    """Add the rights at a listener without authentication."""
    gathered.needed |= not local or table.get("offer") is not None
    offers = table.get("offer")
    gathered.permit([ANONYMOUS], ("find",), wire)
    if offers or (offers is None and local):
        gathered.permit([ANONYMOUS], ("offer",), wire, *(offers or ("*",)))


def _console(gathered: Gathered, data: dict[str, Any]) -> None:
    console = _table(data, "console")
    if not console.get("enabled", True):
        return
    password = gathered.secret(console, "password")
    if console.get("auth") == "users":
        gathered.needed = True
    elif password is None:
        gathered.permit([ANONYMOUS], ("*",), "console")
    else:
        try:
            verifier = password_verifiers.of(password).text()
        except BadPassword as error:
            raise EditFailed(f"console.password {error}") from None
        gathered.user(OPERATOR, "passwords", verifier, "console")
        gathered.coded.append((OPERATOR, "console"))
        gathered.permit([OPERATOR], ("*",), "console")


def _is_local(parsed: Callable[[str], Any], text: str) -> bool:
    try:
        return bool(parsed(text).loopback)
    except BadEndpoint as error:
        raise EditFailed(f"{text!r} is no endpoint: {error}") from None


def _has_secret(table: dict[str, Any]) -> bool:
    return table.get("secret_key") is not None or table.get("secret_key_file") is not None


# credentials


@blocking
def _keys(gathered: Gathered, directory: str | None, where: str) -> list[str]:
    """Add the keys of a directory. Returns the names of their users."""
    names: list[str] = []
    if directory is None:
        return names
    try:
        found = sorted((gathered.base / directory).glob(f"[!.]*{files.PUBLIC}"))
    except (OSError, ValueError):
        found = []
    for path in found:
        name = path.name.removesuffix(files.PUBLIC)
        try:
            key = curve_keys.public_key(curve_keys.read(str(path)))
        except (OSError, ValueError):
            continue  # the former version left such files out
        if not is_user(name) or name == ANONYMOUS:
            gathered.conflicts.append(f"{where}: {path.name}: {name!r} is no name for a user")
        else:
            names.append(gathered.user(name, "keys", key, where))
    return names


def _verifiers(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the users of MTL's former users file with their verifiers. Raises `BadUsers`."""
    for number, line in enumerate(read(str(path)).split("\n"), 1):
        words = line.split()
        if not words or words[0].startswith("#") or words == ["nobody"]:
            continue
        try:
            name, verifier = words
            password_verifiers.parse(verifier)
        except ValueError:
            name = ""
        if not is_user(name):
            raise BadUsers(f"{path}, line {number}: is no user with a verifier")
        yield name, verifier


# rules


def _topic(pattern: str) -> str:
    """Return a former pattern of topics, exact or a prefix with ``*`` at its end, as a shell pattern."""
    prefix = pattern.removesuffix("*")
    return escape(prefix).replace("{key}", "{user}") + ("*" if pattern.endswith("*") else "")


def _hosts(patterns: Iterable[str], hosts: Sequence[str], lost: list[str]) -> Iterator[str]:
    """Yield the listeners of virtual hosts."""
    for pattern in patterns:
        if "{user}" in pattern:
            lost.append(f"the virtual host {pattern!r}")
            continue
        if hosts and fnmatchcase(hosts[0], pattern):
            yield "mtl"
        if any(fnmatchcase(host, pattern) for host in hosts[1:]):
            yield f"mtl {pattern}"


def _resources(rule: dict[str, Any], lost: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the rights of a rule of MTL, as operations and names. Parts that are none go into ``lost``."""
    offers = tuple(rule.get("offer", ()))
    for side in ("read", "write"):
        for resource in rule.get(side, ()):
            profile, _, pattern = resource.partition(":")
            other = "subscribe" if side == "read" else "publish"
            if resource == "*":
                yield other, "*"
                yield "find", "*"
                yield from (("offer", name) for name in offers)
            elif profile in ("topic", "queue"):
                yield other, f"{profile}:{_topic(pattern)}"
            elif profile in ("registry", "service"):
                name = _topic(pattern).partition("/")[2] or ("*" if "/" not in pattern else "")
                if (side == "read") != (profile == "service"):
                    yield "find", name
                elif name == "*":
                    yield from (("offer", each) for each in offers)
                elif offers == ("*",):
                    yield "offer", name
                elif offers:
                    lost.append(f"{side} = {resource!r} together with offer")
            else:
                lost.append(f"{side} = {resource!r}")


# the configuration


def _naming(configuration: str, users: str) -> str:
    """Return a configuration that names the users file."""
    line = f"file = {toml(users)}\n"
    header = re.search(r"(?m)^[ \t]*\[access\][^\n]*\n", configuration + "\n")
    if header is not None:
        return configuration[: header.end()] + line + configuration[header.end() :]
    return f"{configuration.rstrip()}\n\n[access]\n{line}".lstrip("\n")
