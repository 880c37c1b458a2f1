"""A context as a value, with its checks."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from urllib.parse import urlsplit

import attrs

from broker.brokerctl.failures import Exit, Failure

DEFAULT_URL = "http://127.0.0.1:9080"
"""The address of a broker on this machine with its default configuration."""

MAX_SECRET = 4096
"""Bytes of a file with a token or a password: more is another file, given by mistake."""

_URL = re.compile(r"(?:[\x21-\x24\x26-\x7e]|%[0-9A-Fa-f]{2})+")
"""Printable ASCII, where a percent sign begins an encoded byte."""

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


@attrs.frozen
class Context:
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
    token: str | None = attrs.field(default=None, repr=False)
    token_file: str | None = None
    user: str | None = None
    password_file: str | None = None
    unencrypted: bool = False

    @property
    def authenticates(self) -> bool:
        """True if the context has credentials, a client certificate included."""
        return bool(self.token or self.token_file or self.user or self.cert)

    @property
    def secure(self) -> bool:
        """True for https."""
        return urlsplit(self.url).scheme == "https"


def check(context: Context) -> None:
    """Raise `Failure` with the first fault of a context."""
    _check_url(context.url)
    if context.token and context.token_file:
        raise _usage("token and token_file exclude each other")
    if (context.token or context.token_file) and context.user:
        raise _usage("a token and a user exclude each other")
    if context.password_file and not context.user:
        raise _usage("password_file needs a user")
    if context.key and not context.cert:
        raise _usage("key needs cert, the certificate that it belongs to")
    for name in ("ca", "cert", "key"):
        if getattr(context, name) and not context.secure:
            raise _usage(f"{name} needs an address that begins with https://, and this is {context.url}")
    sends = context.token or context.token_file or context.user
    if sends and not context.secure and not context.unencrypted and not _loopback(context.url):
        raise _usage(
            f"{context.url} is on another machine, and the credentials would be sent to it without encryption; "
            "use https://, or set unencrypted = true in the context"
        )
    if context.token is not None and not re.fullmatch(r"[\x21-\x7e]+", context.token):
        raise _usage("the token has characters that no token has")
    if context.user is not None and (":" in context.user or not context.user.isprintable()):
        raise _usage("the user's name has a colon or a control character")


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fine = False
    if not fine or not _URL.fullmatch(url) or parts.netloc.endswith(":"):
        raise _usage(f"{url!r} is no address such as {DEFAULT_URL} or https://broker.example:9080")
    if parts.username is not None or parts.query or parts.fragment:
        raise _usage("the address may have a path, but no user, query or fragment; credentials have keys of their own")


def _loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host == "localhost" or host == "::1" or re.fullmatch(r"127(\.\d{1,3}){3}", host) is not None


def secret(path: str, what: str) -> str:
    """Return the first line of a file with a secret. Raises `Failure` if others can read the file."""
    try:
        with open(Path(path).expanduser(), "rb") as file:
            exposed = stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077
            data = file.read(MAX_SECRET + 1)
    except (OSError, RuntimeError) as error:
        raise _usage(f"{path}: the {what} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if exposed:
        raise _usage(f"{path} holds the {what} and can be read by other users; run: chmod 600 {path}")
    line = data.split(b"\n", 1)[0].rstrip(b"\r")
    try:
        text = line.decode()
    except UnicodeDecodeError:
        text = ""
    if not text or len(data) > MAX_SECRET or not text.isprintable():
        raise _usage(f"{path} has no {what} on its first line")
    return text


def _usage(sentence: str) -> Failure:
    return Failure(sentence, Exit.USAGE)
