"""Small files: only regular ones are read, at once, and by each reader of files of operators."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from broker import curve_keys, pem, small_file
from broker.access import users_file
from broker.config import files

READERS: dict[str, Callable[[Path], object]] = {
    "any": lambda path: small_file.read(path, 100),
    "certificates": lambda path: pem.certificates(str(path)),
    "chain": lambda path: pem.chain_and_key(str(path), str(path), None),
    "passphrase": lambda path: pem.private_key("key", b"ENCRYPTED", str(path)),
    "revocations": lambda path: pem.revocation_list(str(path)),
    "secret": files.secret,
    "curve-secret": files.curve_secret,
    "curve-public": lambda path: curve_keys.read(str(path)),
    "users": lambda path: users_file.read(str(path)),
    "configuration": files.text,
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_pipe_a_device_and_a_directory_are_refused_at_once(tmp_path: Path, read: Callable[[Path], object]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero"), Path("/dev/null"), tmp_path):
        with pytest.raises(ValueError, match="is no regular file"):
            read(path)


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_socket_is_refused(tmp_path: Path, read: Callable[[Path], object]) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        with pytest.raises((ValueError, OSError), match="No such device or address"):
            read(path)


def test_a_redirected_file_is_read_by_its_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"text")
    with path.open() as file:
        assert small_file.read(f"/dev/fd/{file.fileno()}", 100) == b"text"
