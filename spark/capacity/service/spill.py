"""Spill: record batches on a disk by numbers, so that a task has those of one number in memory at a time."""

from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import Self

import pyarrow as pa


class Spill:
    """Record batches in a file without a name in some folder: it goes with the process, however that ends."""

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self._file = TemporaryFile(dir=folder)  # noqa: SIM115 - open for as long as this is
        self._writer = pa.ipc.new_file(self._file, schema, options=pa.ipc.IpcWriteOptions(compression="lz4"))
        self._reader: pa.RecordBatchFileReader | None = None
        self._places: defaultdict[int, list[int]] = defaultdict(list)
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def add(self, number: int, batch: pa.RecordBatch) -> None:
        """Write a batch. After the first `read` no more can be added."""
        self._writer.write_batch(batch)
        self._places[number].append(self._count)
        self._count += 1

    def read(self, number: int) -> list[pa.RecordBatch]:
        """Read the batches of a number."""
        if self._reader is None:
            self._writer.close()
            self._reader = pa.ipc.open_file(self._file)
        return [self._reader.get_batch(place) for place in self._places[number]]
