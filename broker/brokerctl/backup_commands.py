"""The commands ``backup`` and ``restore``: the state directory of a broker on this machine, as one tar archive.

The archive holds the files of the directory, then `MANIFEST` with the size and SHA-256 digest of each. It is the last
member, so an archive that was cut off has none. Databases are copied by SQLite's online backup, so a backup needs no
stop of the broker. A restore needs one: it takes the lock that a broker holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import os
import shutil
import sqlite3
import tarfile
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

import attrs
import click

from broker import small_file
from broker.brokerctl import output
from broker.brokerctl.answers import Failure

MANIFEST = "elkobroker-backup.json"
"""Name of the archive's last member."""

VERSION = 1
"""Version of the archive's layout, in the manifest."""

SYSTEM_STATE = Path("/var/lib/elkobroker")
"""The state directory under the shipped unit."""

LOCK = "lock"
"""Name of the file that a running broker locks, in the state directory."""

JOURNAL = "journal"
"""Name of the journal's directory, unless the configuration has another, in the state directory."""

REPLACED = "before-restore-"
"""Prefix of the names of directories with the files that a restore has replaced."""

STAGING = ".restore-"
"""Prefix of the name of the directory into which a restore unpacks."""

# The lock and the spare space of a full disk belong to a process. A database's copy contains its write-ahead log. Open
# segments of the journal change; the next start seals them. An embedded etcd has its data from the other members, and
# would contradict these with data of the past. A file system has a directory of its own, which only root may move.
STAYS = frozenset({LOCK, "etcd", "etcd.pid", "lost+found"})
"""Files and folders that a restore leaves in their place."""
OMITTED_NAMES = frozenset({LOCK, "reserve", "etcd.pid"})
OMITTED_ENDS = (".sqlite3-wal", ".sqlite3-shm", ".sqlite3-journal")
OMITTED_FOLDERS = frozenset({PurePosixPath(each) for each in (f"{JOURNAL}/open", "etcd", "lost+found")})

CHUNK = 1 << 20
"""Bytes read at once."""

PAGES = 1_024
"""Pages of a database that are copied in one step, after which a signal is handled: 4 MiB, some milliseconds."""

LOCKED = 0.25
"""Seconds of one wait for a locked database, after which a signal is handled."""

MAX_MANIFEST = 64 << 20
"""Upper bound of the manifest's bytes: 500,000 segments of the journal, ten years of them."""


@attrs.frozen
class Member:
    """A file of an archive: its path in the state directory, its size in bytes, and its digest."""

    path: str
    size: int
    sha256: str


state_option = click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    help=f"State directory. By default $STATE_DIRECTORY, {SYSTEM_STATE} if it exists, or ~/.local/state/elkobroker.",
)


@click.command()
@click.argument("archive", type=click.Path(path_type=Path, dir_okay=False))
@state_option
def backup(archive: Path, state: Path | None) -> None:
    """Copy the broker's state into the tar archive ARCHIVE.

    The broker may run. The archive holds the registry, sessions, durable queues, keys, and the sealed segments of the
    journal, but neither the configuration nor queues in PostgreSQL. A name that ends in .gz or .xz selects the
    compression. An existing file is replaced once the new one is complete.
    """
    directory = state_directory(state)
    # A link stays, as one to the latest archive.
    real, folder = (Path(os.path.realpath(each)) for each in (archive, archive.parent))
    kept = (directory, os.path.realpath(directory / JOURNAL))
    if any(place.is_relative_to(each) for place in (real, folder) for each in kept):
        # It would hold itself and all archives before it, and a restore would move it aside.
        raise Failure(f"{archive} is inside the state directory {directory}: choose another place")
    if os.path.exists(archive) and not os.path.isfile(archive):
        raise Failure(f"{archive} is no regular file: an archive would take its place")
    with _failures(f"{archive} cannot be written"), small_file.written(real) as file:
        members = write_archive(directory, file, real)
        size = file.tell()
    click.echo(f"{archive}: {output.size(size)}, {_described(members)} of {directory}")


