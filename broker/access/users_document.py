"""The users file: users with their credentials, and rights, as TOML.

A user may have several password verifiers, tokens, client certificate names and CURVE keys, so that each can be
replaced without a gap. A token, certificate name or key belongs to one user. docs/security.md describes the file.

Bearer tokens: random texts that authenticate a user, and their hashes in the users file.

A token has 256 random bits, so that a plain SHA-256 of it reveals nothing, and needs no salt and no slow function.
"""

from __future__ import annotations

import hashlib
import math
import re
import secrets
import tomllib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from fnmatch import fnmatchcase

import attrs

from broker.access import passwords as password_verifiers
from broker.access.identity import ANONYMOUS
from broker.access.passwords import NO_NAME, PasswordVerifier, is_user
from broker.access.principal import OPERATIONS
from broker.access.rights import Right, of_kind
from broker.access.users_file import BadUsers
from broker.config.files import is_curve_key
from broker.config.toml_values import line_of, lines, structure

TOKEN_PREFIX = "ebt_"
"""Prefix of a token, by which scanners for secrets and people recognize it."""

TOKEN_BYTES = 32
"""Random bytes of a token."""

TOKEN_LENGTH = len(TOKEN_PREFIX) + 43
"""Characters of a new token: those of BASE64 after the prefix, without padding."""

MAX_TOKEN = 512
"""Characters of a token that is hashed: a code that was the password of a listener may have as many."""

_TOKEN_HASH = re.compile(r"sha256:[0-9a-f]{64}")


def new_token() -> str:
    """Return a new token."""
    return TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES)


def is_random_text(text: str) -> bool:
    """Return True for the form of `new_token`. Other tokens, such as codes that people chose, can be guessed."""
    return len(text) == TOKEN_LENGTH and text.startswith(TOKEN_PREFIX)


def token_hash(token: str) -> str:
    """Return the hash of a token, as in the users file."""
    return "sha256:" + hashlib.sha256(token.encode(errors="replace")).hexdigest()


def is_token_hash(text: str) -> bool:
    """Return True for the form of `token_hash`."""
    return _TOKEN_HASH.fullmatch(text) is not None


def expiry(text: str) -> float:
    """Return the seconds since the epoch that an RFC 3339 text names. Raises ValueError."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("is no time of RFC 3339, such as 2027-01-31T00:00:00Z") from None
    if moment.tzinfo is None:
        raise ValueError("has no time zone; Z stands for UTC")
    try:
        return moment.timestamp()
    except (OverflowError, ValueError):
        raise ValueError("is out of range") from None


def expiry_text(seconds: float) -> str:
    """Return seconds since the epoch as the text for the file."""
    return datetime.fromtimestamp(int(seconds), UTC).isoformat().replace("+00:00", "Z")


MAX_PROBLEMS = 20
"""Mistakes in a file that are reported: a wrong file must not fill the log."""

MAX_PASSWORDS = 3
"""Password verifiers of one user: the present one and the next one. While any user has several, each check of a
password takes so much longer."""

MAX_LABEL = 200
"""Characters of a token's label."""

MAX_CERTIFICATE = 253
"""Characters of a certificate name: the maximum of a DNS name."""


@attrs.frozen
class TokenEntry:
    """A token: its label for people, its hash, and the time at which it expires; empty: never."""

    label: str
    hash: str
    expires: str = ""


@attrs.frozen
class UserEntry:
    """A user and the credentials that stand for the user."""

    name: str
    passwords: tuple[str, ...] = ()
    """Password verifiers; SCRAM uses the first one."""
    certificates: tuple[str, ...] = ()
    """Names of client certificates: common name or DNS name."""
    keys: tuple[str, ...] = ()
    """CURVE public keys in Z85."""
    tokens: tuple[TokenEntry, ...] = ()


@attrs.frozen
class UsersDocument:
    """The users file as it is written."""

    nobody: bool = False
    """True if the file has no users on purpose: without it, no such file replaces one with users."""
    users: tuple[UserEntry, ...] = ()
    rights: tuple[Right, ...] = ()


@attrs.frozen
class Token:
    """A token of a user. ``expires`` is in seconds since the epoch."""

    user: str
    label: str
    expires: float = math.inf


