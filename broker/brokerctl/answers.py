"""Failures of commands, and the conversion of answers of the API to values or failures. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from http import HTTPStatus
from typing import Any

import msgspec

# Failures: a sentence for people, and an exit code for scripts.


class Exit(IntEnum):
    """The exit codes. Those of signals are 128 plus the number of the signal."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    NOT_FOUND = 4
    DENIED = 5
    UNINTELLIGIBLE = 6
    INTERRUPTED = 130
    BROKEN_PIPE = 141


MEANINGS = {
    Exit.OK: "The command succeeded.",
    Exit.FAILED: "The broker refused the request, a check failed, or the output cannot be written.",
    Exit.USAGE: "The command line or the contexts file is wrong.",
    Exit.UNREACHABLE: "The broker cannot be reached, or does not answer in time.",
    Exit.NOT_FOUND: "The broker has no such service, provider, view, session or message.",
    Exit.DENIED: "The user is not authenticated, or has no right to do this.",
    Exit.UNINTELLIGIBLE: "The answer did not come from a broker's HTTP API.",
    Exit.INTERRUPTED: "The command was interrupted from the keyboard.",
    Exit.BROKEN_PIPE: "The reader of the output has closed the pipe.",
}
"""The meaning of each exit code, for the manual page."""


class Failure(Exception):
    """A command failed: ``args[0]`` is a sentence, ``code`` the exit code. Text of servers in it is not sanitized."""

    def __init__(self, sentence: str, code: Exit = Exit.FAILED) -> None:
        super().__init__(sentence)
        self.code = code


def usage(sentence: str) -> Failure:
    """Return the failure of a wrong command line, or of a wrong file that it names."""
    return Failure(sentence, Exit.USAGE)


class Interrupted(BaseException):
    """A signal ended the command. ``number`` is that of the signal. Like KeyboardInterrupt, it is no `Exception`."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


# Answers: JSON of the API, or the failure that an answer means.

SHOWN = 300
"""Characters of a server's text in a message: a sentence, and not a page."""


class Answer(msgspec.Struct, frozen=True):
    """A complete answer. ``where`` and ``path`` are the address that was asked, for messages."""

    status: int
    content_type: str
    body: bytes
    where: str
    path: str = ""
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)

    def value(self) -> Any:
        """Return the JSON of a success, None for an empty one. Raises `Failure`."""
        if not 200 <= self.status < 300:
            raise self.failure()
        return self.json()

    def json(self) -> Any:
        """Return the JSON of any answer, None for an empty one. Raises `Failure`."""
        if not self.body:
            return None
        kind = self.content_type.partition(";")[0].strip().lower()
        if kind != "application/json" and not kind.endswith("+json"):
            raise self._foreign(f"answers with {kind or 'no content type'} where JSON is expected")
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise self._foreign(f"answers with JSON that cannot be read ({error})") from None

    def failure(self) -> Failure:
        """Return the failure of an answer that is no success."""
        if 300 <= self.status < 400:
            to = self.headers.get("location", "nowhere")[:SHOWN]
            return self._foreign(f"redirects to {to}, which is not followed")
        code = _CODES.get(self.status, Exit.FAILED)
        problem: Any = None
        if self.content_type.startswith("application/problem+json"):
            try:
                problem = msgspec.json.decode(self.body)
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                problem = None
        if isinstance(problem, dict):
            detail = problem.get("detail") or problem.get("title")
            if detail == NO_PATH:
                return self._foreign(f"has no {self.path}: the broker is of another version than brokerctl")
            if isinstance(detail, str):
                return Failure(detail[:SHOWN], code)
        status = f"{self.status} {_phrase(self.status)}".strip()
        if self.status in (502, 503, 504):
            return Failure(f"{self.where} answers {status}: a proxy before the broker does not reach it", code)
        if self.status in (404, 405, 501):
            return self._foreign(f"answers {status}: the broker is of an older version, or this is another server")
        if code is Exit.DENIED:
            return Failure(f"{self.where} answers {status} without a reason: a proxy refuses the request", code)
        return self._foreign(f"answers {status} without a reason: this is another server, or not the HTTP listener")

    def _foreign(self, what: str) -> Failure:
        return Failure(f"{self.where} {what}", Exit.UNINTELLIGIBLE)


NO_PATH = "there is nothing at this path"
"""The detail of a broker's answer to a path that it does not have."""

_CODES = {
    401: Exit.DENIED,
    403: Exit.DENIED,
    404: Exit.NOT_FOUND,
    502: Exit.UNREACHABLE,
    503: Exit.UNREACHABLE,
    504: Exit.UNREACHABLE,
}


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a JSON object. Raises `Failure` for all else."""
    if not isinstance(value, dict):
        raise Failure(_STRANGE, Exit.UNINTELLIGIBLE)
    return value


def rows(value: Any, key: str = "rows") -> Sequence[Mapping[str, Any]]:
    """Return the rows of a list's answer. Raises `Failure` if it has none."""
    found = mapping(value).get(key)
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise Failure(_STRANGE, Exit.UNINTELLIGIBLE)
    return found


_STRANGE = "the form of the server's answer is unknown to this version of brokerctl"
