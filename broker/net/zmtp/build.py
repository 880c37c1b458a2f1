"""Build the compiled ZMTP helpers next to their sources: ``python -m broker.net.zmtp.build``.

They are plain C, and need no Python headers, so one wheel fits every machine; this is run after its installation, or by
the first start. Without a C compiler the broker runs without them.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

HELPERS = ("framing", "sealing")
"""Names of the sources, without their end."""

FLAGS = ("-std=c99", "-O2", "-shared", "-fPIC")


class BuildFailed(Exception):
    """There is no source or no C compiler, or it failed. ``args[0]`` is a sentence."""


def build(name: str, target: Path, flags: Sequence[str] = ()) -> None:
    """Compile a helper with the compiler named by CC, or ``cc``. Raises `BuildFailed`."""
    compiler = shlex.split(os.environ.get("CC") or "cc")
    # A broker that has loaded the helper that is there keeps its own.
    part = target.with_name(f".{target.name}.{os.getpid()}")
    command = [*compiler, *FLAGS, *flags, "-o", str(part), str(Path(__file__).with_name(f"{name}.c"))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode:
            raise BuildFailed(f"{shlex.join(compiler)} fails: {done.stderr.strip()[-1_000:]}")
        part.replace(target)
    except OSError as error:
        raise BuildFailed(f"{error.filename}: {error.strerror}") from None
    finally:
        part.unlink(missing_ok=True)


def build_missing() -> None:
    """Build the helpers that are not there, where their directory can be written and a compiler works."""
    if os.access(Path(__file__).parent, os.W_OK):
        # The log names the helpers in use, and the command that shows why one cannot be built.
        with suppress(BuildFailed):
            for name in HELPERS:
                if not target_of(name).exists():
                    _install(name)


def target_of(name: str) -> Path:
    """Return the place of a helper. Raises `BuildFailed` if its source is not there.

    Its name has the digest of its source: an upgrade by pip leaves the helpers of the version before in place.
    """
    source = Path(__file__).with_name(f"{name}.c")
    try:
        digest = sha256(source.read_bytes()).hexdigest()
    except OSError as error:
        raise BuildFailed(f"{source}: {error.strerror}") from None
    return source.with_name(f"_{name}.{digest[:12]}.so")


def _install(name: str) -> None:
    """Build a helper in its place, and remove those of other versions of its source."""
    target = target_of(name)
    build(name, target)
    for other in target.parent.glob(f"_{name}.*so"):
        if other != target:
            other.unlink(missing_ok=True)


def main() -> int:
    """Build all helpers. Returns the exit status: 1 if one cannot be built."""
    try:
        for name in HELPERS:
            _install(name)
    except BuildFailed as error:
        print(f"the helpers of ZMTP are not built, and the broker does without: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
