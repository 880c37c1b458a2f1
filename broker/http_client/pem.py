"""PEM files of clients: bounded reading, and private keys, with a sentence for operators for each error."""

from __future__ import annotations

from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key

MAX_PEM = 1024 * 1024
"""Bytes of a PEM file: the authorities of a whole system are 250 kB."""


def read(path: str) -> bytes:
    """Return the content of a file. Raises ValueError with a sentence."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_PEM + 1)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > MAX_PEM:
        raise ValueError(f"{path} is larger than {MAX_PEM} bytes")
    return data


def private_key(path: str, data: bytes) -> Any:
    """Return the private key in the content of a file, as an object of cryptography. Raises ValueError with a
    sentence."""
    try:
        return load_pem_private_key(data, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ValueError(f"{path} has no private key, or one with a passphrase, which is not supported") from None
