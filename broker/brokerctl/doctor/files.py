"""Files of a configuration or a context: secrets that others can read, certificates that expire."""

from __future__ import annotations

import os
import re
import stat
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cryptography import x509

from broker.brokerctl.contexts.context import Context
from broker.brokerctl.doctor.finding import Finding, error, ok, warning

SOON = 30 * 86_400
"""Seconds before the expiry of a certificate from which on it is a warning: time to get another one."""

MAX_FILE = 4 * 1024 * 1024
"""Bytes of a file that is read."""

SECRETS = ("password_file", "code_file", "secret_key_file", "users", "token_file", "key")
"""Keys whose files are secrets, and may not be read by all users of the machine."""

_PART = re.compile(r"(certificate|key|ca)=((?:\\.|[^:\\])+)")
_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


def of_configuration(path: Path) -> Iterator[Finding]:
    """Yield the findings about the files that a configuration names."""
    try:
        with path.open("rb") as file:
            content = tomllib.loads(file.read(MAX_FILE).decode())
    except OSError as problem:
        yield error(str(path), f"cannot be read: {problem.strerror}")
        return
    except (ValueError, RecursionError) as problem:
        yield error(str(path), f"is no TOML: {problem}")
        return
    for key, name in dict.fromkeys(_files(content)):
        yield from _file(key, path.parent / name)


def of_context(context: Context, contexts: Path) -> Iterator[Finding]:
    """Yield the findings about the files of a context, and about the contexts file."""
    if contexts.exists():
        yield from _secret(contexts)
    for key in ("token_file", "password_file", "key"):
        if name := getattr(context, key):
            yield from _secret(Path(name).expanduser())
    for name in (context.cert, context.ca):
        if name:
            yield from certificates(Path(name).expanduser())


def _files(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield the files in a configuration, each with the last part of its key."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _files(each, name)
    elif isinstance(value, list):
        for each in value:
            yield from _files(each, key)
    elif isinstance(value, str):
        if key in SECRETS and key != "key":
            yield key, value
        elif key in ("certificate", "cert"):
            yield "certificate", value
        elif value.startswith(("tls:", "ssl:")):
            for part, name in _PART.findall(value):
                yield part, re.sub(r"\\(.)", r"\1", name)


def _file(key: str, path: Path) -> Iterator[Finding]:
    if key in SECRETS:
        yield from _secret(path)
    else:
        yield from certificates(path)


def _secret(path: Path) -> Iterator[Finding]:
    try:
        about = path.stat()
    except OSError as problem:
        yield error(str(path), f"cannot be examined: {problem.strerror}")
        return
    mode = stat.S_IMODE(about.st_mode)
    if mode & 0o007:
        yield error(str(path), f"mode {mode:04o}: all users of this machine can use it; run: chmod o= {path}")
    elif mode & 0o020:
        yield warning(str(path), f"mode {mode:04o}: its group can change it")
    elif about.st_uid not in (0, os.geteuid()):
        yield ok(str(path), f"mode {mode:04o}, of the user with the id {about.st_uid}")
    else:
        yield ok(str(path), f"mode {mode:04o}")


def certificates(path: Path) -> Iterator[Finding]:
    """Yield the findings about the certificates in a PEM file: the one that expires first."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE)
    except OSError as problem:
        yield error(str(path), f"cannot be read: {problem.strerror}")
        return
    try:
        ends = [x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp() for pem in _PEM.findall(data)]
    except ValueError as problem:
        yield error(str(path), f"has a certificate that cannot be read: {problem}")
        return
    if ends:
        yield expiry(str(path), min(ends), time.time())
    else:
        yield error(str(path), "has no certificate in PEM")


def expiry(what: str, ends: float, now: float) -> Finding:
    """Return the finding about a certificate that ends at a time, in seconds of the epoch."""
    day = time.strftime("%Y-%m-%d", time.gmtime(ends))
    if ends <= now:
        return error(what, f"expired on {day}")
    if ends - now < SOON:
        return warning(what, f"expires on {day}, in {(ends - now) / 86_400:.0f} days")
    return ok(what, f"valid until {day}")
