"""Blocking functions: no code of the daemon waits in the reactor's thread, by its source and when it runs."""

from __future__ import annotations

import ast
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThread
from twisted.trial.unittest import TestCase

from broker import blocking as checks
from broker.blocking import blocking, unavoidable
from broker.core.worker import TimedThread, Worker
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]

OUTSIDE = {
    "broker/brokerctl/": "a program of its own",
    "broker/client/": "the library of clients",
    "broker/brokerkeys.py": "a program of its own",
    "broker/access/editing.py": "changes of the users file by commands",
    "broker/access/users_file.py": "changes of the users file by commands",
    "broker/app/process.py": "--check-ports",
    "broker/config/cluster_settings.py": "the warnings of a configuration, which are made where it is read",
    "broker/config/load.py": "--example",
    "broker/curve_keys.py": "keys, which brokerkeys reads",
    "broker/tap.py": "the command line",
    "broker/standard_streams.py": "the output of commands",
    "broker/pem.py": "TLS files, which Certificates.read, the checks of a configuration and brokerctl read",
    "broker/logs/": "the log's own thread",
    "broker/net/listeners.py": "part of binding a listener",
    "broker/net/zmtp/build.py": "a program of its own",
    "broker/net/zmtp/helpers.py": "the compiled parts, which are loaded with their module",
}
"""Modules whose functions may block without `blocking`, and why."""

CALLS = {
    "open", "os.open", "os.fdopen", "os.stat", "os.lstat", "os.statvfs", "os.scandir", "os.listdir", "os.replace",
    "os.rename", "os.remove", "os.unlink", "os.link", "os.symlink", "os.readlink", "os.mkdir", "os.makedirs",
    "os.rmdir", "os.chmod", "os.fchmod", "os.truncate", "os.ftruncate", "os.fsync", "os.fdatasync", "os.access",
    "os.posix_fallocate", "os.path.exists", "os.path.lexists", "os.path.isfile", "os.path.isdir", "os.path.getsize",
    "os.path.getmtime", "socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.getfqdn",
    "sqlite3.connect", "psycopg.connect", "time.sleep", "tempfile.mkstemp", "shutil.which", "shutil.copy",
    "shutil.move", "shutil.rmtree", "fcntl.flock", "fcntl.lockf", "metadata.version",
}  # fmt: skip
"""Calls that may wait. `open` of other objects is not meant."""

METHODS = {"read_text", "read_bytes", "write_text", "write_bytes", "iterdir", "glob", "unlink", "is_file", "is_dir"}
"""Methods of paths that may wait, by their names alone."""

LAST_NAMES = METHODS | {each.rpartition(".")[2] for each in CALLS}
"""Names by which a call may be one of these. To write each call of the source as text would take seconds."""

MAY_CALL = re.compile(rf"\b(?:{'|'.join(sorted(LAST_NAMES))})\s*\(")
"""Text of a module that may have such a call. To parse the others would take seconds as well."""


def waits(call: ast.Call) -> bool:
    """True if a call may wait, by its name."""
    last = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if last not in LAST_NAMES:
        return False
    name = ast.unparse(call.func)
    if name in CALLS:
        # Files of /proc are no files of a disk.
        return not (call.args and ast.unparse(call.args[0]).startswith("'/proc/"))
    return isinstance(call.func, ast.Attribute) and call.func.attr in METHODS and not name.startswith("os.")


def marked(node: ast.AST) -> bool:
    """True for a function that bears `blocking`, and for a block of `unavoidable`."""
    if isinstance(node, ast.FunctionDef):
        return any(ast.unparse(each) == "blocking" for each in node.decorator_list)
    if isinstance(node, ast.With):
        return any(ast.unparse(each.context_expr).startswith("unavoidable(") for each in node.items)
    return False


def unmarked(node: ast.AST, function: str = "") -> Iterator[tuple[str, int, str]]:
    """Yield the calls below a node that may wait outside a blocking function: function, line and call."""
    for child in ast.iter_child_nodes(node):
        if marked(child):
            continue
        if isinstance(child, ast.Call) and function and waits(child):
            yield function, child.lineno, ast.unparse(child.func)
        inside = child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else function
        yield from unmarked(child, inside)


def test_calls_that_may_wait_stand_in_blocking_functions_only() -> None:
    found = []
    for path in sorted((ROOT / "broker").rglob("*.py")):
        name, source = str(path.relative_to(ROOT)), path.read_text()
        if not name.startswith(tuple(OUTSIDE)) and MAY_CALL.search(source):
            found += [f"{name}:{line}: {call} in {at}" for at, line, call in unmarked(ast.parse(source))]
    assert found == []


