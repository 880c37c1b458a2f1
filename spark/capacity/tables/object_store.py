"""Folders of object stores (S3 and what speaks its protocol): their names, and their files as Arrow opens them.

Rules:
- A file that was sent is in its place once it is closed: a process that is killed leaves no part of it there.
- Keys, region and address are those of the environment, as for the command `aws`: AWS_ACCESS_KEY_ID,
  AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL. Of the address the
  scheme tells whether connections use TLS.
- A store that does not answer raises `StoreError`, and no `OSError`: it says nothing about the content of a file.
"""

import functools
import io
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from urllib.parse import unquote, urlsplit

import attrs
from pyarrow import fs

SCHEME = "s3"

REGION = "us-east-1"
"""The region of a store that has no regions, which signatures name all the same."""

CONNECT_S = 10.0
"""Seconds for a connection: stores are near."""

REQUEST_S = 60.0
"""Seconds without a byte of an answer. Arrow's own 3 are less than a store under load takes."""

BUFFER = 1 << 20
"""Bytes that are asked for at once: each request takes some 20 ms, whatever its size."""

AT_ONCE = 8
"""Files sent or fetched concurrently: each small one takes the time of a request."""

AMBIGUOUS = re.compile(r"[%?#\\\x00-\x1f]|//")
"""Delta-rs takes the name of a folder for a URI, in which these have a meaning; Arrow takes it as it is."""

Item = TypeVar("Item")


class StoreError(Exception):
    """An object store does not do what it was asked for."""


@attrs.frozen
class ObjectFolder:
    """A folder of a bucket: what all its keys begin with, without a slash at the end; empty for the whole bucket."""

    bucket: str
    key: str = ""

    @classmethod
    def parse(cls, uri: str) -> "ObjectFolder":
        """Read a URI, s3://BUCKET/KEY; raise ValueError if it is none."""
        parts = urlsplit(uri)
        key = unquote(parts.path).strip("/")
        if parts.scheme != SCHEME or not parts.netloc or "@" in parts.netloc or parts.query or parts.fragment:
            raise ValueError(f"{uri} is not {SCHEME}://BUCKET/KEY")
        if AMBIGUOUS.search(key):
            raise ValueError(f"the key of {uri} has a character that Arrow and delta-rs read differently")
        return cls(parts.netloc, key)

    def __str__(self) -> str:
        return f"{SCHEME}://{self.path}"

    def __truediv__(self, name: str) -> "ObjectFolder":
        return ObjectFolder(self.bucket, f"{self.key}/{name}".lstrip("/"))

    @property
    def path(self) -> str:
        """The name that Arrow has for it."""
        return f"{self.bucket}/{self.key}".rstrip("/")


Place = Path | ObjectFolder
"""A folder, of this machine or of an object store."""


@functools.cache
def file_system() -> fs.S3FileSystem:
    """Return the store that the environment tells of; one for each process."""
    address = _address()
    with _told():
        return fs.S3FileSystem(
            region=_region(),
            endpoint_override=address,
            connect_timeout=CONNECT_S,
            request_timeout=REQUEST_S,
            # A file of less than 5 MB is one request instead of three.
            allow_delayed_open=True,
        )


def delta_options(place: Place) -> dict[str, str] | None:
    """Return the options with which delta-rs opens a table of a place."""
    if isinstance(place, Path):
        return None
    options = {
        "aws_region": _region(),
        # A commit is a file of the next number, and of several that are put at once the store takes one.
        "aws_conditional_put": "etag",
    }
    if address := _address():
        options |= {"aws_endpoint": address, "aws_allow_http": str(address.startswith("http:")).lower()}
    return options


def _address() -> str | None:
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None


def _region() -> str:
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or REGION


@contextmanager
def _told() -> Iterator[None]:
    """Make one kind of error of what Arrow raises, in one line."""
    try:
        yield
    except OSError as error:
        raise StoreError(" ".join(str(error).split())) from error


def need_bucket(folder: ObjectFolder) -> None:
    """Raise `StoreError` unless the bucket is there."""
    with _told():
        found = file_system().get_file_info(folder.bucket)
    if found.type != fs.FileType.Directory:
        raise StoreError(f"there is no bucket named {folder.bucket}")


def is_object(path: str) -> bool:
    """Return True if a path is a URI of an object store."""
    return path.startswith(f"{SCHEME}://")


def _name(uri: str) -> str:
    return uri.removeprefix(f"{SCHEME}://")


class _Object(io.RawIOBase):
    """The bytes of an object."""

    def __init__(self, uri: str) -> None:
        with _told():
            self._file = file_system().open_input_file(_name(uri))

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with _told():
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def opened(path: str) -> BinaryIO:
    """Open a file, given by its path or URI, to be read from its beginning."""
    return io.BufferedReader(_Object(path), BUFFER) if is_object(path) else open(path, "rb")


def sizes(folder: ObjectFolder, names: Iterable[str]) -> dict[str, int | None]:
    """Return the sizes of files of a folder in bytes; None for those that are not there."""
    names = list(names)
    with _told():
        found = file_system().get_file_info([(folder / name).path for name in names])
    return {name: one.size for name, one in zip(names, found, strict=True)}


@attrs.frozen
class Listed:
    """An entry of a folder: its name below it, its size in bytes, and the time of its last change in nanoseconds, of
    which stores tell whole seconds."""

    name: str
    size: int
    changed: int


def listing(folder: ObjectFolder) -> list[Listed]:
    """List the files below a folder, at any depth, a thousand a request; a folder or a bucket that is not there has
    none."""
    start = len(folder.path) + 1
    found = _found(folder, recursive=True)
    return [Listed(one.path[start:], one.size, one.mtime_ns) for one in found if one.type == fs.FileType.File]


def folders_in(folder: ObjectFolder) -> list[str]:
    """List the names of the folders in a folder, a thousand a request, whatever they hold."""
    return [one.base_name for one in _found(folder, recursive=False) if one.type == fs.FileType.Directory]


def _found(folder: ObjectFolder, *, recursive: bool) -> list[fs.FileInfo]:
    with _told():
        found: list[fs.FileInfo] = file_system().get_file_info(
            fs.FileSelector(folder.path, allow_not_found=True, recursive=recursive)
        )
    return found


def send(path: Path, folder: ObjectFolder, name: str, content_type: str | None = None) -> None:
    """Put a file of this machine into a folder."""
    told = {"Content-Type": content_type} if content_type else None
    place = (folder / name).path
    with (
        path.open("rb") as source,
        _told(),
        # As it is: Arrow would compress a file whose name ends in .gz.
        file_system().open_output_stream(place, compression=None, metadata=told) as target,
    ):
        shutil.copyfileobj(source, target, BUFFER)


def fetch(uri: str, path: Path) -> None:
    """Put a file of a store in its place on this machine, as a whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name("." + path.name)
    with opened(uri) as source, hidden.open("wb") as target:
        shutil.copyfileobj(source, target, BUFFER)
    hidden.replace(path)


def remove(folder: ObjectFolder, names: Iterable[str]) -> None:
    """Remove files of a folder."""
    for name in names:
        with _told():
            file_system().delete_file((folder / name).path)


def all_at_once(work: Callable[[Item], None], items: Iterable[Item]) -> None:
    """Do some work that waits for a store with each of some items; the first error ends it."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for _ in pool.map(work, items):
            pass
