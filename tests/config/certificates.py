"""Certificates for tests, made on the spot."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

AUTHORITY = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)
"""What the key of a self-signed certificate is for."""


def unverified() -> ssl.SSLContext:
    """The context of a client that accepts any certificate. It reads no authorities, which takes 0.05 s."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def certificate(
    folder: Path, name: str, passphrase: bytes | None = None, days: float = 30, issuer: tuple[Path, Path] | None = None
) -> tuple[Path, Path]:
    """The files of a new certificate and of its key. It is self-signed, or signed by ``issuer``, and valid until in
    ``days``."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    signer, by = (key, subject) if issuer is None else _authority(issuer)
    builder = x509.CertificateBuilder(by, subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(days=30)).not_valid_after(now + timedelta(days=days))
    if issuer is None:
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        builder = builder.add_extension(AUTHORITY, critical=True)
    # Clients of Python 3.13 and later ask for identifiers of keys, and for the usage of an authority's.
    own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    of_signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    builder = builder.add_extension(own, critical=False).add_extension(of_signer, critical=False)
    cert = builder.sign(signer, hashes.SHA256())
    lock: KeySerializationEncryption = NoEncryption() if passphrase is None else BestAvailableEncryption(passphrase)
    paths = folder / f"{name}.cert.pem", folder / f"{name}.key.pem"
    paths[0].write_bytes(cert.public_bytes(Encoding.PEM))
    paths[1].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock))
    return paths


def revocation_list(path: Path, issuer: tuple[Path, Path], *revoked: Path) -> Path:
    """The file of a revocation list of an authority, with these certificates."""
    key, name = _authority(issuer)
    now = datetime.now(UTC)
    builder = x509.CertificateRevocationListBuilder().issuer_name(name)
    builder = builder.last_update(now - timedelta(hours=1)).next_update(now + timedelta(days=1))
    for file in revoked:
        serial = x509.load_pem_x509_certificate(file.read_bytes()).serial_number
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now - timedelta(hours=1))
        builder = builder.add_revoked_certificate(entry.build())
    path.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    return path


def _authority(files: tuple[Path, Path]) -> tuple[ec.EllipticCurvePrivateKey, x509.Name]:
    key = load_pem_private_key(files[1].read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key, x509.load_pem_x509_certificate(files[0].read_bytes()).subject
