"""Failures of commands: a sentence for people, and an exit code for scripts."""

from __future__ import annotations

from enum import IntEnum


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
    Exit.NOT_FOUND: "The broker has no such service, provider, view or session.",
    Exit.DENIED: "The user is not authenticated, or has no right to do this.",
    Exit.UNINTELLIGIBLE: "The server's answer is not that of a broker's HTTP API.",
    Exit.INTERRUPTED: "The command was interrupted from the keyboard.",
    Exit.BROKEN_PIPE: "The reader of the output has closed the pipe.",
}
"""The meaning of each exit code, for the manual page."""


class Failure(Exception):
    """A command failed: ``args[0]`` is a sentence, ``code`` the exit code. Texts of servers in it are not clean yet."""

    def __init__(self, sentence: str, code: Exit = Exit.FAILED) -> None:
        super().__init__(sentence)
        self.code = code


class Interrupted(Exception):
    """A signal ended the command. ``number`` is that of the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