@click.command()
@click.argument("archive", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@state_option
def restore(archive: Path, state: Path | None) -> None:
    """Replace the broker's state by that of the tar archive ARCHIVE.

    The broker must be stopped. The archive is unpacked and its digests are compared before anything is replaced. The
    former files remain, in a directory that is printed. Provider ids are never reused. Messages that were
    confirmed after the backup was made are delivered again.
    """
    directory = state_directory(state, absent=True)
    with _failures(f"{directory} cannot be restored"):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(directory), _staging(directory) as staging:
            members = read_archive(archive, staging)
            former = _swap(directory, staging)
    click.echo(f"{directory}: {_described(members)} of {archive}")
    if former is not None:
        click.echo(f"The former files are in {former}: remove it when the broker runs well.")


def default_state() -> Path:
    """Return the state directory of a broker that is configured with none. It need not exist."""
    named = os.environ.get("STATE_DIRECTORY", "").split(":")[0]
    if named or SYSTEM_STATE.exists():
        return Path(named or SYSTEM_STATE)
    home = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(home) / "elkobroker"


def state_directory(given: Path | None, *, absent: bool = False) -> Path:
    """Return the state directory. Raises `Failure` if there is none, unless it may be absent."""
    found = given or default_state()
    if not found.is_dir() and not absent:
        raise Failure(f"{found} is no directory: --state names the state directory")
    # Under systemd the directory is a link to another.
    return Path(os.path.realpath(found))


def write_archive(directory: Path, file: IO[bytes], path: Path) -> list[Member]:
    """Write the files of a state directory into an archive, which gets ``path`` later. Returns them.

    Raises OSError, and `Failure` for a directory without a database or with one that cannot be read.
    """
    members = []
    modes = {".gz": "w:gz", ".tgz": "w:gz", ".xz": "w:xz"}
    with tarfile.open(fileobj=file, mode=modes.get(path.suffix, "w")) as archive:  # type: ignore[call-overload]
        for name in _kept(directory):
            # A segment may be deleted by its age meanwhile.
            with contextlib.suppress(FileNotFoundError), _readable(directory / name, path.parent) as (source, size):
                header = tarfile.TarInfo(str(name))
                header.size, header.mode, header.mtime = size, 0o600, int(time.time())
                digesting = _Digesting(source)
                archive.addfile(header, digesting)
                members.append(Member(str(name), size, digesting.digest.hexdigest()))
        if not any(member.path.endswith(".sqlite3") for member in members):
            raise Failure(f"{directory} has no database: --state names the state directory")
        document = {"version": VERSION, "made": int(time.time()), "files": [attrs.asdict(each) for each in members]}
        data = json.dumps(document).encode()
        header = tarfile.TarInfo(MANIFEST)
        header.size, header.mode = len(data), 0o600
        archive.addfile(header, io.BytesIO(data))
    return members


def read_archive(path: Path, target: Path) -> list[Member]:
    """Unpack an archive into an empty directory, and check it. Returns its files.

    Raises OSError, and `Failure` for a file that is no archive of this kind, is incomplete, or is damaged.
    """
    found: dict[str, Member] = {}
    try:
        with tarfile.open(path) as archive:
            for header in archive:
                source = archive.extractfile(header)
                if source is None or not _is_inside(header.name):
                    raise Failure(f"{path} is no backup of elkobroker: it has the member {header.name}")
                if header.name == MANIFEST:
                    _compare(path, source.read(MAX_MANIFEST), found)
                    return list(found.values())
                found[header.name] = _unpack(source, target / header.name, header.name)
    except Failure:
        raise
    except Exception as error:
        # An error of the system has a number. All else is what tarfile or a decompressor makes of damaged bytes: each
        # has exceptions of its own, and some raise OSError.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        why = str(error) or type(error).__name__
        raise Failure(f"{path} is damaged, or no backup of elkobroker: {why}") from None
    raise Failure(f"{path} is incomplete, or no backup of elkobroker: it has no {MANIFEST}")


def _kept(directory: Path) -> Iterator[PurePosixPath]:
    """Yield the paths of the files of a state directory that belong in a backup, in order.

    The journal and the files in the directory itself may be links, as for another disk: the broker follows these.
    Raises `Failure` for a directory that cannot be read.
    """
    for where, folders, names in os.walk(directory, onerror=_unreadable, followlinks=True):
        here = PurePosixPath(Path(where).relative_to(directory).as_posix())
        followed = {*names, JOURNAL} if Path(where) == directory else set()
        links = {each for each in {*folders, *names} - followed if os.path.islink(os.path.join(where, each))}
        folders[:] = sorted(
            name
            for name in {*folders} - links
            if here / name not in OMITTED_FOLDERS and not name.startswith((REPLACED, STAGING))
        )
        for name in sorted({*names} - links):
            regular = os.path.isfile(os.path.join(where, name))
            if regular and name not in OMITTED_NAMES and not name.endswith(OMITTED_ENDS):
                yield here / name


def _unreadable(error: OSError) -> None:
    """Raise `Failure` for a file or directory of the state that cannot be read. One that has gone is omitted."""
    if not isinstance(error, FileNotFoundError):
        raise Failure(f"{error.filename} cannot be read: {error.strerror}") from None


@contextlib.contextmanager
def _readable(path: Path, room: Path) -> Iterator[tuple[IO[bytes], int]]:
    """Open a file, or a consistent copy of a database in a temporary folder of ``room``; yield it with its size."""
    if path.suffix != ".sqlite3":
        try:
            file = path.open("rb")
        except OSError as error:
            _unreadable(error)
            raise
        with file:
            yield file, os.fstat(file.fileno()).st_size
        return
    with _temporary_folder(room, ".elkobroker-backup-") as folder:
        copy = folder / "copy"
        try:
            # A writer goes on meanwhile: it appends to the write-ahead log.
            with (
                contextlib.closing(
                    sqlite3.connect(f"{path.as_uri()}?mode=rw", timeout=LOCKED, isolation_level=None, uri=True)
                ) as source,
                contextlib.closing(sqlite3.connect(copy)) as target,
            ):
                _hold_snapshot(source)
                # The callback lets Python handle signals.
                source.backup(target, pages=PAGES, progress=lambda *_: None)
                target.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.Error as error:
            raise Failure(f"{path} cannot be copied: {error}") from None
        with copy.open("rb") as file:
            yield file, os.fstat(file.fileno()).st_size


def _hold_snapshot(database: sqlite3.Connection) -> None:
    """Begin to read a database: without that, a commit between two steps of its copy would restart the copy.

    Waits while another process locks the database. Raises sqlite3.Error.
    """
    database.execute("BEGIN")
    while True:
        try:
            database.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:  # its variants have higher bits
                raise


class _Digesting:
    """A file that is read once, and the digest of its content."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes, ``b""`` at the end."""
        data = self._file.read(size)
        self.digest.update(data)
        return data


def _unpack(source: IO[bytes], path: Path, name: str) -> Member:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    digesting, size = _Digesting(source), 0
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as target:
        while data := digesting.read(CHUNK):
            target.write(data)
            size += len(data)
        target.flush()
        os.fsync(target.fileno())
    return Member(name, size, digesting.digest.hexdigest())


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and path.parts[:1] != (LOCK,)


def _compare(path: Path, text: bytes, found: dict[str, Member]) -> None:
    """Compare unpacked files with the manifest. Raises `Failure`, and ValueError and its like for a bad manifest."""
    document = json.loads(text)
    if document["version"] != VERSION:
        raise Failure(f"{path} has layout {document['version']}: this brokerctl restores layout {VERSION}")
    listed = {each["path"]: Member(**each) for each in document["files"]}
    for name in sorted(listed.keys() | found.keys()):
        if listed.get(name) != found.get(name):
            raise Failure(f"{path} is damaged: {name} is not as it was written")


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold the lock of a state directory. Raises `Failure` if a broker holds it."""
    lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(lock, 32).decode("ascii", "replace").strip() or "unknown"
            raise Failure(f"a broker uses {directory} (process {holder}): stop it first") from None
        _own(directory / LOCK, directory)
        yield
    finally:
        os.close(lock)


@contextlib.contextmanager
def _staging(directory: Path) -> Iterator[Path]:
    """Yield an empty directory in the state directory, on the same file system. Removed afterwards."""
    for left in directory.glob(f"{STAGING}*"):
        shutil.rmtree(left)
    with _temporary_folder(directory, STAGING) as staging:
        yield staging


def _temporary_folder(directory: Path, prefix: str) -> contextlib.AbstractContextManager[Path]:
    """Yield an empty directory in another one. Removed afterwards."""
    return small_file.temporary(
        lambda: Path(tempfile.mkdtemp(prefix=prefix, dir=directory)), partial(shutil.rmtree, ignore_errors=True)
    )


def _swap(directory: Path, staging: Path) -> Path | None:
    """Move the files of a state directory aside, and unpacked ones into it. Returns where the former files are.

    Raises `Failure` for a file that cannot be moved, such as a mounted directory; all others are in their places then.
    """
    present = [each for each in directory.iterdir() if each != staging and each.name not in STAYS]
    present = [each for each in present if not each.name.startswith(REPLACED)]
    for where, folders, names in os.walk(staging):
        for name in (*folders, *names):
            _own(Path(where) / name, directory)
    former = None
    with contextlib.ExitStack() as undo:
        if present:
            former = directory / time.strftime(f"{REPLACED}%Y%m%dT%H%M%SZ", time.gmtime())
            former.mkdir(mode=0o700)
            undo.callback(former.rmdir)
            _own(former, directory)
            for each in present:
                _move(each, former / each.name, undo)
        for each in list(staging.iterdir()):
            _move(each, directory / each.name, undo)
        undo.pop_all()
    return former


def _move(path: Path, target: Path, undo: contextlib.ExitStack) -> None:
    try:
        path.rename(target)
    except OSError as error:
        raise Failure(f"{path} cannot be moved, and nothing is replaced: {error.strerror}") from None
    undo.callback(target.rename, path)


def _own(path: Path, directory: Path) -> None:
    """Give a path the owner of the state directory, who runs the broker."""
    if os.geteuid() == 0:
        owner = directory.stat()
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


@contextlib.contextmanager
def _failures(sentence: str) -> Iterator[None]:
    """Raise errors of the system as failures of the command."""
    try:
        yield
    except OSError as error:
        raise Failure(f"{sentence}: {error.strerror or error}") from None


def _described(members: list[Member]) -> str:
    return f"{len(members)} files ({output.size(sum(member.size for member in members))})"