@attrs.frozen
class User:
    """A user. ``credentials`` identify all that authenticates the user: see `password_credential` and the others."""

    name: str
    passwords: tuple[PasswordVerifier, ...]
    credentials: frozenset[str] = attrs.field(repr=False)


@attrs.frozen
class UserDirectory:
    """The users of a valid file: by name, and by each kind of credential; and the rights."""

    users: Mapping[str, User] = attrs.field(factory=dict)
    tokens: Mapping[str, Token] = attrs.field(factory=dict, repr=False)
    """By hash."""
    certificates: Mapping[str, str] = attrs.field(factory=dict)
    """User of each certificate name, in lower case."""
    keys: Mapping[str, str] = attrs.field(factory=dict)
    """User of each CURVE key."""
    rights: tuple[Right, ...] = ()
    nobody: bool = False
    """True if the file declares that it has no users."""
    verifiers: Mapping[str, PasswordVerifier] = attrs.field(init=False, eq=False, repr=False)
    """The first password verifiers, by user."""
    shapes: tuple[tuple[int, int], ...] = attrs.field(init=False, eq=False, repr=False)
    """Iterations and length of the salt of each of them."""
    work: int = attrs.field(init=False, eq=False)
    """Iterations of a check of a password: see `broker.access.passwords.work_of`."""

    @verifiers.default
    def _verifiers(self) -> Mapping[str, PasswordVerifier]:
        return {user.name: user.passwords[0] for user in self.users.values() if user.passwords}

    @shapes.default
    def _shapes(self) -> tuple[tuple[int, int], ...]:
        return tuple(sorted((kept.iterations, len(kept.salt)) for kept in self.verifiers.values()))

    @work.default
    def _work(self) -> int:
        return password_verifiers.work_of(user.passwords for user in self.users.values())


def password_credential(verifier: PasswordVerifier) -> str:
    """Return the identification of a password: a hash, since the verifier is a secret."""
    return "password:" + hashlib.sha256(verifier.text().encode()).hexdigest()


def token_credential(hash: str) -> str:
    """Return the identification of a token."""
    return f"token:{hash}"


def certificate_credential(name: str) -> str:
    """Return the identification of a client certificate."""
    return f"certificate:{name.lower()}"


def parse(path: str, text: str) -> UserDirectory:
    """Return the users in the text of the file. Raises `BadUsers`, whose sentences have the path and the line."""
    try:
        data = tomllib.loads(text)
    except RecursionError:
        raise BadUsers(f"{path} is nested too deeply") from None
    except ValueError as error:
        # The message of tomllib shows characters of the text, but never a whole value.
        raise BadUsers(f"{path} is no TOML: {error}") from None
    document, wrong = structure(data, UsersDocument)
    problems = [*wrong, *([] if wrong else _problems(document))]
    if problems:
        where = lines(text)
        sentences = [f"{path}, line {line_of(where, key) or 1}: {key} {why}" for key, why in problems]
        if len(sentences) > MAX_PROBLEMS:
            sentences[MAX_PROBLEMS:] = [f"{path} has {len(sentences) - MAX_PROBLEMS} more mistakes"]
        raise BadUsers(*sentences)
    return _directory(document)


def _directory(document: UsersDocument) -> UserDirectory:
    users: dict[str, User] = {}
    found: dict[str, Token] = {}
    certificates: dict[str, str] = {}
    keys: dict[str, str] = {}
    for entry in document.users:
        passwords = tuple(password_verifiers.parse(text) for text in entry.passwords)
        for token in entry.tokens:
            expires = expiry(token.expires) if token.expires else math.inf
            found[token.hash] = Token(entry.name, token.label, expires)
        certificates.update({name.lower(): entry.name for name in entry.certificates})
        keys.update(dict.fromkeys(entry.keys, entry.name))
        credentials = frozenset(
            (
                *map(password_credential, passwords),
                *(token_credential(token.hash) for token in entry.tokens),
                *map(certificate_credential, entry.certificates),
            )
        )
        users[entry.name] = User(entry.name, passwords, credentials)
    return UserDirectory(users, found, certificates, keys, document.rights, document.nobody)


