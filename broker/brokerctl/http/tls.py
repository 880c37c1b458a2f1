"""TLS of the client: trusted authorities, and its own certificate."""

from __future__ import annotations

import re
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from OpenSSL import crypto
from twisted.internet import ssl
from twisted.internet.error import VerifyError
from twisted.internet.interfaces import IOpenSSLClientConnectionCreator

from broker import pem
from broker.brokerctl.contexts.context import Context
from broker.brokerctl.failures import Exit, Failure

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


def connection_creator(context: Context, host: str) -> IOpenSSLClientConnectionCreator:
    """Return the settings for a connection to a host, whose certificate must have its name. Raises `Failure`."""
    trusted = None
    if context.ca is not None:
        trusted = ssl.trustRootFromCertificates([_loaded(context.ca, pem) for pem in _certificates(context.ca)])
    own, extra = None, {}
    if context.cert is not None:
        leaf, *chain = _certificates(context.cert)
        own = _private(context, leaf)
        extra = {"extraCertChain": [_loaded(context.cert, pem).original for pem in chain]}
    try:
        return ssl.optionsForClientTLS(host, trusted, own, extraCertificateOptions=extra)
    except ValueError:
        raise _usage(f"{host} is no name of a host") from None


def _private(context: Context, leaf: bytes) -> ssl.PrivateCertificate:
    assert context.cert is not None
    file = context.key or context.cert
    data = _read(file)
    _loaded(context.cert, leaf)
    try:
        key = pem.private_key(file, data)
    except ValueError as error:
        raise _usage(str(error)) from None
    plain = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    try:
        found: ssl.PrivateCertificate = ssl.PrivateCertificate.loadPEM(leaf + b"\n" + plain)
        return found
    except VerifyError:
        raise _usage(f"the private key in {file} does not belong to the certificate in {context.cert}") from None


def _certificates(path: str) -> list[bytes]:
    found = _CERTIFICATE.findall(_read(path))
    if not found:
        raise _usage(f"{path} has no certificate in PEM")
    return found


def _loaded(path: str, pem: bytes) -> Any:
    try:
        return ssl.Certificate.loadPEM(pem)
    except (crypto.Error, ValueError):
        raise _usage(f"{path} has a certificate that cannot be read") from None


def _read(path: str) -> bytes:
    try:
        return pem.read(path)
    except ValueError as error:
        raise _usage(str(error)) from None


def _usage(sentence: str) -> Failure:
    return Failure(sentence, Exit.USAGE)
