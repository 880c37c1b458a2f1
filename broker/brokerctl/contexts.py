"""Contexts: several brokers by name, each with its address and the user's credentials."""

from __future__ import annotations

import base64
import json
import os
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import msgspec.structs

from broker import small_file
from broker.brokerctl.answers import Exit, Failure, usage

# A context as a value, with its checks.

DEFAULT_URL = "http://127.0.0.1:9080"
"""The address of a broker on this machine with its default configuration."""

MAX_SECRET = 4096
"""Bytes of a file with a token or a password: more is another file, given by mistake."""

_URL = re.compile(r"(?:[\x21-\x24\x26-\x7e]|%[0-9A-Fa-f]{2})+")
"""Printable ASCII, where a percent sign begins an encoded byte."""

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


class Context(msgspec.Struct, frozen=True):
    """One broker.

    - ``url``: the HTTP listener, possibly with a path before ``/v1`` (a reverse proxy).
    - ``ca``: a PEM file with the authorities to trust instead of those of the system. ``cert``, ``key``: PEM files of
      the client's certificate; the key may be in the file of the certificate.
    - ``token``, ``token_file``: a bearer token. ``user``, ``password_file``: a name and its password.
    - ``unencrypted``: True to send credentials to other machines without TLS.
    """

    url: str = DEFAULT_URL
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    token: str | None = None
    token_file: str | None = None
    user: str | None = None
    password_file: str | None = None
    unencrypted: bool = False

    def __repr__(self) -> str:
        """Return a text without the token."""
        return f"Context({self.url!r})"

    @property
    def authenticates(self) -> bool:
        """True if the context has credentials, a client certificate included."""
        return bool(self.token or self.token_file or self.user or self.cert)

    @property
    def secure(self) -> bool:
        """True for https."""
        return urlsplit(self.url).scheme == "https"


def check_context(context: Context) -> None:
    """Raise `Failure` with the first fault of a context."""
    _check_url(context.url)
    if context.token and context.token_file:
        raise usage("token and token_file exclude each other")
    if (context.token or context.token_file) and context.user:
        raise usage("a token and a user exclude each other")
    if context.password_file and not context.user:
        raise usage("password_file needs a user")
    if context.key and not context.cert:
        raise usage("key needs cert, the certificate that it belongs to")
    for name in ("ca", "cert", "key"):
        if getattr(context, name) and not context.secure:
            raise usage(f"{name} needs an address that begins with https://, and this is {context.url}")
    sends = context.token or context.token_file or context.user
    if sends and not context.secure and not context.unencrypted and not _loopback(context.url):
        raise usage(
            f"{context.url} is on another machine, and the credentials would be sent to it without encryption; "
            "use https://, or set unencrypted = true in the context"
        )
    if context.token is not None and not re.fullmatch(r"[\x21-\x7e]+", context.token):
        raise usage("the token has characters that no token has")
    if context.user is not None and (":" in context.user or not context.user.isprintable()):
        raise usage("the user's name has a colon or a control character")


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fine = False
    if not fine or not _URL.fullmatch(url) or parts.netloc.endswith(":"):
        raise usage(f"{url!r} is no address such as {DEFAULT_URL} or https://broker.example:9080")
    if parts.username is not None or parts.query or parts.fragment:
        raise usage("the address may have a path, but no user, query or fragment; credentials have keys of their own")


def _loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host == "localhost" or host == "::1" or re.fullmatch(r"127(\.\d{1,3}){3}", host) is not None


