"""The console blocks of the pages: their commands, the outputs that they show, and the tests that run them.

A test takes a command from its page by `printed` or `command_of`, whose arguments are literals. `credited` reads these
calls in the sources of the tests: a command is credited as it is printed, and no longer once its test is gone.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

VARYING = {
    r"\d{16}": "ID",
    r"provider=\d+": "provider=ID",
    r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|\+00:00)": "TIME",
    r'"owner_token":"[\w.-]+"': '"owner_token":"TOKEN"',
}
"""Values that differ in each run, with the word that takes their place on both sides."""

NUMBER = re.compile(r"\d+(?:\.\d+)?(?:[smhd]\b)?")
"""A number, or a time as tables show it."""


def commands(text: str) -> list[tuple[str, str]]:
    """Return the commands of the blocks ``console``, without comments behind them, each with its output."""
    found = []
    for block in re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for part in re.split(r"^[$#] ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            while command.endswith(("|", "\\")):
                more, _, output = output.partition("\n")
                command = f"{command}\n{more}"
            found.append((re.sub(r" +# .*$", "", command), output))
    return found


def printed(page: str, begin: str = "", end: str = "", without: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    """Return the commands of a page between two texts, each with its output, for the test that runs all of them.

    ``without`` are the begins of commands that it leaves out.
    """
    text = (ROOT / page).read_text()
    assert begin in text
    assert end in text
    part = text.partition(begin)[2] if begin else text
    part = part.partition(end)[0] if end else part
    return [each for each in commands(part) if not each[0].startswith(without or "\n")]


def command_of(page: str, command: str) -> str:
    """Return a command of a page, for the test that runs it."""
    assert command in dict(commands((ROOT / page).read_text()))
    return command


def shows(page: str, output: str) -> bool:
    """Return True if an output is the one that a page shows."""
    for pattern, word in VARYING.items():
        page, output = re.sub(pattern, word, page), re.sub(pattern, word, output)
    words = ("(?s:.*?)".join(map(re.escape, re.split(r"\.\.\.|…", word))) for word in page.split())
    return re.fullmatch(r"\s*" + r"\s+".join(words) + r"\s*", output) is not None


def shows_but_numbers(page: str, output: str) -> bool:
    """Return True if an output is the one that a page shows, but for numbers and times."""
    return shows(NUMBER.sub("N", page), NUMBER.sub("N", output))


def as_shown(page: str, command: str, output: str, *names: tuple[str, str]) -> bool:
    """Return True if an output is the one that a page shows for a command, but for numbers and times.

    ``names``: words of the page, each with the one in its place.
    """
    [shown] = [text for each, text in commands((ROOT / page).read_text()) if each == command]
    for name, real in names:
        shown = shown.replace(name, real)
    return shows_but_numbers(shown, output)


def _is_used(statement: ast.stmt, text: str) -> bool:
    """Return True if a statement of a module is a test, or if the module uses a name that it defines."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef) and not statement.name.startswith("test_"):
        names = [statement.name]
    elif isinstance(statement, ast.Assign):
        names = [node.id for each in statement.targets for node in ast.walk(each) if isinstance(node, ast.Name)]
    else:
        return True
    return any(len(re.findall(rf"\b{name}\b", text)) > 1 for name in names)


@cache
def _calls(function: str, literals: int) -> list[tuple[Any, ...]]:
    """Return the first arguments of each call of a function in the tests."""
    found: list[tuple[Any, ...]] = []
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        if "from tests.console_blocks import" not in (text := file.read_text()):
            continue
        used = [each for each in ast.parse(text).body if _is_used(each, text)]
        found += (
            tuple(map(ast.literal_eval, node.args[:literals]))
            for node in (node for each in used for node in ast.walk(each))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function
        )
    return found


def credited(page: str) -> list[tuple[str, str]]:
    """Return the commands of a page that tests run, each with its output if the test compares it."""
    whole = [each for arguments in _calls("printed", 4) if arguments[0] == page for each in printed(*arguments)]
    outputs = dict(commands((ROOT / page).read_text()))
    compared = _calls("as_shown", 2)
    single = [command for place, command in _calls("command_of", 2) if place == page]
    return whole + [(each, outputs.get(each, "") if (page, each) in compared else "") for each in single]
