"""Sealing for many connections at once, and the choice between Python and the compiled helper."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from broker.net.zmtp import build
from broker.net.zmtp.curve_frames import OVERHEAD
from broker.net.zmtp.frames import SHORT, Command, Decoder, FrameLimits, ZmtpError
from broker.net.zmtp.helpers import VARIABLE, helper_path, load_framing
from broker.net.zmtp.sealing import OUTPUT, SealingError, choose
from tests.examples import sampled
from tests.net.zmtp.curve_sides import FROM_SERVER, SOURCE, forms, helper, sealing_of
from tests.packages import program


def keys(count: int) -> list[bytes]:
    return [index.to_bytes(32, "big") for index in range(count)]


class Peers:
    """Some connections: their encoders, and the decoders at their other ends."""

    def __init__(self, form: str, count: int) -> None:
        self.sealing = sealing_of(form)
        self.encoders = [self.sealing.encoder(key, FROM_SERVER, 0) for key in keys(count)]
        self.decoders = [sealing_of("python").decoder(FrameLimits(), key, FROM_SERVER, 0) for key in keys(count)]

    def receive(self, sealed: list[bytes]) -> list[list[object]]:
        """The events at each other end, when each is sent its own octets."""
        return [
            [event for event in decoder.feed(data) if event is not None]
            for decoder, data in zip(self.decoders, sealed, strict=True)
        ]


# many


@forms
@pytest.mark.parametrize("count", [0, 1, 2, 100])
def test_each_connection_gets_the_message_in_its_own_boxes(form, count):
    peers = Peers(form, count)
    message = [b"", b"PUT", b"x" * 300]
    for _ in range(2):
        sealed = peers.sealing.seal_all(peers.encoders, message)
        assert len(set(sealed)) == count
        assert peers.receive(sealed) == [[message]] * count


@forms
def test_single_messages_commands_and_shared_messages_keep_their_order(form):
    peers = Peers(form, 2)
    first, second = peers.encoders
    octets = [first.message([b"1"]), second.command(b"PING", b"\0\0")]
    octets = [a + b for a, b in zip(octets, peers.sealing.seal_all(peers.encoders, [b"2", b"3"]), strict=True)]
    octets[0] += first.message([b"4"])
    assert peers.receive(octets) == [[[b"1"], [b"2", b"3"], [b"4"]], [Command(b"PING", b"\0\0"), [b"2", b"3"]]]


@forms
def test_a_connection_may_be_named_twice(form):
    peers = Peers(form, 1)
    twice = peers.sealing.seal_all(peers.encoders * 2, [b"a"])
    assert peers.receive([b"".join(twice)]) == [[[b"a"], [b"a"]]]


@forms
@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("size", [OUTPUT // 3, OUTPUT - 100, OUTPUT, OUTPUT * 2])
def test_messages_longer_than_the_buffer_come_through(form, size, count):
    peers = Peers(form, count)
    message = [b"a", b"b" * size]
    assert peers.receive(peers.sealing.seal_all(peers.encoders, message)) == [[message]] * count


@forms
@pytest.mark.parametrize("count", [1, 2])
def test_frames_around_the_longest_size_of_one_octet_come_through(form, count):
    peers = Peers(form, count)
    message = [b"c" * size for size in (SHORT - OVERHEAD - 1, SHORT - OVERHEAD, SHORT - 1, SHORT)]
    assert peers.receive(peers.sealing.seal_all(peers.encoders, message)) == [[message]] * count


@forms
@pytest.mark.parametrize("at", [0, 3, 292])
@pytest.mark.parametrize("body", [b"", b"c" * 80_000])
def test_each_connection_gets_its_own_number(form, at, body):
    peers = Peers(form, 7)
    frame = b"h" * 300
    numbers = [1, 2**64 - 1, 0, 7, 8, 9, 2**32]
    sealed = peers.sealing.seal_each(peers.encoders, frame, at, numbers, body)
    assert peers.receive(sealed) == [
        [[frame[:at] + number.to_bytes(8, "big") + frame[at + 8 :], body]] for number in numbers
    ]


@forms
@pytest.mark.parametrize("at", [-1, 3, 100])
def test_a_number_outside_of_the_frame_is_an_error(form, at):
    peers = Peers(form, 1)
    with pytest.raises(ValueError, match="no place"):
        peers.sealing.seal_each(peers.encoders, b"0123456789", at, [1], b"")


@forms
def test_a_connection_without_a_number_is_an_error(form):
    peers = Peers(form, 2)
    with pytest.raises(ValueError, match="number"):
        peers.sealing.seal_each(peers.encoders, b"0123456789", 0, [1], b"")


# both forms


def outcome(decoder: Decoder, pieces: list[bytes]) -> tuple[list[object], str]:
    """The events in some input, and the reason why it is refused."""
    found: list[object] = []
    try:
        for piece in pieces:
            found.extend(event for event in decoder.feed(piece) if event is not None)
    except ZmtpError as error:
        return found, error.text
    return found, ""


@pytest.mark.parametrize("seed", sampled(range(20)))
def test_both_forms_decide_the_same_on_damaged_input(seed: int):
    random = Random(seed)
    limits = FrameLimits(frame=3_000, message=8_000, frames=12)
    reasons = set()
    for _ in range(40):
        encoder = sealing_of("python").encoder(bytes(32), FROM_SERVER, random.randrange(3))
        data = bytearray()
        for _ in range(random.randrange(1, 12)):
            sizes = [random.choice((0, 5, 100, 222, 223, 2_999, 3_001)) for _ in range(random.choice((1, 2, 6, 13)))]
            data += encoder.message([bytes(size) for size in sizes])
            if random.random() < 0.3:
                data += encoder.command(b"PING", bytes(random.choice((2, 18, 600))))
        for _ in range(random.choice((0, 0, 1, 3))):
            at = random.randrange(len(data))
            if random.random() < 0.5:
                data[at] = random.randrange(256)
            else:
                del data[at : at + random.choice((1, 8, 40))]
        cuts = sorted(random.randrange(len(data) + 1) for _ in range(random.randrange(6)))
        pieces = [bytes(data[a:b]) for a, b in pairwise([0, *cuts, len(data)])]
        outcomes = [
            outcome(sealing_of(form).decoder(limits, bytes(32), FROM_SERVER, 1), pieces)
            for form in ("python", "compiled")
        ]
        assert outcomes[0] == outcomes[1]
        reasons.add(outcomes[0][1][:15])
    assert len(reasons) > 3  # the damage was of several kinds


# the choice


def test_python_is_what_the_environment_asks_for():
    assert choose({VARIABLE: "python"}, helper()).name == "python"


def test_the_helper_is_the_default_where_it_is():
    if helper() is None:
        program("cc")
    assert choose({}, helper()).name == "compiled"
    assert choose({VARIABLE: "compiled"}, helper()).name == "compiled"


@pytest.mark.parametrize("content", [None, b"", b"no library"])
def test_python_is_used_where_the_helper_cannot_be_loaded(tmp_path: Path, content):
    path = tmp_path / "_sealing.so"
    if content is not None:
        path.write_bytes(content)
    chosen = choose({}, path)
    assert chosen.name == "python"
    assert "_sealing.so cannot be loaded" in chosen.reason
    with pytest.raises(SealingError, match="cannot be loaded"):
        choose({VARIABLE: "compiled"}, path)


def test_another_word_in_the_environment_is_an_error():
    with pytest.raises(SealingError, match="ELKOBROKER_HELPERS is python or compiled, not C"):
        choose({VARIABLE: "C"})


def test_a_helper_of_another_version_of_its_source_is_not_found_and_goes_when_this_one_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program("cc")
    monkeypatch.setattr(build, "__file__", str(tmp_path / "build.py"))
    for name in build.HELPERS:
        (tmp_path / f"{name}.c").write_bytes(SOURCE.with_name(f"{name}.c").read_bytes())
    assert build.main() == 0
    before = {build.target_of(name) for name in build.HELPERS}
    assert set(tmp_path.glob("*.so")) == before
    for name in build.HELPERS:
        with (tmp_path / f"{name}.c").open("a") as source:
            source.write("/* A later version. */\n")
    assert not any(build.target_of(name).exists() for name in build.HELPERS)
    build.build_missing()
    after = {build.target_of(name) for name in build.HELPERS}
    assert set(tmp_path.glob("*.so")) == after != before
    assert load_framing({}, build.target_of("framing")).name == "compiled"
    assert choose({}, build.target_of("sealing")).name == "compiled"


def test_without_the_sources_the_helpers_are_those_in_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "__file__", str(tmp_path / "build.py"))
    build.build_missing()
    assert build.main() == 1
    assert (load_framing({}).name, choose({}).name) == ("python", "python")


def test_the_installed_helper_is_found_beside_its_source_alone():
    for name in ("sealing", "framing"):
        path = helper_path(name)
        assert path is None or path.parent == SOURCE.parent
