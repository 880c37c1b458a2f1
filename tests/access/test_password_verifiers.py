"""Password verifiers."""

from __future__ import annotations

from base64 import b64decode, b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.access import passwords
from broker.access.passwords import (
    MAX_ITERATIONS,
    MAX_PASSWORD,
    MAX_SALT,
    MAX_USER,
    MIN_ITERATIONS,
    MIN_SALT,
    BadPassword,
    PasswordVerifier,
    is_user,
)

PENCIL = (
    "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY="
    ":wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
)
"""The password of the example in RFC 7677, as PostgreSQL keeps it."""

KEY = b64encode(bytes(32)).decode()


def text(iterations: object = 4096, salt: bytes = bytes(16), stored_key: str = KEY, server_key: str = KEY) -> str:
    return f"SCRAM-SHA-256${iterations}:{b64encode(salt).decode()}${stored_key}:{server_key}"


def test_the_form_is_that_of_postgresql() -> None:
    kept = passwords.parse(PENCIL)
    assert kept.iterations == 4096
    assert kept.salt == b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    assert kept.text() == PENCIL
    assert kept.check("pencil")
    assert not kept.check("Pencil")
    assert not kept.check("")


def test_a_new_password_can_be_checked_and_is_kept_with_another_salt_each_time() -> None:
    one, two = passwords.of("pencil"), passwords.of("pencil")
    assert one.check("pencil")
    assert not one.check("pencil ")
    assert one.iterations == passwords.ITERATIONS
    assert {one.salt, one.stored_key, one.server_key}.isdisjoint({two.salt, two.stored_key, two.server_key})
    assert passwords.parse(one.text()) == one


def test_nothing_of_it_is_shown() -> None:
    assert repr(passwords.parse(PENCIL)) == "PasswordVerifier(iterations=4096)"


def test_a_password_may_be_typed_in_different_ways() -> None:
    kept = passwords.of("I\N{SOFT HYPHEN}X \N{LATIN SMALL LIGATURE FI}", 4096)
    assert kept.check("IX fi")
    assert kept.check("IX\N{NO-BREAK SPACE}fi")


@pytest.mark.parametrize(
    ("password", "why"),
    [
        ("", "is empty"),
        ("\N{SOFT HYPHEN}", "is empty"),
        ("a\x07", "has characters"),
        ("a\0b", "has characters"),
        ("\udc80", "has characters"),
        ("\N{LOCK}", "has characters"),
        ("a\N{ARABIC LETTER BEH}", "has characters"),
        ("a" * (MAX_PASSWORD + 1), f"has more than {MAX_PASSWORD} bytes"),
        ("\xe9" * (MAX_PASSWORD // 2 + 1), f"has more than {MAX_PASSWORD} bytes"),
    ],
)
def test_a_password_that_not_every_client_could_send_is_refused(password: str, why: str) -> None:
    with pytest.raises(BadPassword) as refused:
        passwords.of(password, 4096)
    assert str(refused.value).startswith(why)
    assert len(password) < 2 or password not in str(refused.value)


def test_the_longest_password_is_taken() -> None:
    assert passwords.of("a" * MAX_PASSWORD, 4096).check("a" * MAX_PASSWORD)


@pytest.mark.parametrize("password", ["\x07", "\udc80", "\N{LOCK}"])
def test_a_password_that_there_cannot_be_is_wrong(password: str) -> None:
    assert not passwords.parse(PENCIL).check(password)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("", "is not of the form"),
        ("pencil", "is not of the form"),
        (PENCIL + "\n", "is not of the form"),
        (" " + PENCIL, "is not of the form"),
        (PENCIL.replace("256", "1"), "is not of the form"),
        (PENCIL.lower(), "is not of the form"),
        (text(""), "is not of the form"),
        (text("-4096"), "is not of the form"),
        (text("04096"), "is not of the form"),
        (text("4\u0660\u0669\u0666"), "is not of the form"),
        (text("9" * 5000), "is not of the form"),
        (text(salt=b""), "is not of the form"),
        (text(stored_key="*" * 44), "is not of the form"),
        (text(MIN_ITERATIONS - 1), "has not 4096 to 1000000 iterations"),
        (text(MAX_ITERATIONS + 1), "has not 4096 to 1000000 iterations"),
        (text(9_999_999_999), "has not 4096 to 1000000 iterations"),
        (text(salt=bytes(MIN_SALT - 1)), "has a salt that has not 12 to 64 bytes"),
        (text(salt=bytes(MAX_SALT + 1)), "has a salt that has not 12 to 64 bytes"),
        (text(stored_key="AAAA"), "has a key that has not 32 bytes"),
        (text(server_key=b64encode(bytes(33)).decode()), "has a key that has not 32 bytes"),
        (text(server_key=KEY[:-1]), "has a part that is not BASE64"),
        (text(server_key=KEY[:-2] + "B="), "has a part that is not BASE64"),
    ],
)
def test_a_text_that_is_not_exact_is_refused(line: str, why: str) -> None:
    with pytest.raises(ValueError) as refused:
        passwords.parse(line)
    assert str(refused.value).startswith(why)


@pytest.mark.parametrize(
    "line", [text(MIN_ITERATIONS), text(MAX_ITERATIONS), text(salt=bytes(12)), text(salt=bytes(64))]
)
def test_the_bounds_themselves_are_taken(line: str) -> None:
    assert passwords.parse(line).text() == line


@given(
    st.builds(
        PasswordVerifier,
        st.integers(MIN_ITERATIONS, MAX_ITERATIONS),
        st.binary(min_size=MIN_SALT, max_size=MAX_SALT),
        st.binary(min_size=32, max_size=32),
        st.binary(min_size=32, max_size=32),
    )
)
def test_what_is_written_is_read_as_it_was(kept: PasswordVerifier) -> None:
    assert passwords.parse(kept.text()) == kept


@given(st.integers(0, len(PENCIL)), st.text(max_size=3), st.integers(0, 3))
def test_a_text_that_is_damaged_is_refused_or_another_password(at: int, put: str, cut: int) -> None:
    damaged = PENCIL[:at] + put + PENCIL[at + cut :]
    try:
        kept = passwords.parse(damaged)
    except ValueError:
        return
    assert kept.text() == damaged
    assert MIN_ITERATIONS <= kept.iterations <= MAX_ITERATIONS


@pytest.mark.parametrize("name", ["a", "_a", "7", "a.b@c+d=e:f,g-h", "A" * MAX_USER])
def test_a_name_for_a_user(name: str) -> None:
    assert is_user(name)


@pytest.mark.parametrize(
    "name", ["", " ", "a b", "a\n", "-a", ".a", "#a", "a*", "a?", "[a]", "{user}", "a/b", "\xe9", "a\0", "A" * 201]
)
def test_no_name_for_a_user(name: str) -> None:
    assert not is_user(name)
