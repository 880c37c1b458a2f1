"""An object store for tests: moto's server, which speaks the protocol of S3, in a process of its own."""

import os
import re
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs

from pyarrow import fs

from spark.capacity.tables.object_store import ObjectFolder, send
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]

SAID = re.compile(r"Running on (http://127\.0\.0\.1:\d+)")

LISTING = re.compile(r'"GET /[^/?]+\?(\S*list-type=2\S*) HTTP')


class Store:
    """A running store: the environment that tells of it, and the requests in its log, a line each."""

    def __init__(self, environment: Mapping[str, str], log: int) -> None:
        self.environment = environment
        self._log = log

    @contextmanager
    def listings(self) -> Iterator[list[str]]:
        """Give a list which has at the end the prefix of each request for names that was answered meanwhile."""
        start, made = os.fstat(self._log).st_size, list[str]()
        yield made
        asked = LISTING.findall(_text(self._log, start))
        made += [parse_qs(query)["prefix"][0] for query in asked]


@contextmanager
def store() -> Iterator[Store]:
    """Start a store on a free port."""
    with tempfile.TemporaryFile("w+") as log:
        command = [sys.executable, "-m", "tests.spark.object_server"]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=log) as server:
            try:
                end = time.monotonic() + PATIENCE
                while (said := SAID.search(_text(log.fileno()))) is None:
                    assert server.poll() is None, _text(log.fileno())
                    assert time.monotonic() < end
                    time.sleep(0.01)
                environment = {
                    "AWS_ENDPOINT_URL": said[1],
                    "AWS_ACCESS_KEY_ID": "test",
                    "AWS_SECRET_ACCESS_KEY": "test",
                    "AWS_REGION": "us-east-1",
                    "AWS_EC2_METADATA_DISABLED": "true",
                }
                yield Store(environment, log.fileno())
            finally:
                server.kill()


def _text(number: int, start: int = 0) -> str:
    return os.pread(number, 1 << 20, start).decode()


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
