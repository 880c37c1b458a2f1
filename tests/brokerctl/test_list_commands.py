"""The lists: what is asked, and what is printed."""

from __future__ import annotations

import csv
import io
import json

import pytest

from tests.brokerctl.server import Canned, Recorded, Server, ctl, page

BANK = {"service": "bank", "protocol": "tcp", "hostport": "h:1", "provider": 12345, "secret": False}
INN = {"service": "inn", "protocol": "tcp", "hostport": "h:2", "provider": 8, "label": "Inn", "secret": True}


def test_a_table_has_a_heading_and_a_line_for_each_row(server: Server) -> None:
    server.answer("/v1/services", page(BANK, INN))
    result = ctl("--url", server.url, "services")
    assert result.exit_code == 0
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["SERVICE", "HOSTPORT", "PROVIDER", "PROTOCOL", "LABEL"],
        ["bank", "h:1", "12345", "tcp", "-"],
        ["inn", "h:2", "8", "tcp", "Inn"],
    ]
    assert not any(line.endswith(" ") for line in result.stdout.splitlines())
    assert result.stderr == ""


def test_wide_shows_all_columns(server: Server) -> None:
    server.answer("/v1/services", page(BANK, INN | {"news": "x" * 300}))
    lines = ctl("--url", server.url, "services", "-o", "wide").stdout.splitlines()
    assert lines[0].split() == ["SERVICE", "HOSTPORT", "PROVIDER", "PROTOCOL", "LABEL", "SECRET", "NEWS"]
    assert lines[2].endswith("yes     " + "x" * 300)


def test_json_is_the_answer_of_the_api(server: Server) -> None:
    server.answer("/v1/services", page(BANK, total=1))
    result = ctl("services", "--json", "--url", server.url)
    assert json.loads(result.stdout) == page(BANK)
    assert json.loads(ctl("-o", "json", "--url", server.url, "services").stdout) == page(BANK)


def test_csv_has_all_columns_and_no_formulas(server: Server) -> None:
    server.answer("/v1/services", page(BANK | {"label": "=1+1,\x1b"}, INN))
    rows = list(csv.reader(io.StringIO(ctl("--url", server.url, "services", "-o", "csv").stdout)))
    assert rows == [
        ["service", "hostport", "provider", "protocol", "label", "secret"],
        ["bank", "h:1", "12345", "tcp", "'=1+1,\\x1b", "false"],
        ["inn", "h:2", "8", "tcp", "Inn", "true"],
    ]


def test_the_selection_is_left_to_the_broker(server: Server) -> None:
    server.answer("/v1/providers", page())
    words = ("web*", "--sort", "-load", "--where", "wire=mtl", "-w", "label=a", "--offset", 20, "-n", 5)
    result = ctl("--url", server.url, "providers", *words)
    assert result.exit_code == 0
    assert result.stdout == ""
    assert server.last.query == {
        "pattern": ["web*"],
        "sort": ["-load"],
        "where": ["wire=mtl", "label=a"],
        "offset": ["20"],
        "limit": ["5"],
    }


def test_more_rows_than_shown_are_mentioned_beside_the_output(server: Server) -> None:
    server.answer("/v1/topics", page(*[{"topic": "a"}] * 100, total=20_000))
    result = ctl("--url", server.url, "topics")
    assert result.stderr == "100 of 20,000 topics; --limit N or --all shows more, a PATTERN fewer\n"
    assert ctl("--url", server.url, "topics", "--json").stderr == ""


def test_all_rows_are_fetched_page_by_page(server: Server) -> None:
    everything = [{"topic": f"t{number}"} for number in range(2_500)]

    def answer(request: Recorded) -> Canned:
        offset, limit = int(request.query["offset"][0]), int(request.query["limit"][0])
        return Canned(page(*everything[offset : offset + limit], total=len(everything)))

    server.answer("/v1/topics", answer)
    result = ctl("--url", server.url, "topics", "--all", "--json")
    assert json.loads(result.stdout)["rows"] == everything
    assert [request.query["offset"][0] for request in server.requests] == ["0", "1000", "2000"]


