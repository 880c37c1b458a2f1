"""Certificates for etcd's tests: an authority, servers for loopback, and clients with or without a common name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

SERVER = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
"""Usages that a certificate of etcd's server needs: its gateway connects to itself with it."""


class Authority:
    """An authority of its own, which makes certificates in a folder."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, name)])
        builder = self._builder(self._name, self._key, -1, 30)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))

    def server(
        self,
        name: str = "server",
        address: str = "127.0.0.1",
        usages: tuple[x509.ObjectIdentifier, ...] = SERVER,
        begins: float = -1,
        ends: float = 30,
    ) -> tuple[Path, Path]:
        """The files of a server's certificate and key. ``begins`` and ``ends`` are days from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, name)])
        builder = self._builder(subject, key, begins, ends)
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))]), False)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), False)
        return self._written(name, builder, key)

    def client(self, name: str = "broker", common_name: str = "", ends: float = 30) -> tuple[Path, Path]:
        """The files of a client's certificate, without a common name unless it is given, and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, name)]
        if common_name:
            names.append(x509.NameAttribute(NameOID.COMMON_NAME, common_name))
        builder = self._builder(x509.Name(names), key, -2, ends)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), False)
        return self._written(name, builder, key)

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, begins: float, ends: float
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder(self._name, subject, key.public_key(), x509.random_serial_number())
        return builder.not_valid_before(now + timedelta(days=begins)).not_valid_after(now + timedelta(days=ends))

    def _written(
        self, name: str, builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey
    ) -> tuple[Path, Path]:
        certificate, secret = self._folder / f"{name}.cert.pem", self._folder / f"{name}.key.pem"
        certificate.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))
        secret.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return certificate, secret
