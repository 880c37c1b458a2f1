"""Names of the client certificate of a TLS connection."""

from __future__ import annotations

from typing import Any

from cryptography import x509
from cryptography.x509.oid import NameOID
from OpenSSL.crypto import X509

MAX_NAMES = 20
"""Names of one certificate that are used: ordinary ones have one or two."""


def client_names(transport: Any) -> tuple[str, ...]:
    """Return the common name and the DNS names of the verified client certificate; empty without one, or without TLS.

    A listener asks for certificates only if it has a client CA, which has verified this one in the handshake.
    """
    peer = getattr(transport, "getPeerCertificate", lambda: None)()
    return certificate_names(peer.to_cryptography()) if isinstance(peer, X509) else ()


def certificate_names(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the common name and the DNS names of a certificate, each once. Malformed names are left out."""
    names: dict[str, None] = {}
    try:
        for attribute in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME):
            names[str(attribute.value)] = None
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        names.update(dict.fromkeys(extension.value.get_values_for_type(x509.DNSName)))
    except (ValueError, x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        pass
    return tuple(names)[:MAX_NAMES]
