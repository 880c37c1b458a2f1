"""CURVE keys in text: what is one, and which text has one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import zmq
import zmq.auth
from hypothesis import given
from hypothesis import strategies as st
from zmq.utils import z85

from broker import curve_keys
from broker.config.files import MAX_KEY_FILE, is_curve_key

KEY = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
OTHER = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"


@given(st.binary(min_size=32, max_size=32))
def test_a_key_is_encoded_as_zeromq_encodes_it(key: bytes) -> None:
    encoded = curve_keys.encode(key)
    assert encoded.encode() == z85.encode(key)
    assert is_curve_key(encoded)


@pytest.mark.parametrize(
    "text",
    [
        KEY,
        f"{KEY}\n",
        f"{KEY}\r\n",
        f"\n  {KEY}\t\n",
        f"{KEY} the key of web1\n",
        f"{KEY}\n{OTHER}\n",
        f"web1 {KEY}\n",
        f"== CURVE PUBLIC KEY ==\n{KEY}\n== CURVE SECRET KEY ==\n{OTHER}\n",
        f'# {OTHER}\ncurve\n    public-key = "{KEY}"\n    secret-key = "{OTHER}"\n',
        f'public-key="{KEY}"',
        f'    public-key = "short"\n{KEY}\n',
    ],
)
def test_the_public_key_is_found(text: str) -> None:
    assert curve_keys.public_key(text) == KEY


@pytest.mark.parametrize("text", ["", "\n", KEY[:-1], f"{KEY}x", f'"{KEY}"', KEY.replace("@", "~"), "#" * 40, "é" * 40])
def test_what_has_no_public_key_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(ValueError, match=r"^has no public key: a word of 40 Z85 characters$"):
        curve_keys.public_key(text)


@given(st.text(alphabet=st.sampled_from(KEY + ' \n"=-~é'), max_size=200) | st.text(max_size=200))
def test_any_text_has_a_key_or_none(text: str) -> None:
    try:
        key = curve_keys.public_key(text)
    except ValueError:
        assert not any(is_curve_key(word) for word in text.split())
    else:
        assert is_curve_key(key)
        assert key in text


def test_a_certificate_of_pyzmq_is_a_key_file(tmp_path: Path) -> None:
    public, secret = zmq.auth.create_certificates(str(tmp_path), "web1", {"node": "web1", "text": "é"})
    key, _ = zmq.auth.load_certificate(public)
    assert curve_keys.public_key(curve_keys.read(public)) == key.decode()
    assert curve_keys.public_key(curve_keys.read(secret)) == key.decode()


# files


def test_a_byte_order_mark_and_other_bytes_do_no_harm(tmp_path: Path) -> None:
    file = tmp_path / "web1.public"
    file.write_bytes(b"\xef\xbb\xbf" + KEY.encode() + b" caf\xe9 \xff\xfe\n")
    assert curve_keys.public_key(curve_keys.read(str(file))) == KEY


def test_a_file_may_be_as_large_as_the_limit_and_no_larger(tmp_path: Path) -> None:
    file = tmp_path / "web1.public"
    file.write_text(KEY.ljust(MAX_KEY_FILE))
    assert curve_keys.public_key(curve_keys.read(str(file))) == KEY
    file.write_text(KEY.ljust(MAX_KEY_FILE + 1))
    with pytest.raises(ValueError, match=r"^is larger than 4096 bytes$"):
        curve_keys.read(str(file))


def test_what_is_no_file_keeps_nobody_waiting(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.public"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path, Path("/dev/zero")):
        with pytest.raises(ValueError, match=r"^is no regular file$"):
            curve_keys.read(str(path))


def test_a_file_that_is_not_there_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        curve_keys.read(str(tmp_path / "web1.public"))


# names


@pytest.mark.parametrize(
    "name", ["web1", "web1.example.org", "_x", "1", "a@b", "a+b=c:d,e-f", "x" * curve_keys.MAX_NAME]
)
def test_names_of_nodes_are_names_of_keys(name: str) -> None:
    assert curve_keys.is_name(name)


@pytest.mark.parametrize(
    "name",
    ["", ".x", "-x", "a b", "a/b", "a\n", "web*", "web?", "[a]", "{key}", "é", "a\0", "x" * (curve_keys.MAX_NAME + 1)],
)
def test_what_could_be_read_as_something_else_is_no_name(name: str) -> None:
    assert not curve_keys.is_name(name)