def expanded(path: str) -> Path:
    """Return a path with the home directory in place of ``~`` or ``~NAME``. Raises `Failure` if there is none."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise usage(f"{path}: the home directory is unknown") from None


def secret(path: str, what: str) -> str:
    """Return the first line of a file with a secret. Raises `Failure` if others can read the file."""
    try:
        with open(expanded(path), "rb") as file:
            exposed = stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077
            data = file.read(MAX_SECRET + 1)
    except OSError as error:
        raise usage(f"{path}: the {what} cannot be read: {error.strerror or error}") from None
    if exposed:
        raise usage(f"{path} holds the {what} and can be read by other users; run: chmod 600 {path}")
    line = data.split(b"\n", 1)[0].rstrip(b"\r")
    try:
        text = line.decode()
    except UnicodeDecodeError:
        text = ""
    if not text or len(data) > MAX_SECRET or not text.isprintable():
        raise usage(f"{path} has no {what} on its first line")
    return text


# The contexts file, TOML: read, checked, and replaced atomically.

MAX_FILE = 256 * 1024
"""Bytes of the file: some thousand contexts."""

BUILT_IN = "local"
"""The context that exists without a file: the broker on this machine with its default port."""


class Contexts(msgspec.Struct, frozen=True):
    """The content of the file: contexts by name, and the name of the current one."""

    known: Mapping[str, Context] = msgspec.field(default_factory=dict)
    current: str | None = None

    def named(self, name: str) -> Context:
        """Return a context, or raise `Failure`."""
        if name in self.known:
            return self.known[name]
        if name == BUILT_IN:
            return Context()
        raise Failure(f"there is no context {name!r}; known: {', '.join(sorted({*self.known, BUILT_IN}))}", Exit.USAGE)


def path_of(environ: Mapping[str, str]) -> Path:
    """Return the path of the file: ELKOBROKER_CONTEXTS, or in XDG_CONFIG_HOME."""
    if given := environ.get("ELKOBROKER_CONTEXTS"):
        return Path(given)
    home = environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(home) / "elkobroker" / "contexts.toml"


def read_contexts(path: Path) -> Contexts:
    """Return the contexts of the file, none if it is missing. Raises `Failure` with the first fault."""
    try:
        with path.open("rb") as file:
            exposed = stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077
            data = file.read(MAX_FILE + 1)
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror}", Exit.USAGE) from None
    if len(data) > MAX_FILE:
        raise Failure(f"{path} is larger than {MAX_FILE} bytes", Exit.USAGE)
    import tomllib  # few invocations have a file

    try:
        content = tomllib.loads(data.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise Failure(f"{path} is no TOML: {error}", Exit.USAGE) from None
    contexts = _parsed(path, content)
    if exposed and any(context.token for context in contexts.known.values()):
        raise Failure(f"{path} holds a token and can be read by other users; run: chmod 600 {path}", Exit.USAGE)
    return contexts


def _parsed(path: Path, content: Mapping[str, object]) -> Contexts:
    fields = {name: bool if name == "unencrypted" else str for name in Context.__struct_fields__}
    known = {}
    if unknown := set(content) - {"current", "contexts"}:
        raise Failure(f"{path}: unknown key {sorted(unknown)[0]!r}", Exit.USAGE)
    tables = content.get("contexts", {})
    if not isinstance(tables, Mapping):
        raise Failure(f"{path}: contexts must be tables: [contexts.NAME]", Exit.USAGE)
    for name, table in tables.items():
        if not NAME.fullmatch(name) or not isinstance(table, Mapping):
            raise Failure(f"{path}: contexts.{name} must be a table with a name of letters, digits, '_.-'", Exit.USAGE)
        for key, value in table.items():
            if key not in fields:
                raise Failure(f"{path}: contexts.{name}: unknown key {key!r}; known: {', '.join(fields)}", Exit.USAGE)
            if type(value) is not fields[key]:
                kind = "true or false" if fields[key] is bool else "a string"
                raise Failure(f"{path}: contexts.{name}.{key} must be {kind}", Exit.USAGE)
        known[name] = Context(**table)
    current = content.get("current")
    if current is not None and (not isinstance(current, str) or current not in {*known, BUILT_IN}):
        raise Failure(f"{path}: current names no context of the file: {current!r}", Exit.USAGE)
    return Contexts(known, current)


def write_contexts(path: Path, contexts: Contexts) -> None:
    """Replace the file, readable by its owner only. Comments in it are lost. Raises `Failure`."""
    lines = [] if contexts.current is None else [f"current = {_quoted(contexts.current)}"]
    for name, context in sorted(contexts.known.items()):
        lines += ["", f"[contexts.{_quoted(name) if '.' in name else name}]"]
        for key, value in msgspec.structs.asdict(context).items():
            if value is True:
                lines.append(f"{key} = true")
            elif value:
                lines.append(f"{key} = {_quoted(value)}")
    # A link stays, as dotfiles are often linked.
    real = Path(os.path.realpath(path))
    try:
        real.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with small_file.written(real) as file:
            file.write(("\n".join(lines).lstrip("\n") + "\n").encode())
    except OSError as error:
        raise Failure(f"{path} cannot be written: {error.strerror}") from None


def _quoted(text: str) -> str:
    """Return a basic string of TOML: that of JSON, in which DEL is escaped too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


