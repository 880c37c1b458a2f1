"""The commands of docs/tutorial.md print the output that the page shows.

The test runs the page from the first command to the section before the capacity plan, against daemons on free ports. A
block ``console NAME.py`` is further output of the running example NAME.py.
"""

from __future__ import annotations

import queue
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path

import attrs
import pytest

from tests.console_blocks import printed
from tests.integration.daemon import ROOT, Daemon, environment
from tests.integration.mc0_clients import console
from tests.patience import PATIENCE, until

TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
LAST = "## Make a capacity plan"

ASSIGNED = re.compile(r"(?<=reservation )\d+|(?<=\(provider )\d+|(?<=\"provider\": )\d+")  # differs in each run


@attrs.frozen
class Block:
    """A block of the page: the example whose output it continues, if any, and its lines."""

    continues: str | None
    lines: tuple[str, ...]


def blocks(text: str) -> list[Block]:
    """The blocks ``console`` of a page, in order."""
    found = re.findall(r"^```console(?: (\S+))?\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [Block(name or None, tuple(body.splitlines())) for name, body in found]


class Program:
    """A running example, whose output is read as it comes; standard error is part of it."""

    def __init__(self, command: list[str], directory: Path) -> None:
        self._process = subprocess.Popen(
            command, cwd=directory, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def next(self) -> str:
        """The next line of output. Fails at the end of the output."""
        line = self._lines.get(timeout=PATIENCE)
        assert line, "the program has ended"
        return line.rstrip("\n")

    def stop(self) -> None:
        """Interrupt it as an operator does, and wait for its end."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait(PATIENCE)
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")


class Console:
    """A connection to the console, which reads line by line."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self._input = self._socket.makefile(encoding="utf-8", newline="\r\n")

    def close(self) -> None:
        """Close the connection."""
        self._input.close()
        self._socket.close()

    def follow(self, shown: list[str]) -> None:
        """Send each command of the page, and compare the answer: one line, or the lines from ``{`` to ``}``."""
        while shown:
            self.type(shown.pop(0))
            self.expect(shown)

    def type(self, line: str) -> None:
        """Send one line."""
        self._socket.sendall(f"{line}\r\n".encode())

    def expect(self, shown: list[str]) -> None:
        """Compare one answer with the beginning of ``shown``, and remove it there."""
        answer = self.answer()
        expected = "\n".join(shown[: len(answer)])
        assert ASSIGNED.sub("N", "\n".join(answer)) == ASSIGNED.sub("N", expected)
        del shown[: len(answer)]

    def answer(self) -> list[str]:
        """The lines of the next answer."""
        lines = [self._input.readline().rstrip("\r\n")]
        while lines[0] == "{" and lines[-1] != "}":
            lines.append(self._input.readline().rstrip("\r\n"))
        assert lines[-1], "the console closed the connection"
        return lines


class Reader:
    """Runs the blocks of the tutorial in order, each as a reader of the page would."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._stack = stack
        self._running: dict[str, Program] = {}
        self._daemon: Daemon
        self.commands: list[str] = []

    def start(self, arguments: list[str]) -> None:
        """``make run``: a daemon on free ports, in a state directory of its own."""
        self._directory /= f"{len(arguments)}"
        self._directory.mkdir()
        ports = ["0" if each.isdigit() else each for each in arguments]
        self._daemon = self._stack.enter_context(Daemon(self._directory, *ports))
        self._daemon.port()

    def stop(self) -> None:
        """Stop the programs that still run."""
        for program in self._running.values():
            program.stop()
        self._running.clear()

    def read(self, block: Block) -> None:
        """Run the commands of a block, and compare its output."""
        if block.continues is not None:
            self._see(self._running[block.continues], block.lines)
            return
        if block.lines[0] == "watch":
            self._change_of_a_service(block.lines)
            return
        commands = [index for index, line in enumerate(block.lines) if line.startswith("$ ")]
        for begin, end in zip(commands, [*commands[1:], len(block.lines)], strict=True):
            self.commands.append(block.lines[begin][2:])
            self._run(shlex.split(self.commands[-1], comments=True), block.lines[begin + 1 : end])

    def _run(self, command: list[str], lines: tuple[str, ...]) -> None:
        match command:
            case ["make", "run", *arguments]:
                self.stop()
                self.start(" ".join(arguments).removeprefix("ARGS=").split())
            case ["telnet", *_]:
                operator = Console(self._daemon.console_port())
                self._stack.callback(operator.close)
                shown = [line.replace("0.1.0", metadata.version("elkobroker")) for line in lines]
                operator.expect(shown)
                operator.follow(shown)
            case ["nc", _, port]:
                place = self._daemon.port() if port == "9000" else self._director_port()
                peer = self._stack.enter_context(socket.create_connection(("127.0.0.1", place), PATIENCE))
                peer.sendall("".join(f"{line}\n" for line in lines).encode())
            case [".venv/bin/python", example, *arguments]:
                self._start_example(Path(example).name, arguments, lines)
            case _:
                raise AssertionError(f"a command that the test does not know: {command}")

    def _start_example(self, name: str, arguments: list[str], lines: tuple[str, ...]) -> None:
        if name in self._running and name != "provider.py":
            self._running.pop(name).stop()
        program = Program([sys.executable, "-u", str(ROOT / "examples" / name), *self._at(name), *arguments], ROOT)
        self._running[name if name not in self._running else f"{name} {len(self._running)}"] = program
        self._see(program, lines)
        if not lines:
            # The page has a find wait, and then starts the provider that answers it.
            until(lambda: "registry.waits 1\n" in console(self._daemon, "counters"))

    def _see(self, program: Program, lines: tuple[str, ...]) -> None:
        for line in lines:
            assert ASSIGNED.sub("N", program.next()) == ASSIGNED.sub("N", line)

    def _change_of_a_service(self, lines: tuple[str, ...]) -> None:
        """Type ``watch``, interrupt the provider of the bank, and compare the notice."""
        assert lines[:2] == ("watch", "...")
        operator = Console(self._daemon.console_port())
        self._stack.callback(operator.close)
        operator.expect(['elkobroker console. Type help, or a message such as {op:"servicedesc"}'])
        operator.type("watch")
        # The page leaves out the services that are there. The answer to a second command ends them.
        operator.type("version")
        while not operator.answer()[0].startswith("elkobroker "):
            pass
        self._running.pop("provider.py").stop()
        operator.expect(list(lines[2:]))

    def _at(self, name: str) -> list[str]:
        """The option with which an example connects to the daemon instead of to the default ports."""
        if name == "service.py":
            return ["--port", str(self._daemon.dbp_port())]
        if name == "farm.py":
            return ["--broker", f"tcp://127.0.0.1:{self._daemon.mc0_port()}"]
        if name.startswith("mtl_"):
            return ["--broker", self._daemon.wait_for(r"mtl on (tcp://127\.0\.0\.1:\d+)").group(1)]
        return ["--broker", f"127.0.0.1:{self._daemon.port()}"]

    def _director_port(self) -> int:
        return int(self._daemon.wait_for(r"director listener \S+ on \S+:(\d+) ").group(1))


@pytest.mark.long
def test_the_tutorial_shows_what_its_reader_sees(tmp_path: Path) -> None:
    with ExitStack() as stack:
        reader = Reader(tmp_path, stack)
        stack.callback(reader.stop)
        for block in blocks(TUTORIAL.partition(LAST)[0]):
            reader.read(block)
        run = [command for command in reader.commands if not command.startswith("make run")]
        shown = printed("docs/tutorial.md", "", "## Make a capacity plan", ("make run",))
        assert run == [command for command, _ in shown]
