"""Files of TLS: what cannot be served is refused with a reason, and nothing asks for a passphrase."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import attrs
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from OpenSSL import SSL

from broker import pem
from broker.app.configuration import parse
from broker.config.key_checks import BadConfig
from broker.pem import Files
from tests.config.certificates import certificate


class Place:
    """A folder with an authority, a certificate of it, and its key, plain and with the passphrase ``secret``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = certificate(folder, "authority")
        self.own = certificate(folder, "own", issuer=self.authority)
        self.locked = certificate(folder, "locked", b"secret")
        self.other = certificate(folder, "other")

    def written(self, name: str, *parts: Path | bytes) -> str:
        data = b"".join(part if isinstance(part, bytes) else part.read_bytes() for part in parts)
        (self.folder / name).write_bytes(data)
        return str(self.folder / name)

    def der(self) -> str:
        read = x509.load_pem_x509_certificate(self.own[0].read_bytes())
        return self.written("own.der", read.public_bytes(Encoding.DER))


def files(pair: tuple[Path, Path], **more: str) -> Files:
    return attrs.evolve(Files(str(pair[0]), str(pair[1])), **more)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


Case = Callable[[Place], Files]

BAD: dict[str, tuple[Case, str]] = {
    "a key of another certificate": (
        lambda at: Files(str(at.own[0]), str(at.other[1])),
        "the private key in {}/other.key.pem does not belong to the certificate in {}/own.cert.pem",
    ),
    "a key with a passphrase": (
        lambda at: files(at.locked),
        "the private key in {}/locked.key.pem has a passphrase: passphrase_file must name a file that has it",
    ),
    "a wrong passphrase": (
        lambda at: files(at.locked, passphrase_file=at.written("passphrase", b"guess\n")),
        "the passphrase in {}/passphrase does not decrypt the private key in {}/locked.key.pem",
    ),
    "a passphrase of two lines": (
        lambda at: files(at.locked, passphrase_file=at.written("passphrase", b"secret\nsecret\n")),
        "{}/passphrase must have a passphrase as its only line",
    ),
    "a certificate in DER": (lambda at: Files(at.der(), str(at.own[1])), "{}/own.der has no certificate in PEM form"),
    "an authority before the certificate": (
        lambda at: Files(at.written("chain", at.authority[0], at.own[0]), str(at.own[1])),
        "{}/chain is in the wrong order: the certificate of {}/own.key.pem is number 2",
    ),
    "a chain with a stranger": (
        lambda at: Files(at.written("chain", at.own[0], at.other[0]), str(at.own[1])),
        "{}/chain is in the wrong order: certificate 2 is not the issuer of certificate 1",
    ),
    "no authority": (
        lambda at: files(at.own, ca=str(at.own[1])),
        "{}/own.key.pem has no certificate in PEM form",
    ),
    "no revocation list": (
        lambda at: files(at.own, ca=str(at.authority[0]), crl=str(at.own[0])),
        "{}/own.cert.pem has no revocation list in PEM form",
    ),
    "no file": (lambda at: Files(str(at.own[0]), "/nowhere"), "/nowhere cannot be read: No such file or directory"),
}

LISTENERS = {
    "elko.listeners[0].endpoint": '[[elko.listeners]]\nname = "main"\nendpoint = "{}"',
    "director.listeners[0].endpoint": '[director]\nenabled = true\n[[director.listeners]]\nname = "d"\nendpoint = "{}"',
    "http.endpoint": '[http]\nendpoint = "{}"',
    "console.endpoint": '[console]\nendpoint = "{}"',
}
"""The listeners over TLS."""


def endpoint(given: Files) -> str:
    parts = {"certificate": given.certificate, "key": given.key, "passphrase_file": given.passphrase_file}
    parts |= {"ca": given.ca, "crl": given.crl, "interface": "127.0.0.1"}
    return "tls:0:" + ":".join(f"{name}={value}" for name, value in parts.items() if value is not None)


def problems(text: str) -> list[tuple[str, str]]:
    with pytest.raises(BadConfig) as refused:
        parse(text, "x.toml")
    return [(each.key, each.text) for each in refused.value.errors]


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("bad", BAD)
def test_files_that_cannot_be_served_are_refused_on_each_listener(place: Place, listener: str, bad: str) -> None:
    case, why = BAD[bad]
    assert problems(LISTENERS[listener].format(endpoint(case(place)))) == [
        (listener, why.replace("{}", str(place.folder)))
    ]


@pytest.mark.parametrize("bad", [name for name, (case, _) in BAD.items() if "revocation" not in name])
def test_they_are_refused_for_etcd(place: Place, bad: str) -> None:
    given = BAD[bad][0](place)
    keys = {
        "certificate": given.certificate,
        "key": given.key,
        "passphrase_file": given.passphrase_file,
        "ca": given.ca,
    }
    text = "\n".join(f'{key} = "{value}"' for key, value in keys.items() if value is not None)
    assert problems(f'[cluster]\netcd = ["https://127.0.0.1:2379"]\n{text}') == [
        ("cluster.certificate", BAD[bad][1].replace("{}", str(place.folder)))
    ]


def test_a_chain_and_a_key_with_its_passphrase_are_served(place: Place) -> None:
    whole = place.written("chain", place.own[0], place.authority[0])
    passphrase = place.written("passphrase", b"secret\n")
    for given, length in (
        (Files(whole, str(place.own[1])), 2),
        (files(place.locked, passphrase_file=passphrase), 1),
        (files(place.own, passphrase_file=passphrase), 1),  # not needed
        (Files(place.written("both", place.own[0], place.own[1]), str(place.folder / "both")), 1),
    ):
        contents = given.read()
        assert len(contents.chain) == length
        context = SSL.Context(SSL.TLS_METHOD)
        pem.present(context, contents.chain, contents.key)
        context.check_privatekey()


def test_a_client_that_trusts_the_root_alone_gets_the_rest_of_the_chain(place: Place) -> None:
    middle = certificate(place.folder, "middle", issuer=place.authority)
    below = certificate(place.folder, "below", issuer=middle)
    contents = Files(place.written("chain", below[0], middle[0]), str(below[1])).read()
    context = pem.context()
    pem.present(context, contents.chain, contents.key)
    server, client = SSL.Connection(context, None), SSL.Connection(pem.context(), None)
    server.set_accept_state()
    client.set_connect_state()
    for _ in range(4):
        for end, other in ((client, server), (server, client)):
            with suppress(SSL.WantReadError):
                end.do_handshake()
            with suppress(SSL.WantReadError):
                other.bio_write(end.bio_read(65_536))
    chain = client.get_peer_cert_chain()
    assert chain is not None
    names = [each.to_cryptography().subject.rfc4514_string() for each in chain]
    assert names == ["CN=below", "CN=middle"]