def is_emptied(before: UserDirectory, after: UserDirectory) -> bool:
    """See `broker.access.users_access.IsEmptied`."""
    return bool(before.users) and not after.users and not after.nobody


Problem = tuple[str, str]
"""A dotted key, and the fault of its value. No text shows a secret."""


def _problems(document: UsersDocument) -> Iterator[Problem]:
    taken: dict[tuple[str, str], str] = {}
    if document.nobody and document.users:
        yield "nobody", "is true, and there are users"
    for index, entry in enumerate(document.users):
        here = f"users[{index}]"
        if not is_user(entry.name):
            yield f"{here}.name", f"is no name for a user: {NO_NAME}"
        elif entry.name == ANONYMOUS:
            yield f"{here}.name", "stands for peers without a credential, which have no entry here"
        yield from _once(taken, "user", entry.name, f"{here}.name")
        if len(entry.passwords) > MAX_PASSWORDS:
            yield f"{here}.passwords", f"has more than {MAX_PASSWORDS} verifiers"
        for number, verifier in enumerate(entry.passwords):
            try:
                password_verifiers.parse(verifier)
            except ValueError as error:
                yield f"{here}.passwords[{number}]", str(error)
        for number, name in enumerate(entry.certificates):
            key = f"{here}.certificates[{number}]"
            if not name or len(name) > MAX_CERTIFICATE or not name.isprintable():
                yield key, f"is no name of a certificate, which has 1 to {MAX_CERTIFICATE} printable characters"
            yield from _once(taken, "certificate", name.lower(), key)
        for number, curve in enumerate(entry.keys):
            key = f"{here}.keys[{number}]"
            if not is_curve_key(curve):
                yield key, "is no CURVE public key, which has 40 Z85 characters"
            yield from _once(taken, "key", curve, key)
        yield from _tokens(f"{here}.tokens", entry.tokens, taken)
    for index, right in enumerate(document.rights):
        yield from _right(f"rights[{index}]", right)


def _tokens(here: str, entries: tuple[TokenEntry, ...], taken: dict[tuple[str, str], str]) -> Iterator[Problem]:
    labels: dict[tuple[str, str], str] = {}
    for number, token in enumerate(entries):
        key = f"{here}[{number}]"
        if not token.label or len(token.label) > MAX_LABEL or not token.label.isprintable():
            yield f"{key}.label", f"is no label, which has 1 to {MAX_LABEL} printable characters"
        yield from _once(labels, "label", token.label, f"{key}.label")
        if not is_token_hash(token.hash):
            yield f"{key}.hash", "is not of the form sha256: and 64 hexadecimal digits"
        yield from _once(taken, "token", token.hash, f"{key}.hash")
        if token.expires:
            try:
                expiry(token.expires)
            except ValueError as error:
                yield f"{key}.expires", str(error)


def _right(here: str, right: Right) -> Iterator[Problem]:
    for name in ("users", "operations", "listeners", "names"):
        if not getattr(right, name):
            yield f"{here}.{name}", "is empty: the right would match nothing"
    for number, pattern in enumerate(right.users):
        if not pattern:
            yield f"{here}.users[{number}]", f'is empty; peers without a credential are "{ANONYMOUS}"'
    for name in ("operations", "listeners", "names"):
        for number, pattern in enumerate(getattr(right, name)):
            if not pattern:
                yield f"{here}.{name}[{number}]", 'is empty; "*" matches all'
    for number, pattern in enumerate(right.names):
        if pattern and not of_kind(pattern)[1]:
            yield f"{here}.names[{number}]", f'has no name after the colon; "{pattern}*" matches all of that kind'
    for number, pattern in enumerate(right.operations):
        if pattern and not any(fnmatchcase(operation, pattern) for operation in OPERATIONS):
            yield f"{here}.operations[{number}]", f"matches no operation; there are {', '.join(OPERATIONS)}"


def _once(taken: dict[tuple[str, str], str], kind: str, value: str, key: str) -> Iterator[Problem]:
    other = taken.setdefault((kind, value), key)
    if other != key:
        yield key, f"is the same as {other}"
