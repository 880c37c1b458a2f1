"""Which frames are requests and which are data commands, and what of them goes back before the reply."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from broker.core.errors import Reason
from broker.net.peer_interfaces import MAX_ENVELOPE, MAX_HOPS, envelope_size
from broker.wires.mtl.codec.data_messages import RequestFrames, is_data, split_request
from broker.wires.mtl.codec.field_table import Fault, IllFormed

COMMAND, BODY = b"Connection.Open", b"{}"


def split(frames: Sequence[bytes]) -> RequestFrames:
    return split_request(frames, envelope_size(frames))


def fault_of(frames: Sequence[bytes]) -> Fault:
    with pytest.raises(IllFormed) as caught:
        split(frames)
    assert caught.value.reason is Reason.SYNTAX
    return caught.value.fault


@pytest.mark.parametrize(
    "envelope",
    [
        (b"",),
        (b"\0\0\0\1", b""),
        (b"\0proxy", b"\0\0\0\1", b""),
        (b"x",) * MAX_HOPS + (b"",),
        (b"x" * MAX_ENVELOPE, b""),
    ],
    ids=["REQ", "REQ_CORRELATE", "proxy", "many", "long"],
)
def test_the_whole_envelope_goes_back(envelope: tuple[bytes, ...]) -> None:
    """G03, G04, G09, G10."""
    assert split([*envelope, COMMAND, BODY]) == RequestFrames(envelope, COMMAND, BODY)
    assert not is_data([*envelope, COMMAND, BODY])


def test_the_first_empty_frame_ends_the_envelope() -> None:
    """G09, E09: a command may be empty, and so may a body."""
    assert split([b"", b"", b""]) == RequestFrames((b"",), b"", b"")
    assert split([b"id", b"", b"", BODY]) == RequestFrames((b"id", b""), b"", BODY)


@pytest.mark.parametrize("after", [0, 1, 3, 4, 200, 100_000])
@pytest.mark.parametrize("before", [0, 1, 2])
def test_other_than_two_frames_after_the_delimiter_are_no_request(before: int, after: int) -> None:
    """E01."""
    assert fault_of([b"id"] * before + [b""] + [BODY] * after) is Fault.FRAMES


@pytest.mark.parametrize("frames", [[], [COMMAND], [COMMAND, BODY], [COMMAND, BODY, BODY]])
def test_without_a_delimiter_there_is_no_request(frames: list[bytes]) -> None:
    """E10."""
    assert fault_of(frames) is Fault.DELIMITER


def test_an_envelope_has_limits() -> None:
    assert fault_of([b"x"] * (MAX_HOPS + 1) + [b"", COMMAND, BODY]) is Fault.ENVELOPE
    assert fault_of([b"x"] * 100_000) is Fault.ENVELOPE
    assert fault_of([b"x" * MAX_ENVELOPE, b"y", b"", COMMAND, BODY]) is Fault.ENVELOPE
    assert fault_of([b"x" * 1_000_000, b"", COMMAND, BODY]) is Fault.ENVELOPE


@pytest.mark.parametrize(
    ("frames", "data"),
    [
        ([b"\x08", b""], True),
        ([b"\x08", b"body"], True),
        ([b"Connection.Open", b"{}"], True),
        ([b"\x05" + bytes(400), b""], True),
        ([b"", b""], False),
        ([b"", b"body"], False),
        ([], False),
        ([b""], False),
        ([b"\x08"], False),
        ([b"\x08", b"", b""], False),
        ([b"\x08", b"", b"Connection.Open", b"{}"], False),
        ([b"", b"Connection.Open", b"{}"], False),
    ],
)
def test_two_frames_of_which_the_first_is_not_empty_are_data(frames: list[bytes], data: bool) -> None:
    """D12."""
    assert is_data(frames) is data
