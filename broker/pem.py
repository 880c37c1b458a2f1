"""PEM files: certificates with their chains, private keys, authorities and revocation lists.

All listeners and all clients read their files here, so that the same files are accepted everywhere. Each error is a
`ValueError` with a sentence for operators. A private key with a passphrase needs a file with the passphrase: nothing
asks for one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from broker import small_file

# Imported by what reads a file: these take a tenth of the time of a start, and most brokers have no certificate.
if TYPE_CHECKING:
    from cryptography import x509
    from OpenSSL import SSL

MAX_PEM = 1024 * 1024
"""Bytes of a PEM file: the authorities of a whole system are 250 kB."""

MAX_PASSPHRASE = 1_024
"""Bytes of a passphrase: the limit of OpenSSL's own tools."""


CIPHERS = b"ECDHE+AESGCM:ECDHE+CHACHA20"
"""Suites of TLS 1.2: authenticated encryption with forward secrecy. All clients since OpenSSL 1.0.1 and Java 8 have
one. Those of TLS 1.3 are all of this kind."""

EXPIRES_SOON = 14 * 86_400.0
"""Seconds before the expiry of a certificate from which `--check`, the log and the table of certificates warn."""

_ENCRYPTED = b"ENCRYPTED"
"""A part of the header of a private key with a passphrase."""


class Endpoint(Protocol):
    """An endpoint of a listener: `broker.config.endpoint.Endpoint`."""

    @property
    def kind(self) -> str: ...

    @property
    def kwargs(self) -> Mapping[str, str]: ...


@attrs.frozen
class Contents:
    """The content of `Files`: the chain with the owner's certificate first, its key, and the rest as far as given."""

    chain: Sequence[x509.Certificate]
    key: Any
    authorities: Sequence[x509.Certificate] = ()
    crl: x509.CertificateRevocationList | None = None


@attrs.frozen
class Files:
    """Paths of the files of one end of TLS: its certificate with its chain and its key, the authorities that it trusts,
    and their revocation list."""

    certificate: str
    key: str
    passphrase_file: str | None = None
    ca: str | None = None
    crl: str | None = None

    @classmethod
    def of(cls, endpoint: Endpoint) -> Files | None:
        """Return the files of an endpoint, None without TLS."""
        if endpoint.kind != "tls":
            return None
        return cls(**{each.name: endpoint.kwargs.get(each.name) for each in attrs.fields(cls)})  # type: ignore[arg-type]

    def read(self) -> Contents:
        """Read all files. Raises ValueError if they do not match."""
        return Contents(
            *chain_and_key(self.certificate, self.key, self.passphrase_file),
            () if self.ca is None else certificates(self.ca),
            None if self.crl is None else revocation_list(self.crl),
        )


def read(path: str, most: int = MAX_PEM) -> bytes:
    """Return the content of a file of at most ``most`` bytes."""
    try:
        return small_file.read(path, most)
    except ValueError as error:
        shown = path if path.isprintable() else repr(path)
        raise ValueError(f"{shown} {error}") from None


def certificates(path: str) -> Sequence[x509.Certificate]:
    """Return the certificates in a file, at least one."""
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm

    data = read(path)
    try:
        found = x509.load_pem_x509_certificates(data)
    except (ValueError, UnsupportedAlgorithm):
        found = []
    if not found:
        raise ValueError(f"{path} has no certificate in PEM form")
    return found


def private_key(path: str, data: bytes, passphrase_file: str | None = None) -> Any:
    """Return the private key in the content of a file, as an object of cryptography."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    passphrase = None if passphrase_file is None else _passphrase(passphrase_file)
    try:
        return load_pem_private_key(data, passphrase)
    except TypeError:
        if passphrase is None:
            raise ValueError(f"the private key in {path} has a passphrase, and none is given") from None
        return private_key(path, data)  # the key has no passphrase
    except (ValueError, UnsupportedAlgorithm):
        if passphrase is not None and _ENCRYPTED in data:
            raise ValueError(
                f"the passphrase in {passphrase_file} does not decrypt the private key in {path}"
            ) from None
        raise ValueError(f"{path} has no private key in PEM form") from None


def chain_and_key(
    certificate: str, key: str, passphrase_file: str | None = None
) -> tuple[Sequence[x509.Certificate], Any]:
    """Return a certificate with its chain, the owner's first, and its private key, each of which fits the next."""
    chain = certificates(certificate)
    data = read(key)
    if passphrase_file is None and _ENCRYPTED in data:
        raise ValueError(f"the private key in {key} has a passphrase: passphrase_file must name a file that has it")
    private = private_key(key, data, passphrase_file)
    mine = _der(private.public_key())
    if _der(chain[0].public_key()) != mine:
        where = next((at for at, each in enumerate(chain, 1) if _der(each.public_key()) == mine), None)
        if where is not None:
            raise ValueError(f"{certificate} is in the wrong order: the certificate of {key} is number {where}")
        raise ValueError(f"the private key in {key} does not belong to the certificate in {certificate}")
    for number, (each, issuer) in enumerate(pairwise(chain), 1):
        if each.issuer != issuer.subject:
            later = f"certificate {number + 1} is not the issuer of certificate {number}"
            raise ValueError(f"{certificate} is in the wrong order: {later}")
    return chain, private


def revocation_list(path: str) -> x509.CertificateRevocationList:
    """Return the revocation list in a file."""
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm

    data = read(path)
    try:
        return x509.load_pem_x509_crl(data)
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError(f"{path} has no revocation list in PEM form") from None


def expiry(chain: Sequence[x509.Certificate]) -> float:
    """Return the time in seconds since the epoch at which the first certificate of a chain expires."""
    return min(each.not_valid_after_utc.timestamp() for each in chain)


def trust(context: Any, authorities: Sequence[x509.Certificate]) -> None:
    """Set the authorities against which an OpenSSL context verifies the certificates of peers."""
    from OpenSSL.crypto import X509

    store = context.get_cert_store()
    for each in authorities:
        store.add_cert(X509.from_cryptography(each))


def context() -> SSL.Context:
    """Return the settings of either end of TLS: its versions and suites."""
    from OpenSSL import SSL

    made = SSL.Context(SSL.TLS_METHOD)
    made.set_min_proto_version(SSL.TLS1_2_VERSION)
    made.set_cipher_list(CIPHERS)
    return made


def present(context: Any, chain: Sequence[x509.Certificate], key: Any) -> None:
    """Set the certificate that an OpenSSL context presents, with its chain."""
    context.use_certificate(chain[0])
    for each in chain[1:]:
        context.add_extra_chain_cert(each)
    context.use_privatekey(key)


def _passphrase(path: str) -> bytes:
    passphrase = read(path, MAX_PASSPHRASE).removesuffix(b"\n").removesuffix(b"\r")
    if not passphrase or b"\n" in passphrase:
        raise ValueError(f"{path} must have a passphrase as its only line")
    return passphrase


def _der(key: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    encoded: bytes = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return encoded
