"""Import of users and rights from a configuration of a former version, whose listeners had passwords, key directories
and rules of their own.

Rules:
- Each listener gives its peers the rights that they had there: users for codes, verifiers and keys, and the user
  ``anonymous`` for peers without any. Listeners that are on by default count as well.
- A code becomes a token, a verifier a password, ``NAME.public`` a key, ``{key}`` the placeholder ``{user}``.
- A rule of the former version applied to its first match only, while rights add up. Where an earlier rule permits less
  than a later one to a name that both may match, the later one is written as a comment (`Imported.conflicts`).
- With a users file (``access.file``), its text is kept, and rights of the empty user become those of ``anonymous``.

The module writes new files and changes none. It knows the former keys by their names only: no section has them now.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import cache
from glob import escape
from pathlib import Path
from typing import Any

import attrs

from broker import curve
from broker.access import password_verifiers, tokens
from broker.access.document import parse
from broker.access.guarded_reading import BadUsers, read
from broker.access.identity import ANONYMOUS
from broker.access.password_verifiers import BadPassword, is_user
from broker.access.replacing import MODE, EditFailed, alone, replace
from broker.blocking import blocking
from broker.config import endpoint, files, zmq_endpoint
from broker.config.endpoint import BadEndpoint
from broker.config.files import BadFile
from broker.config.removed_keys import keys_of_users, without_users
from broker.config.toml_lines import toml

ADMIN = ("view", "admin.*")
"""Operations of administrators, besides those of their role."""

EVERYTHING = ("find", "offer", "publish", "subscribe")
"""Operations of a client of MTL to which no rule applied."""

OPERATOR = "operator"
"""The user for the former password of the console."""


@attrs.frozen
class Imported:
    """The result: the text of the users file, the configuration without the former keys, and what is left to do.

    ``users`` is None if all listeners were open on this machine alone: then no users file is needed.
    """

    users: str | None
    configuration: str
    conflicts: tuple[str, ...] = ()
    """Rights that are in the file as comments only: sentences."""
    left: tuple[str, ...] = ()
    """Former keys that the new configuration still has, since they are in inline tables."""


@attrs.frozen
class _Right:
    """A right, or a part of one, for these users: patterns of names, among those of one wire."""

    users: tuple[str, ...]
    operations: tuple[str, ...]
    listener: str
    names: tuple[str, ...] = ("*",)
    comment: str = ""
    realm: tuple[str, ...] = ()
    """The users whom the listener knew, if ``users`` has patterns."""


@attrs.frozen
class _Rule:
    """A rule of a wire: its user patterns, and its rights as triples of operation, listener and name."""

    key: str
    users: tuple[str, ...]
    permits: tuple[tuple[str, str, str], ...]
    lost: tuple[str, ...] = ()
    """Parts that cannot be carried over."""


@attrs.define
class _Gathered:
    """The users and rights so far."""

    base: Path
    credentials: dict[str, dict[str, list[str]]] = attrs.field(factory=dict)
    """Of each user: lines of passwords, keys and codes."""
    owners: dict[tuple[str, str], str] = attrs.field(factory=dict)
    """The user of each key and each code."""
    rights: list[_Right] = attrs.field(factory=list)
    comments: list[tuple[str, ...]] = attrs.field(factory=list)
    conflicts: list[str] = attrs.field(factory=list)
    coded: list[tuple[str, str]] = attrs.field(factory=list)
    """Users for codes and console passwords, each with its listener."""
    needed: bool = False
    """True if any listener had credentials or rules, or was reached by other machines."""

    def user(self, name: str, kind: str, value: str, where: str) -> str:
        """Add a credential to a user. Returns the user who has it, who may be another one."""
        self.needed = True
        if kind != "passwords":
            owner = self.owners.setdefault((kind, value), name)
            if owner != name:
                if kind == "keys":
                    self.conflicts.append(f"{where}: the key of {name} is that of {owner} too, and a key has one user")
                return owner
        values = self.credentials.setdefault(name, {}).setdefault(kind, [])
        if value not in values:
            values.append(value)
        return name

    def permit(self, users: Iterable[str], operations: Sequence[str], listener: str, *names: str) -> None:
        """Add a right."""
        self.rights.append(_Right(tuple(users), tuple(operations), listener, names or ("*",)))

    def secret(self, table: dict[str, Any], key: str) -> str | None:
        """Return a secret that a table has, or has in a file. Raises `EditFailed`."""
        if table.get(f"{key}_file") is None:
            found = table.get(key)
            return None if found is None else str(found)
        path = self.base / str(table[f"{key}_file"])
        try:
            return files.secret(path)
        except BadFile as error:
            raise EditFailed(f"{key}_file: {path} {error}") from None


@blocking
def write(path: str, to: str) -> Imported:
    """Write the users file ``to``, and the configuration without the former keys beside the old one, with ``.new`` at
    the end of its name. The old one stays. Raises `EditFailed` or `BadUsers`, with nothing written."""
    found = imported(path)
    written = {f"{path}.new": found.configuration} | ({} if found.users is None else {to: found.users})
    for each in written:
        if os.path.lexists(each):
            raise EditFailed(f"{each} exists already: remove it, or name another file by --to")
    for each, text in written.items():
        with alone(each) as real:
            replace(real, text)
            # The broker may read the old file by its group.
            old = os.stat(path)
            if (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()) and os.geteuid() == 0:
                os.chown(real, old.st_uid, old.st_gid)
            os.chmod(real, MODE | old.st_mode & stat.S_IRGRP)
    return found


def imported(path: str) -> Imported:
    """Return what the configuration at ``path`` becomes. Raises `EditFailed` or `BadUsers`, which show no secret."""
    try:
        text = files.text(Path(path))
        data = tomllib.loads(text)
    except (BadFile, ValueError, RecursionError) as error:
        raise EditFailed(f"{path} {error if isinstance(error, BadFile) else 'is no TOML'}") from None
    gathered = _Gathered(Path(path).parent)
    try:
        for wire in (_elko, _director, _mc0, _mtl, _dbp, _dns, _http, _console):
            wire(gathered, data)
    except (AttributeError, TypeError):
        raise EditFailed(f"{path} is not valid: run its --check by the former version") from None
    former = _table(data, "access").get("file")
    users = None
    if former is not None:
        users = _extended(read(str(Path(path).parent / str(former))), gathered)
    elif gathered.needed:
        users = _written(gathered)
    if users is not None:
        parse("users.toml", users)
    configuration = without_users(text)
    if users is not None and former is None:
        configuration = _naming(configuration)
    left = tuple(keys_of_users(configuration))
    return Imported(users, configuration, tuple(gathered.conflicts), left)


# listeners


def _table(data: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = data.get(name, {})
    return found


def _elko(gathered: _Gathered, data: dict[str, Any]) -> None:
    listeners = _table(data, "elko").get("listeners", [{}])
    _listeners(gathered, "elko", listeners, "tcp:9000:interface=127.0.0.1", ("client", "admin"))


def _director(gathered: _Gathered, data: dict[str, Any]) -> None:
    director = data.get("director")
    if director is None or not director.get("enabled", True):
        return
    listeners = director.get("listeners", [{}])
    _listeners(gathered, "director", listeners, "tcp:9010:interface=127.0.0.1", ("user", "provider", "admin"))


def _listeners(
    gathered: _Gathered, wire: str, listeners: list[dict[str, Any]], default: str, roles: tuple[str, ...]
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


def _mc0(gathered: _Gathered, data: dict[str, Any]) -> None:
    mc0 = _table(data, "mc0")
    if not mc0.get("enabled", True):
        return
    keyed = (mc0.get("auth") or ("curve" if _has_secret(mc0) else "open")) != "open"
    realm = _keys(gathered, mc0.get("client_keys") if keyed else None, "mc0.client_keys")
    nameless = not keyed or bool(mc0.get("any_key"))
    gathered.needed |= (
        keyed or "rules" in mc0 or not _is_local(zmq_endpoint.parse, mc0.get("endpoint", "tcp://127.0.0.1:61616"))
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
        rules.append(_Rule(f"mc0.rules[{number}]", tuple(rule.get("keys", ("*",))), tuple(permits)))
    _rules(gathered, rules, realm, nameless)


def _mtl(gathered: _Gathered, data: dict[str, Any]) -> None:
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
        sasl or "rules" in mtl or not _is_local(zmq_endpoint.parse, mtl.get("endpoint", "tcp://127.0.0.1:5975"))
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
        rules.append(_Rule(key, tuple(rule.get("users", ("*",))), everywhere, tuple(lost)))
    _rules(gathered, rules, realm, nameless)


def _dbp(gathered: _Gathered, data: dict[str, Any]) -> None:
    dbp = _table(data, "dbp")
    if dbp.get("enabled", True):
        local = _is_local(zmq_endpoint.parse, dbp.get("endpoint", "tcp://127.0.0.1:5246"))
        _open(gathered, "dbp", dbp, local)


def _dns(gathered: _Gathered, data: dict[str, Any]) -> None:
    dns = _table(data, "dns")
    if dns.get("enabled", False):
        gathered.needed |= not _is_local(endpoint.parse, dns.get("endpoint", "tcp:9053:interface=127.0.0.1"))
        gathered.permit([ANONYMOUS], ("find",), "dns")


def _http(gathered: _Gathered, data: dict[str, Any]) -> None:
    http = _table(data, "http")
    if not http.get("enabled", True):
        return
    if http.get("auth") == "users":
        gathered.needed = True
        return
    local = _is_local(endpoint.parse, http.get("endpoint", "tcp:9080:interface=127.0.0.1"))
    _open(gathered, "http", http, local)
    gathered.permit([ANONYMOUS], ADMIN, "http")


def _open(gathered: _Gathered, wire: str, table: dict[str, Any], local: bool) -> None:
    """Add the rights at a listener without authentication."""
    gathered.needed |= not local or table.get("offer") is not None
    offers = table.get("offer")
    gathered.permit([ANONYMOUS], ("find",), wire)
    if offers or (offers is None and local):
        gathered.permit([ANONYMOUS], ("offer",), wire, *(offers or ("*",)))


def _console(gathered: _Gathered, data: dict[str, Any]) -> None:
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
def _keys(gathered: _Gathered, directory: str | None, where: str) -> list[str]:
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
            key = curve.public_key(curve.read(str(path)))
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


def _rules(gathered: _Gathered, rules: Sequence[_Rule], realm: Sequence[str], nameless: bool) -> None:
    """Add the rights of rules, of which only the first one that matched a name applied."""
    for number, rule in enumerate(rules):
        users = tuple(_users(rule.users, realm, nameless))
        for part in rule.lost:
            gathered.conflicts.append(f"{rule.key}: {part} has no counterpart among rights")
        if any(_hides(before, rule) for before in rules[:number]):
            continue  # it never applied
        narrower = [
            before
            for before in rules[:number]
            if _share(before.users, rule.users, nameless)
            and not all(any(_covers(some, each) for some in before.permits) for each in rule.permits)
        ]
        parts = [attrs.evolve(part, realm=tuple(realm)) for part in _parts(users, rule)]
        if narrower:
            keys = ", ".join(before.key for before in narrower)
            gathered.conflicts.append(f"{rule.key} may give more than {keys}, which came first, to the same users")
            gathered.comments.append(
                (
                    f"{rule.key}: not in force. {keys} came first and gave less to the users that both match, while",
                    "rights add up. Write names of users that none of the earlier rules matches, and remove the marks.",
                    *(line for part in parts for line in _right(part)),
                )
            )
        elif users:
            gathered.rights += parts


def _users(patterns: Iterable[str], realm: Sequence[str], nameless: bool) -> Iterator[str]:
    for pattern in patterns:
        if pattern:
            yield pattern
        if nameless and not pattern.strip("*"):
            yield ANONYMOUS


def _parts(users: tuple[str, ...], rule: _Rule) -> Iterator[_Right]:
    """Yield the rights of a rule, as few as possible."""
    by_names: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for listener in dict.fromkeys(listener for _, listener, _ in rule.permits):
        for operation in dict.fromkeys(operation for operation, _, _ in rule.permits):
            names = tuple(name for one, at, name in rule.permits if (one, at) == (operation, listener))
            if names:
                by_names.setdefault((listener, ("*",) if "*" in names else names), []).append(operation)
    for (listener, names), operations in by_names.items():
        yield _Right(users, tuple(operations), listener, names, rule.key)


def _hides(before: _Rule, rule: _Rule) -> bool:
    """Return True if the later rule never applied."""
    return all(any(_matches_all(one, other) for one in before.users) for other in rule.users)


def _covers(one: tuple[str, str, str], other: tuple[str, str, str]) -> bool:
    return one[0] == other[0] and all(map(_matches_all, one[1:], other[1:]))


def _matches_all(pattern: str, other: str) -> bool:
    """Return True if all that the other pattern matches is matched by this one; False also where that is not clear."""
    prefix = pattern.removesuffix("*")
    return pattern == other or (pattern.endswith("*") and not set("*?[") & set(prefix) and other.startswith(prefix))


def _share(some: Iterable[str], others: Iterable[str], nameless: bool) -> bool:
    return any(_meet(one, other) and (nameless or bool(one and other)) for one in some for other in others)


def _meet(one: str, other: str) -> bool:
    """Return True if a text may match both shell patterns."""
    first, second = (re.findall(r"\[[^\]]*\]|.", pattern, re.DOTALL) for pattern in (one, other))

    @cache
    def meet(i: int, j: int) -> bool:
        if i == len(first) or j == len(second):
            return all(part == "*" for part in (*first[i:], *second[j:]))
        if first[i] == "*":
            return meet(i + 1, j) or meet(i, j + 1)
        if second[j] == "*":
            return meet(i, j + 1) or meet(i + 1, j)
        return (len(first[i]) > 1 or len(second[j]) > 1 or "?" in (first[i], second[j]) or first[i] == second[j]) and (
            meet(i + 1, j + 1)
        )

    return meet(0, 0)


# the text


def _written(gathered: _Gathered) -> str:
    lines = ["# Users and rights, imported from the listeners of a configuration. docs/security.md describes the file."]
    if not gathered.credentials:
        lines.append("nobody = true")
    lines += _entries(gathered)
    for right in _merged(_narrowed(right, gathered.credentials) for right in gathered.rights):
        lines += ["", *([f"# {right.comment}"] if right.comment else []), *_right(right)]
    return _text([*lines, *_comments(gathered)])


def _extended(text: str, gathered: _Gathered) -> str:
    """Return the text of a users file with the users of listeners, which had the rights of the empty user there."""
    names = [name for name, _ in gathered.coded]
    everybody = ", ".join(map(toml, [ANONYMOUS, *dict.fromkeys(names)]))
    text = re.sub(
        r"(?m)^(\s*users\s*=\s*\[[^\]]*?)(\"\"|'')", lambda match: f"{match[1]}{everybody}", text.replace("\r\n", "\n")
    )
    gathered.conflicts += [
        f"{right.comment}: restricted the rights of the users file, which rights cannot do"
        for right in gathered.rights
        if right.comment
    ]
    return text.rstrip("\n") + "\n" + _text([*_entries(gathered), *_comments(gathered)])


def _entries(gathered: _Gathered) -> Iterator[str]:
    for name, kinds in gathered.credentials.items():
        yield from ("", "[[users]]", f"name = {toml(name)}")
        for kind in ("passwords", "keys"):
            if kind in kinds:
                yield f"{kind} = {toml(kinds[kind])}"
        for code in kinds.get("tokens", ()):
            yield from ("[[users.tokens]]", f"label = {toml('the former code')}")
            yield f"hash = {toml(tokens.hashed(code))}"


def _merged(rights: Iterable[_Right]) -> Iterator[_Right]:
    """Yield the rights, those of the same users and names at one listener as one."""
    found: dict[tuple[tuple[str, ...], str, tuple[str, ...], str], list[str]] = {}
    for right in rights:
        if right.users:
            found.setdefault((right.users, right.listener, right.names, right.comment), []).extend(right.operations)
    for (users, listener, names, comment), operations in found.items():
        yield _Right(users, tuple(dict.fromkeys(operations)), listener, names, comment)


def _narrowed(right: _Right, users: Iterable[str]) -> _Right:
    """Return a right whose patterns match no user whom the listener did not know."""

    def meant(pattern: str) -> Iterator[str]:
        matching = [user for user in users if fnmatchcase(user, pattern)]
        known = [user for user in matching if user in right.realm]
        return iter(known if known != matching else [pattern])

    if not right.realm:
        return right
    return attrs.evolve(right, users=tuple(dict.fromkeys(user for pattern in right.users for user in meant(pattern))))


def _right(right: _Right) -> list[str]:
    lines = ["[[rights]]"]
    for key, values in (("users", right.users), ("operations", right.operations), ("listeners", (right.listener,))):
        lines.append(f"{key} = {toml(values)}")
    if right.names != ("*",):
        lines.append(f"names = {toml(right.names)}")
    return lines


def _comments(gathered: _Gathered) -> Iterator[str]:
    for block in gathered.comments:
        yield ""
        yield from (f"# {line}" for line in block)


def _naming(configuration: str) -> str:
    """Return a configuration that names the users file."""
    line = 'file = "users.toml"\n'
    header = re.search(r"(?m)^[ \t]*\[access\][^\n]*\n", configuration + "\n")
    if header is not None:
        return configuration[: header.end()] + line + configuration[header.end() :]
    return f"{configuration.rstrip()}\n\n[access]\n{line}".lstrip("\n")


def _text(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
