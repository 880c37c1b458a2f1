"""An object store for tests: moto's server, which speaks the protocol of S3, in a process of its own."""

import os
import re
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyarrow import fs

from spark.capacity.tables.object_store import ObjectFolder, send
from tests.patience import PATIENCE

SAID = re.compile(r"Running on (http://127\.0\.0\.1:\d+)")


@contextmanager
def store() -> Iterator[dict[str, str]]:
    """Start a store on a free port; give the environment that tells of it."""
    with tempfile.TemporaryFile("w+") as log:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log) as server:
            try:
                end = time.monotonic() + PATIENCE
                while (said := SAID.search(_text(log.fileno()))) is None:
                    assert server.poll() is None, _text(log.fileno())
                    assert time.monotonic() < end
                    time.sleep(0.01)
                yield {
                    "AWS_ENDPOINT_URL": said[1],
                    "AWS_ACCESS_KEY_ID": "test",
                    "AWS_SECRET_ACCESS_KEY": "test",
                    "AWS_REGION": "us-east-1",
                    "AWS_EC2_METADATA_DISABLED": "true",
                }
            finally:
                server.kill()


def _text(number: int) -> str:
    return os.pread(number, 1 << 20, 0).decode()


def new_bucket() -> ObjectFolder:
    """Make a bucket in the store that the environment tells of, and name a folder in it."""
    made = ObjectFolder(f"test-{uuid.uuid4().hex[:12]}", "the farm/out")
    maker = fs.S3FileSystem(
        endpoint_override=os.environ["AWS_ENDPOINT_URL"], region="us-east-1", allow_bucket_creation=True
    )
    maker.create_dir(made.bucket)
    return made


def send_folder(folder: Path, to: ObjectFolder) -> None:
    """Put all files of a folder into a bucket."""
    for path in folder.rglob("*"):
        if path.is_file():
            send(path, to, path.relative_to(folder).as_posix())
