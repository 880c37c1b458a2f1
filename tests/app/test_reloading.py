"""The outcome of a reload: keys that changed, that were refused, and that need a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs

from broker.app.configuration import Config, merged, parse, read
from broker.app.reloading import Reloader
from broker.config.daemon_settings import FIRST_OR_LAST, Access, Broker, Notify, NotifyRule
from broker.config.key_checks import BadConfig
from broker.core.operator_interfaces import KeyChange, Reloaded
from broker.net.tls import Certificates
from broker.wires.elko.elko_settings import BrokerListener, Elko
from broker.wires.mc0.mc0_settings import Mc0
from broker.wires.mtl.mtl_settings import Mtl
from tests.threads import Thread, immediately

A, B, C = BrokerListener("a"), BrokerListener("b", "unix:/b"), BrokerListener("c", "unix:/c")
WARNING = ("journal.full_load is empty: plans have no capacity for any service",)


def reload(old: Config, new: Config | BadConfig, certificates: tuple[Any, ...] = ()) -> tuple[Reloaded, Config]:
    """The result of a reload, and the configuration that runs then."""
    running = [old]

    def read() -> Config:
        if isinstance(new, BadConfig):
            raise new
        return new

    reloader = Reloader(lambda: running[-1], read, lambda: certificates, running.append, immediately)
    return outcome(reloader), running[-1]


def outcome(reloader: Reloader) -> Reloaded:
    """The result of a reload in which nothing waits."""
    results: list[Reloaded] = []
    reloader.reload().addCallback(results.append)
    return results[0]


def test_a_reload_applies_what_it_can() -> None:
    pager = NotifyRule("pager", url="http://h/", secret="geheim")
    old = Config(notify=Notify(rules=(attrs.evolve(pager, secret=None),)))
    new = Config(broker=Broker(grace=5.0, state="/x"), notify=Notify(rules=(pager,)))
    result, running = reload(old, new)
    assert result.changed == (
        KeyChange("broker.grace", "60.0", "5.0"),
        KeyChange("notify.rules[pager].secret", "(not set)", "(hidden)"),
    )
    assert result.restart == (KeyChange("broker.state", "(not set)", '"/x"'),)
    assert (result.refused, result.problems) == ((), ())
    assert running == new.using(broker=Broker(grace=5.0))
    assert list(result.lines)[-3:] == [
        "changed: broker.grace: 60.0 -> 5.0",
        "changed: notify.rules[pager].secret: (not set) -> (hidden)",
        'restart needed: broker.state: (not set) -> "/x"',
    ]


def test_a_reload_without_changes_says_so() -> None:
    result, running = reload(Config(), Config())
    assert result == Reloaded(warnings=WARNING)
    assert result.lines[-1] == "no key differs from the running configuration"
    assert running == Config()


def test_a_bad_file_changes_nothing_and_has_the_lines_of_check() -> None:
    try:
        parse('[broker]\ngrace = "long"\nnonsense = 1\n', "x.toml")
    except BadConfig as error:
        result, running = reload(Config(), error)
        assert result.text == f"{error}\nnothing was changed"
        assert result.problems[0] == "x.toml:2: broker.grace: must be a number, not a string"
    assert running == Config()


def test_without_a_file_there_is_nothing_to_reload() -> None:
    result = outcome(Reloader(Config, None, lambda: (), lambda config: None, immediately))
    assert result.problems == ("there is no configuration file to read again",)


def test_keys_that_would_be_unsafe_with_those_that_need_a_restart_are_refused() -> None:
    old = Config(elko=Elko((BrokerListener(),)))
    pages = BrokerListener(transport="websocket", origins=("https://a.example",))
    result, running = reload(old, Config(elko=Elko((pages,)), broker=Broker(grace=1.0)))
    assert result.problems
    assert all(each.endswith(" (with the keys that need a restart)") for each in result.problems)
    assert [each.key for each in result.refused] == ["broker.grace", "elko.listeners[main].origins"]
    assert (result.changed, running) == ((), old)


def users_file(tmp_path: Path, name: str = "users.toml") -> Access:
    path = tmp_path / name
    path.write_text('[[users]]\nname = "ann"\n')
    path.chmod(0o600)
    return Access(file=str(path))


def test_the_first_users_file_and_the_end_of_the_last_one_need_a_restart_for_a_reason(tmp_path: Path) -> None:
    some, other = users_file(tmp_path), users_file(tmp_path, "other.toml")
    for old, new in [(Access(), some), (some, Access())]:
        result, running = reload(Config(access=old), Config(access=new))
        [change] = result.restart
        assert (change.key, change.why) == ("access.file", FIRST_OR_LAST)
        assert result.lines[-1] == f"restart needed: access.file: {change.old} -> {change.new} ({FIRST_OR_LAST})"
        assert running.access == old
    result, running = reload(Config(access=some), Config(access=other))
    assert [(each.key, each.why) for each in result.changed] == [("access.file", "")]
    assert running.access == other


def test_what_needs_the_first_users_file_waits_for_the_restart_with_it(tmp_path: Path) -> None:
    old = Config(elko=Elko((BrokerListener(endpoint="tcp:9000:interface=127.0.0.1"),)))
    wanted = BrokerListener(endpoint="tcp:9000")
    result, running = reload(old, Config(elko=Elko((wanted,)), access=users_file(tmp_path)))
    assert result.problems == ()
    assert [each.key for each in result.restart] == ["elko.listeners[main].endpoint", "access.file"]
    assert running == old


def test_keys_that_are_gone_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text('[broker]\ngrace = 1.0\n[console]\npassword = "geheim"\n[mc0]\nauth = "open"\n')
    running: list[Config] = []
    reloader = Reloader(Config, lambda: read(path), lambda: (), running.append, immediately)
    result = outcome(reloader)
    assert [each.partition(" is no key any more")[0] for each in result.problems] == [
        f"{path}:4: console.password:",
        f"{path}:6: mc0.auth:",
    ]
    assert "geheim" not in result.text
    assert (result.changed, running) == ((), [])


class Unreadable(Certificates):
    """Certificates whose files are gone."""

    def __init__(self) -> None: ...

    def read(self) -> Any:
        raise ValueError("x.pem cannot be read: No such file or directory")


def test_a_certificate_that_cannot_be_read_changes_nothing() -> None:
    result, running = reload(Config(), Config(broker=Broker(grace=1.0)), (Unreadable(),))
    assert result.problems == ("x.pem cannot be read: No such file or directory",)
    assert [each.key for each in result.refused] == ["broker.grace"]
    assert running == Config()


def test_files_are_read_in_the_thread_and_one_reload_serves_all_who_call_for_it_meanwhile() -> None:
    thread, running = Thread(), [Config()]
    seen: list[tuple[str, str]] = []
    files = iter(Config(broker=Broker(grace=grace)) for grace in (1.0, 2.0))
    reloader = Reloader(lambda: running[-1], lambda: next(files), lambda: (), running.append, thread)

    def served(result: Reloaded, name: str) -> None:
        seen.append((name, result.changed[0].new))

    for name in ("first", "second", "third"):
        reloader.reload().addCallback(served, name)
    assert len(thread.jobs) == 1
    assert running == [Config()]
    thread.work()
    assert seen == [("first", "1.0")]
    thread.work()
    assert seen == [("first", "1.0"), ("second", "2.0"), ("third", "2.0")]
    assert [each.broker.grace for each in running[1:]] == [1.0, 2.0]
    assert not thread.jobs


def test_a_defect_in_a_reload_is_an_answer() -> None:
    def broken() -> Config:
        raise RuntimeError("broken")

    reloader = Reloader(Config, broken, lambda: (), lambda config: None, immediately)
    assert outcome(reloader).problems == ("the broker failed, see its log",)
    assert outcome(reloader).problems == ("the broker failed, see its log",)


def test_listeners_that_came_or_went_wait_for_the_restart() -> None:
    old, new = Config(elko=Elko((A, B))), Config(elko=Elko((C, attrs.evolve(A, label="x"))))
    assert merged(old, new).elko.listeners == (attrs.evolve(A, label="x"), B)
    result, _ = reload(old, new)
    assert [each.key for each in result.restart] == ["elko.listeners[b]", "elko.listeners[c]"]
    assert (result.restart[0].new, result.restart[1].old) == ("(absent)", "(absent)")


def test_no_secret_is_shown() -> None:
    mtl = Mtl(queue_store="postgresql://u@h/d", queue_store_password="geheim")
    rule = NotifyRule("pager", url="http://h/", secret="geheim")
    new = Config(mtl=mtl, mc0=Mc0(secret_key="x" * 40), notify=Notify(rules=(rule,)))
    result, _ = reload(Config(), new)
    assert "geheim" not in result.text
    assert "x" * 40 not in result.text
    assert "secret = (hidden)" in result.text


def test_each_setting_is_shown_with_its_value() -> None:
    mtl = Mtl(queue_store="postgresql://u@h/d", queue_store_password="geheim")
    config = Config(mtl=mtl, broker=Broker(service="east"))
    reloader = Reloader(lambda: config, None, lambda: (), lambda config: None, immediately)
    settings = {each.key: (each.value, each.reloadable) for each in reloader.settings()}
    assert settings["broker.service"] == ('"east"', True)
    assert settings["broker.strict_listeners"] == ("false", False)
    assert settings["mtl.queue_store_password"] == ("(hidden)", False)
    assert settings["elko.listeners[main].allow"] == ('["client", "admin"]', True)
