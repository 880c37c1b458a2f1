"""Object stores: names of folders, and files that are sent, listed, opened, fetched and removed."""

import gzip
from pathlib import Path

import pytest
from pyarrow import fs

from spark.capacity.tables.object_store import (
    BUFFER,
    Listed,
    ObjectFolder,
    StoreError,
    all_at_once,
    fetch,
    file_system,
    is_object,
    listing,
    need_bucket,
    opened,
    remove,
    send,
    sizes,
)

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("s3://bucket/a/b", "s3://bucket/a/b"),
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/a%20b", "s3://bucket/a b"),
    ],
)
def test_a_folder_is_named_by_a_uri(uri: str, name: str) -> None:
    folder = ObjectFolder.parse(uri)
    assert str(folder) == name
    assert str(folder / "c" / "d") == f"{name}/c/d"


@pytest.mark.parametrize("uri", ["s3://", "s3:///a", "s3a://b/a", "b/a", "s3://b/a?x=1", "s3://b/a#x", "s3://k:s@b/a"])
def test_other_texts_name_no_folder(uri: str) -> None:
    with pytest.raises(ValueError, match="is not s3://BUCKET/KEY"):
        ObjectFolder.parse(uri)


@pytest.mark.parametrize("uri", ["s3://b/a%25b", "s3://b/a%3Fb", "s3://b/a//b", "s3://b/a%0Ab"])
def test_a_key_that_would_be_read_in_two_ways_is_refused(uri: str) -> None:
    with pytest.raises(ValueError, match="read differently"):
        ObjectFolder.parse(uri)


def test_files_are_sent_listed_opened_fetched_and_removed(bucket: ObjectFolder, tmp_path: Path) -> None:
    data = bytes(range(256)) * (BUFFER // 100)
    (tmp_path / "one").write_bytes(data)
    assert listing(bucket) == []
    send(tmp_path / "one", bucket, "a/one.html", "text/html; charset=utf-8")
    send(tmp_path / "one", bucket, "two.gz")
    told = file_system().open_input_file((bucket / "a/one.html").path).metadata()
    assert told["Content-Type"] == b"text/html; charset=utf-8"

    found = sorted(listing(bucket), key=lambda one: one.name)
    assert [(one.name, one.size) for one in found] == [("a/one.html", len(data)), ("two.gz", len(data))]
    assert all(isinstance(one, Listed) and one.changed > 10**18 for one in found)
    assert sizes(bucket, ["two.gz", "three"]) == {"two.gz": len(data), "three": None}
    uri = str(bucket / "two.gz")
    assert is_object(uri)
    with opened(uri) as file:
        assert file.read() == data
    fetch(uri, tmp_path / "x" / "y")
    assert (tmp_path / "x" / "y").read_bytes() == data

    remove(bucket, ["two.gz"])
    assert [one.name for one in listing(bucket)] == ["a/one.html"]


def test_a_file_of_this_machine_is_opened_the_same_way(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"text"))
    with opened(str(path)) as packed, gzip.open(packed) as file:
        assert file.read() == b"text"


def test_what_is_not_there_is_an_error_of_the_store_in_one_line(bucket: ObjectFolder, tmp_path: Path) -> None:
    none = ObjectFolder("no-such-bucket", "a")
    (tmp_path / "one").write_bytes(b"1")
    need_bucket(bucket)
    with pytest.raises(StoreError, match="there is no bucket named no-such-bucket"):
        need_bucket(none)
    for attempt in (
        lambda: opened(str(bucket / "none")),
        lambda: fetch(str(bucket / "none"), tmp_path / "none"),
        lambda: send(tmp_path / "one", none, "one"),
    ):
        with pytest.raises(StoreError) as caught:
            attempt()
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "none").exists()


def test_the_first_error_of_many_at_once_is_raised() -> None:
    done = []

    def work(number: int) -> None:
        if number == 3:
            raise StoreError("3")
        done.append(number)

    with pytest.raises(StoreError, match="3"):
        all_at_once(work, range(10))
    all_at_once(work, [11, 12])
    assert {11, 12} <= set(done)


def test_a_process_that_is_killed_while_it_sends_leaves_no_file(bucket: ObjectFolder) -> None:
    stream = file_system().open_output_stream((bucket / "half").path)
    stream.write(b"x" * BUFFER)
    assert file_system().get_file_info((bucket / "half").path).type == fs.FileType.NotFound
    stream.close()