def test_a_total_that_lies_does_not_keep_the_command_for_ever(server: Server) -> None:
    server.answer("/v1/topics", page(total=10**9))
    assert ctl("--url", server.url, "topics", "--all").exit_code == 0
    assert len(server.requests) == 1


def test_texts_of_servers_cannot_steer_the_terminal(server: Server) -> None:
    evil = "\x1b]0;owned\x07\x9b31m\u202eabc\r\nx\u2028"
    server.answer("/v1/services", page(BANK | {"label": evil, "\x1b[2J": 1}))
    for words in ([], ["-o", "wide"], ["-o", "csv"], ["--json"]):
        result = ctl("--url", server.url, "services", *words)
        assert result.exit_code == 0
        assert all(character.isprintable() or character == "\n" for character in result.stdout)
    assert json.loads(ctl("--url", server.url, "services", "--json").stdout)["rows"][0]["label"] == evil


def test_the_history_of_loads_is_a_line_of_bars(server: Server) -> None:
    server.answer(
        "/v1/loads/history", page({"provider": 1, "label": "a", "load": 1.0, "loads": [0, None, 0.5, 1.0]}, step=60)
    )
    lines = ctl("--url", server.url, "loads", "--history").stdout.splitlines()
    assert lines[0].split() == ["PROVIDER", "LABEL", "LOAD", "HIGHEST", "LOADS"]
    assert lines[1].endswith("▁ ▅█")


VIEWS = {
    "rows": [
        {
            "name": "mtl sessions",
            "path": "/v1/views/mtl/sessions",
            "help": "Shows the sessions.",
            "columns": [
                {"name": "user", "help": "", "unit": ""},
                {"name": "heard", "help": "", "unit": "seconds"},
                {"name": "bytes", "help": "", "unit": "bytes"},
            ],
        },
        {"name": "director users", "path": "", "help": "Shows users.", "columns": []},
    ]
}


def test_views_lists_the_views_and_shows_one_with_its_units(server: Server) -> None:
    server.answer("/v1/views", VIEWS)
    server.answer("/v1/views/mtl/sessions", page({"user": "anna", "heard": 3700.2, "bytes": 2048}))
    assert [line.split("  ")[0] for line in ctl("--url", server.url, "views").stdout.splitlines()] == [
        "NAME",
        "mtl sessions",
        "director users",
    ]
    lines = ctl("--url", server.url, "views", "mtl", "sessions", "an*").stdout.splitlines()
    assert lines == ["USER  HEARD    BYTES", "anna  1h 1m  2.0 KiB"]
    assert server.last.query["pattern"] == ["an*"]
    missing = ctl("--url", server.url, "views", "mtl", "nothing")
    assert missing.exit_code == 4
    assert missing.stderr == "brokerctl: there is no view 'mtl nothing'; of that wire: mtl sessions\n"


def test_the_director_has_tables(server: Server) -> None:
    server.answer("/v1/views", VIEWS)
    server.answer("/v1/views/director/users", page({"user": "user-joe"}))
    assert "director users" in ctl("--url", server.url, "director").stdout
    assert "mtl" not in ctl("--url", server.url, "director").stdout
    assert ctl("--url", server.url, "director", "users").stdout.splitlines() == ["USER", "user-joe"]


@pytest.mark.parametrize(
    "words",
    [
        ["services", "--where", "x"],
        ["services", "--limit", "0"],
        ["views", "mtl"],
        ["services", "-o", "yaml"],
        ["nothing"],
        ["services", "--timeout", "0"],
        ["queues", "--filter", "zone=b"],
        ["find", "bank", "--near", "zone"],
    ],
)
def test_a_wrong_command_line_is_told_before_anything_is_asked(server: Server, words: list[str]) -> None:
    result = ctl("--url", server.url, *words)
    assert result.exit_code == 2
    assert server.requests == []