# The choice of the broker for one command: options first, then the environment, then the contexts file.

URL = "ELKOBROKER_URL"
TOKEN = "ELKOBROKER_TOKEN"


class Given(msgspec.Struct, frozen=True):
    """The options of the command line that choose the broker; None for those that are absent."""

    context: str | None = None
    url: str | None = None
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    token_file: str | None = None
    user: str | None = None
    password_file: str | None = None


def chosen(given: Given, environ: Mapping[str, str]) -> tuple[str, Context]:
    """Return the name and the checked context for a command. Raises `Failure`.

    The first of these gives the address: ``--url``, ``--context``, ELKOBROKER_URL, the current context of the file, the
    broker on this machine. The other options replace the keys of that context. ELKOBROKER_TOKEN is used where neither
    options nor the context have credentials: the token of one broker is not sent to another that has its own.
    """
    if given.url is not None:
        name, context = "", Context(given.url)
    elif given.context is not None:
        path = path_of(environ)
        name, context = given.context, _beside(read_contexts(path).named(given.context), path)
    elif environ.get(URL):
        name, context = "", Context(environ[URL])
    else:
        path = path_of(environ)
        contexts = read_contexts(path)
        name = contexts.current or BUILT_IN
        context = _beside(contexts.named(name), path)
    given_keys = msgspec.structs.asdict(given).items()
    options = {name: value for name, value in given_keys if value and name not in ("context", "url")}
    if "token_file" in options:
        context = msgspec.structs.replace(context, token=None, user=None, password_file=None)
    elif "user" in options:
        context = msgspec.structs.replace(context, token=None, token_file=None, password_file=None)
    context = msgspec.structs.replace(context, **options)
    if not context.authenticates and (token := environ.get(TOKEN)):
        context = msgspec.structs.replace(context, token=token.strip())
    check_context(context)
    return name, context


def _beside(context: Context, path: Path) -> Context:
    """Return the context with its files relative to the contexts file."""
    changed: dict[str, Any] = {}
    for key in ("ca", "cert", "key", "token_file", "password_file"):
        if value := getattr(context, key):
            changed[key] = str(path.parent / expanded(value))
    return msgspec.structs.replace(context, **changed)


# The field Authorization of a context.


def authorization(context: Context, ask: Callable[[str], str] | None) -> str:
    """Return the field of a context's token or user, "" for neither. Raises `Failure`.

    ``ask`` returns the password of a user, from the terminal; None if there is no terminal.
    """
    if context.token or context.token_file:
        token = context.token or secret(context.token_file or "", "token")
        if not token.isascii():
            raise Failure(f"{context.token_file} has characters that no token has", Exit.USAGE)
        return f"Bearer {token}"
    if not context.user:
        return ""
    if context.password_file:
        password = secret(context.password_file, "password")
    elif ask is not None:
        password = ask(context.user)
    else:
        raise Failure(f"there is no terminal to ask for the password of {context.user}: set password_file", Exit.USAGE)
    return "Basic " + base64.b64encode(f"{context.user}:{password}".encode()).decode()
