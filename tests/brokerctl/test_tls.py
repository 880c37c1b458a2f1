"""TLS: authorities, client certificates, and the sentence for each fault."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from tests.brokerctl.server import Server, ctl, page
from tests.config.certificates import certificate


def for_address(folder: Path, issuer: tuple[Path, Path], address: str, days: float = 1) -> tuple[Path, Path]:
    """The files of a certificate for an IP address, signed by ``issuer``, and of its key."""
    authority = x509.load_pem_x509_certificate(issuer[0].read_bytes())
    signer = load_pem_private_key(issuer[1].read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "server")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(authority.subject, subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(days=30)).not_valid_after(now + timedelta(days=days))
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))])
    made = builder.add_extension(names, critical=False).sign(signer, hashes.SHA256())
    cert, secret = folder / f"server-{address}.cert.pem", folder / f"server-{address}.key.pem"
    cert.write_bytes(made.public_bytes(Encoding.PEM))
    secret.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return cert, secret


@pytest.fixture
def authority(tmp_path: Path) -> tuple[Path, Path]:
    return certificate(tmp_path, "authority")


@pytest.fixture
def over_tls(request: pytest.FixtureRequest, tmp_path: Path, authority: tuple[Path, Path]) -> Iterator[Server]:
    """A server over TLS; a parameter replaces the address in its certificate, or the days of its life."""
    about = {"address": "127.0.0.1", "days": 1, "client": False, **getattr(request, "param", {})}
    settings = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    cert, key = for_address(tmp_path, authority, about["address"], about["days"])
    settings.load_cert_chain(cert, key)
    if about["client"]:
        settings.verify_mode = ssl.CERT_REQUIRED
        settings.load_verify_locations(authority[0])
        # So that a client without a certificate is refused in the handshake.
        settings.maximum_version = ssl.TLSVersion.TLSv1_2
    server = Server(settings)
    server.answer("/v1/services", page({"service": "bank"}))
    yield server
    server.stop()


def test_an_authority_of_the_context_is_trusted(over_tls: Server, authority: tuple[Path, Path]) -> None:
    result = ctl("--url", over_tls.url, "--ca", authority[0], "services")
    assert (result.exit_code, result.stderr) == (0, "")


def test_an_unknown_authority_is_not(over_tls: Server, tmp_path: Path) -> None:
    result = ctl("--url", over_tls.url, "services")
    assert (result.exit_code, result.stderr) == (
        3, f"brokerctl: TLS with {over_tls.url} fails: certificate verify failed\n"
    )  # fmt: skip
    other = certificate(tmp_path, "other")
    assert ctl("--url", over_tls.url, "--ca", other[0], "services").exit_code == 3
    assert over_tls.requests == []


@pytest.mark.parametrize("over_tls", [{"days": -1}], indirect=True)
def test_an_expired_certificate_is_told(over_tls: Server, authority: tuple[Path, Path]) -> None:
    result = ctl("--url", over_tls.url, "--ca", authority[0], "services")
    assert result.exit_code == 3
    assert result.stderr.startswith(f"brokerctl: TLS with {over_tls.url} fails: ")


@pytest.mark.parametrize("over_tls", [{"address": "127.0.0.2"}], indirect=True)
def test_a_certificate_for_another_address_is_told(over_tls: Server, authority: tuple[Path, Path]) -> None:
    result = ctl("--url", over_tls.url, "--ca", authority[0], "services")
    assert (result.exit_code, result.stderr) == (
        3, f"brokerctl: the certificate of {over_tls.url} is for another name\n"
    )  # fmt: skip
    assert over_tls.requests == []


@pytest.mark.parametrize("over_tls", [{"client": True}], indirect=True)
def test_a_client_certificate_is_sent(over_tls: Server, authority: tuple[Path, Path], tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "operator", issuer=authority)
    words = ("--url", over_tls.url, "--ca", authority[0])
    assert ctl(*words, "--cert", cert, "--key", key, "services").exit_code == 0
    both = tmp_path / "both.pem"
    both.write_bytes(cert.read_bytes() + key.read_bytes())
    assert ctl(*words, "--cert", both, "services").exit_code == 0
    without = ctl(*words, "services")
    assert without.exit_code == 3
    assert without.stderr.startswith(f"brokerctl: TLS with {over_tls.url} fails: ")


def test_client_certificates_that_cannot_be_used_are_told_before_anything_is_sent(
    over_tls: Server, authority: tuple[Path, Path], tmp_path: Path
) -> None:
    cert, key = certificate(tmp_path, "operator", issuer=authority)
    _, other = certificate(tmp_path, "other")
    _, locked = certificate(tmp_path, "locked", passphrase=b"x")

    def told(*words: object) -> str:
        result = ctl("--url", over_tls.url, *words, "services")
        assert result.exit_code == 2
        return result.stderr

    assert f"the private key in {other} does not belong to the certificate" in told("--cert", cert, "--key", other)
    assert f"the private key in {locked} has a passphrase, and none is given" in told("--cert", cert, "--key", locked)
    assert f"{key} has no certificate in PEM" in told("--cert", key)
    assert f"{key} has no certificate in PEM" in told("--ca", key)
    assert over_tls.requests == []


def test_https_to_a_server_without_tls_and_the_reverse(over_tls: Server, server: Server) -> None:
    reverse = ctl("--url", over_tls.url.replace("https", "http"), "services", "--timeout", 5)
    assert reverse.exit_code in (3, 6)
    assert reverse.stderr.count("\n") == 1
    result = ctl("--url", server.url.replace("http", "https"), "services")
    assert result.exit_code == 3
    url = server.url.replace("http", "https")
    assert result.stderr == f"brokerctl: {url}: the port speaks no TLS; use http://\n"


def test_doctor_tells_when_the_certificate_of_the_server_ends(over_tls: Server, authority: tuple[Path, Path]) -> None:
    over_tls.answer("/healthz", {"status": "ok"})
    result = ctl("--url", over_tls.url, "--ca", authority[0], "doctor", "-o", "json")
    assert f'"what": "certificate of {over_tls.url}",' in result.stdout
