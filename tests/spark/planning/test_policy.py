"""The policy file: values, and errors with file, line and key."""

from datetime import UTC, datetime

import pytest

from spark.capacity.planning.policy import (
    DEFAULT,
    Assumptions,
    Event,
    Exclusion,
    Policy,
    PolicyError,
    read_assumptions,
)

FILE = """\
growth = 1.1

[[policy]]
services = "chat-*"
headroom = 1.2
target = 0.7
spares = 1
n_plus = 2
min = 3
max = 40
cost = 12.5

[[policy]]
target = 0.9

[[event]]
services = "chat-*"
from = 2026-12-24T18:00:00Z
to = 2026-12-25T00:00:00
factor = 2

[[exclude]]
from = 2026-11-03T10:00:00+01:00
to = 2026-11-03T12:00:00Z
"""


def written(tmp_path, text):
    path = tmp_path / "plan.toml"
    path.write_text(text)
    return path


def test_a_file_has_policies_events_and_exclusions(tmp_path):
    told = read_assumptions(written(tmp_path, FILE))
    chat = Policy("chat-*", 1.2, 0.7, 1, 2, 3, 40, 12.5)
    assert told.policies == (chat, Policy(target=0.9))
    assert (told.of("chat-1"), told.of("auth"), Assumptions().of("auth")) == (chat, Policy(target=0.9), DEFAULT)
    until = datetime(2026, 12, 25, tzinfo=UTC)
    assert told.events == (Event(datetime(2026, 12, 24, 18, tzinfo=UTC), until, "chat-*", factor=2),)
    begin, end = datetime(2026, 11, 3, 9, tzinfo=UTC), datetime(2026, 11, 3, 12, tzinfo=UTC)
    assert told.exclusions == (Exclusion(begin, end),)
    assert told.growth == 1.1
    assert (told.excluded("auth", begin), told.excluded("auth", end)) == (True, False)


def test_a_pattern_without_a_service_is_an_error_with_its_line(tmp_path):
    path = written(tmp_path, FILE)
    told = read_assumptions(path)
    told.need_services(["chat-1", "auth"])
    with pytest.raises(PolicyError, match=r"plan\.toml, line 4: services = 'chat-\*' matches no service"):
        told.need_services(["auth"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("growth = 0\n", r"line 1: growth: Expected `float` > 0.0$"),
        ("growth = inf\n", r"line 1: growth: Expected `float` <= "),
        ("\ngrwth = 1\n", r"line 2: grwth: Object contains unknown field `grwth`$"),
        ("\na-b = 1\n", r"line 2: a-b: Object contains unknown field `a-b`$"),
        ('"" = 1\n', r"plan\.toml: Object contains unknown field ``$"),
        ("[[policy]]\nhead-room = 1\n", r"line 2: \[\[policy\]\] head-room: Object contains unknown field"),
        ("[[exclude]]\nfrom = 0001-01-01T00:00:00+23:00\nto = 2026-01-02T00:00:00Z\n", "cannot be read: .*range"),
        ("growth = " + 5_000 * "[", "cannot be read: .*recursion"),
        ("[policy]\ntarget = 0.8\n", r"line 1: policy: Expected a table with two brackets$"),
        ("policy = [1]\n", r"plan\.toml.*Expected `object`, got `int`$"),
        (
            "[[policy]]\ntarget = 0.8\n[[policy]]\n\ntarget = 1.5\n",
            r"line 5: \[\[policy\]\] target: Expected `float` <= 1.0$",
        ),
        (
            "[[policy]]\nhead_room = 1\n",
            r"line 2: \[\[policy\]\] head_room: Object contains unknown field `head_room`$",
        ),
        ("[[policy]]\nspares = true\n", r"line 2: \[\[policy\]\] spares: Expected `int`, got `bool`$"),
        ("[[policy]]\nspares = -1\n", r"line 2: \[\[policy\]\] spares: Expected `int` >= 0$"),
        ("[[policy]]\nheadroom = nan\n", r"line 2: \[\[policy\]\] headroom: Expected `float` >= 1.0$"),
        ("[[policy]]\nmin = 5\nmax = 4\n", r"line 3: \[\[policy\]\] max: `max` must not be less than min$"),
        ("[[policy]]\nservices = ''\n", r"line 2: \[\[policy\]\] services: Expected `str` of length >= 1$"),
        (
            "[[event]]\nfrom = 2026-01-01T00:00:00Z\nto = 2026-01-02T00:00:00Z\n",
            r"line 1: \[\[event\]\] factor: Object missing required field `factor`$",
        ),
        ("[[exclude]]\nfrom = 2026-01-02T00:00:00Z\nto = 2026-01-02T00:00:00Z\n", "line 3: .* must be after from"),
        (
            "[[exclude]]\nfrom = 2026-01-02\nto = 2026-01-03\n",
            r"line 2: \[\[exclude\]\] from: Expected `datetime`, got `date`$",
        ),
        ("growth = \n", r"plan\.toml is no TOML: .*line 1"),
    ],
)
def test_a_file_that_cannot_be_used_is_said_with_line_and_key(tmp_path, text, said):
    with pytest.raises(PolicyError, match=said):
        read_assumptions(written(tmp_path, text))


def test_a_file_that_is_not_there_or_no_text_is_said(tmp_path):
    with pytest.raises(PolicyError, match="cannot be read"):
        read_assumptions(tmp_path / "none.toml")
    (tmp_path / "x").write_bytes(b"\xff\xfe")
    with pytest.raises(PolicyError, match="cannot be read"):
        read_assumptions(tmp_path / "x")