def test_each_module_that_is_left_out_exists() -> None:
    assert [each for each in OUTSIDE if not (ROOT / each).exists()] == []


@blocking
def slow(value: int) -> int:
    return value


class Serving(TestCase):
    """A reactor that serves."""

    def setUp(self) -> None:
        self.seen: list[str] = []
        checks.serve(lambda what, stack: self.seen.append(what))
        self.addCleanup(checks.ended)

    def test_a_blocking_function_in_the_thread_of_the_reactor_is_reported_once(self) -> None:
        assert [slow(number) for number in range(3)] == [0, 1, 2]
        assert self.seen == ["tests.core.test_worker.slow"]

    async def test_elsewhere_it_is_not(self) -> None:
        worker = Worker(reactor, "test")
        worker.start()
        self.addCleanup(worker.stop)
        assert await worker.run(slow, 5) == 5
        assert await deferToThread(slow, 6) == 6
        with unavoidable("this is a test"):
            slow(7)
        checks.ended()
        slow(8)
        assert self.seen == []

    async def test_one_thread_keeps_the_order(self) -> None:
        worker = Worker(reactor, "test")
        worker.start()
        self.addCleanup(worker.stop)
        done: list[int] = []
        for number in range(50):
            last = worker.run(done.append, number)
        await last
        assert done == list(range(50))

    async def test_the_exception_of_a_function_is_the_result(self) -> None:
        worker = Worker(reactor, "test")
        worker.start()
        self.addCleanup(worker.stop)
        for error in (ZeroDivisionError, KeyboardInterrupt):

            def fail(error: type[BaseException] = error) -> None:
                raise error

            with pytest.raises(error):
                await worker.run(fail)
        assert await worker.run(dict, a=1) == {"a": 1}

    async def test_calls_wait_for_the_start_and_have_as_many_threads_as_they_need(self) -> None:
        worker = Worker(reactor, "test", threads=3)
        met = threading.Barrier(3, timeout=PATIENCE)
        early = [worker.run(met.wait) for _ in range(2)]
        worker.start()
        self.addCleanup(worker.stop)
        for each in (*early, worker.run(met.wait)):
            await each
        names = {await worker.run(lambda: threading.current_thread().name) for _ in range(9)}
        assert names <= {"test-0", "test-1", "test-2"}

    def test_the_end_waits_for_the_calls_that_were_made_and_makes_no_others(self) -> None:
        worker = Worker(reactor, "test")
        worker.start()
        done: list[int] = []
        for number in range(5):
            worker.run(done.append, number)
        worker.stop()
        assert done == list(range(5))
        worker.run(done.append, 5)
        worker.stop()
        assert done == list(range(5))
        assert not [each for each in threading.enumerate() if each.name.startswith("test-")]

    def test_the_end_is_not_delayed_by_a_call_beyond_the_patience(self) -> None:
        worker = Worker(reactor, "test", patience=0.01)
        worker.start()
        hanging = threading.Event()
        self.addCleanup(hanging.set)
        worker.run(hanging.wait)
        worker.stop()
        assert not hanging.is_set()

    async def test_a_timed_thread_calls_functions_while_the_thread_of_the_reactor_is_busy(self) -> None:
        timed = TimedThread(reactor, "test")
        self.addCleanup(timed.stop)
        threads: list[str] = []
        done, reported = threading.Event(), Deferred[str]()

        def fail() -> None:
            raise ZeroDivisionError

        def last() -> None:
            threads.append(threading.current_thread().name)
            done.set()
            timed.report(lambda: reported.callback(threading.current_thread().name))

        timed.after(0.0, fail)
        timed.after(0.0, lambda: threads.append("first"))
        timed.after(0.01, last)
        assert done.wait(PATIENCE)  # in the thread of the reactor, which does nothing else
        assert threads == ["first", "test"]
        assert await reported == threading.current_thread().name
        assert len(self.flushLoggedErrors(ZeroDivisionError)) == 1  # type: ignore[no-untyped-call]

    def test_a_timed_thread_ends_without_the_calls_that_are_not_due(self) -> None:
        timed = TimedThread(reactor, "test")
        called: list[int] = []
        timed.after(3_600, lambda: called.append(1))
        timed.stop()
        assert called == []
