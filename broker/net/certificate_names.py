"""The names in the client certificate of a connection over TLS."""

from __future__ import annotations

from typing import Any

from cryptography import x509
from cryptography.x509.oid import NameOID


def certificate_names(transport: Any) -> tuple[str, ...]:
    """Return the common name and the DNS names of the peer's certificate, without duplicates.

    The TLS layer has verified the certificate. The result is empty without TLS, and without a certificate.
    """
    get = getattr(transport, "getPeerCertificate", None)
    certificate = None if get is None else get()
    if certificate is None:
        return ()
    parsed: x509.Certificate = certificate.to_cryptography()
    names = [str(each.value) for each in parsed.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    try:
        alternative = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names += alternative.get_values_for_type(x509.DNSName)
    except (x509.ExtensionNotFound, ValueError):
        pass  # the certificate has no alternative names, or malformed ones
    return tuple(dict.fromkeys(names))
