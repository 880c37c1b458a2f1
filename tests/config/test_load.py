"""From a file to values, or to every error with its line and key.

The file is longer than others: it has all tests of `broker.config.load`.
"""

from __future__ import annotations

import os
from pathlib import Path
from textwrap import dedent

import pytest

from broker.app.configuration import Config, parse, read
from broker.config.daemon_settings import OPEN_FILE, Broker, LauncherEntry, Launchers, Log
from broker.config.files import MAX_SECRET, MAX_SIZE
from broker.config.journal_settings import FullLoad, Journal
from broker.config.key_checks import BadConfig, ConfigError
from broker.wires.dbp.dbp_settings import Dbp
from broker.wires.elko.elko_settings import BrokerLimits, BrokerListener, Elko


def errors(text: str) -> list[tuple[int | None, str, str]]:
    """The problems of ``text``: line, key and text of each error."""
    with pytest.raises(BadConfig) as caught:
        parse(dedent(text), "broker.toml")
    return [(error.line, error.key, error.text) for error in caught.value.errors]


def test_an_empty_file_is_the_defaults() -> None:
    assert parse("", "broker.toml") == Config()


def test_keys_of_every_type_arrive() -> None:
    config = parse(
        dedent(
            """
            [broker]
            state = "/var/lib/broker"
            grace = 5
            diagnostics = false
            [log]
            level = "debug"
            [dbp]
            enabled = false
            endpoint = "tcp://*:7000"
            udp_port = 7001
            beacon = ["192.0.2.255"]
            [[journal.full_load]]
            services = ["context-*", "chat"]
            load = 400
            [[journal.full_load]]
            services = ["*"]
            load = 0.8
            [[launchers.table]]
            name = "game"
            script = "game"
            initial = true
            [[elko.listeners]]
            limits = { waits = 3, rate = 2 }
            [[elko.listeners]]
            name = "lan"
            endpoint = "unix:/run/lan"
            allow = ["admin"]
            label = "Lan"
            [elko.listeners.limits]
            connections = 1
            authenticate_within = 0
            """
        ),
        "broker.toml",
    )
    limits = BrokerLimits(connections=1, authenticate_within=0.0)
    lan = BrokerListener(name="lan", endpoint="unix:/run/lan", allow=("admin",), label="Lan", limits=limits)
    assert config == Config(
        broker=Broker(state="/var/lib/broker", grace=5.0, diagnostics=False),
        log=Log(level="debug"),
        dbp=Dbp(enabled=False, endpoint="tcp://*:7000", udp_port=7001, beacon=("192.0.2.255",)),
        journal=Journal(full_load=(FullLoad(("context-*", "chat"), 400.0), FullLoad(("*",), 0.8))),
        launchers=Launchers(table=(LauncherEntry("game", "game", initial=True),)),
        elko=Elko((BrokerListener(limits=BrokerLimits(waits=3, rate=2.0)), lan)),
    )
    assert isinstance(config.broker.grace, float)
    assert isinstance(config.elko.listeners[0].limits.rate, float)
    assert isinstance(config.journal.full_load[0].load, float)


BAD_TYPES = [
    ('[broker]\ngrace = "60"', 2, "broker.grace", "must be a number, not a string"),
    ("[broker]\ngrace = true", 2, "broker.grace", "must be a number, not a boolean"),
    ("[broker]\ngrace = 1" + "0" * 400, 2, "broker.grace", "is too large a number"),
    (
        "[[elko.listeners]]\nlimits.waits = 0x" + "f" * 9_000,
        2,
        "elko.listeners[0].limits.waits",
        "is too large a number",
    ),
    ("[broker]\n\ndiagnostics = 1", 3, "broker.diagnostics", "must be true or false, not an integer"),
    ("[broker]\nservice = 5", 2, "broker.service", "must be a string, not an integer"),
    ("[broker]\nstate = 2024-01-01", 2, "broker.state", "must be a string, not a date or time"),
    ("broker = 5", 1, "broker", "must be a table, not an integer"),
    ("broker = []", 1, "broker", "must be a table, not an array"),
    ('broker = "x"', 1, "broker", "must be a table, not a string"),
    ('log.level = "warning"', 1, "log.level", 'or "error"; did you mean "warn"?'),
    ("log.level = 3", 1, "log.level", 'must be "debug" or "info" or "warn" or "error", not an integer'),
    ("[[elko.listeners]]\nlimits = { waits = 1.0 }", 2, "elko.listeners[0].limits.waits", "must be an integer"),
    ("[[elko.listeners]]\nlimits.waits = true", 2, "elko.listeners[0].limits.waits", "must be an integer"),
    ('[[elko.listeners]]\nallow = "client"', 2, "elko.listeners[0].allow", "must be an array, not a string"),
    ('[[elko.listeners]]\nallow = ["client",\n"any"]', 2, "elko.listeners[0].allow[1]", 'must be "client" or "admin"'),
    ('[[elko.listeners]]\norigins = ["*", 5]', 2, "elko.listeners[0].origins[1]", "must be a string, not an integer"),
    ('[[elko.listeners]]\ntransport = "tpc"', 2, "elko.listeners[0].transport", 'did you mean "tcp"?'),
    ("[[elko.listeners]]\nlabel = 1234", 2, "elko.listeners[0].label", "must be a string, not an integer"),
    ('[elko.listeners]\nname = "x"', 1, "elko.listeners", "two brackets"),
    ("[elko]\nlisteners = [5]", 2, "elko.listeners[0]", "must be a table, not an integer"),
    ('[mtl.queues]\nqueues = ["x"]', 1, "mtl.queues", "two brackets"),
    ('[[mtl.queues]]\nqueues = "x"', 2, "mtl.queues[0].queues", "must be an array, not a string"),
    ('[[mtl.queues]]\nqueue = ["x"]', 2, "mtl.queues[0].queue", "unknown key; did you mean 'queues'?"),
    ('[dbp]\nudp_port = "5246"', 2, "dbp.udp_port", "must be an integer, not a string"),
    ('[dbp]\nbeacon = "192.0.2.255"', 2, "dbp.beacon", "must be an array, not a string"),
    ("[dbp]\nbeacon = [5245]", 2, "dbp.beacon[0]", "must be a string, not an integer"),
    ("[dbp]\nliveness = 3.5", 2, "dbp.liveness", "must be an integer, not a number with a fraction"),
    ("[dbp]\nport = 5246", 2, "dbp.port", "unknown key"),
    ("[journal]\nkeep_bytes = 1e9", 2, "journal.keep_bytes", "must be an integer, not a number with a fraction"),
    ("[journal]\nkeep = 5", 2, "journal.keep", "unknown key"),
    ('[journal.full_load]\nservices = ["x"]', 1, "journal.full_load", "two brackets"),
    ("[journal]\nfull_load = 400.0", 2, "journal.full_load", "must be an array, not a number with a fraction"),
    ('[[journal.full_load]]\nservices = ["x"]', 1, "journal.full_load[0].load", "is missing"),
    ("[[journal.full_load]]\nload = 1", 1, "journal.full_load[0].services", "is missing"),
    ('[[journal.full_load]]\nservices = ["x"]\nload = "1"', 3, "journal.full_load[0].load", "must be a number, not"),
    ('[[journal.full_load]]\nservices = "x"\nload = 1', 2, "journal.full_load[0].services", "must be an array, not"),
    (
        "[[journal.full_load]]\nservices = [5]\nload = 1",
        2,
        "journal.full_load[0].services[0]",
        "must be a string, not an integer",
    ),
    ("elko.listeners = [{ name = 5 }]", 1, "elko.listeners[0].name", "must be a string"),
    ('[launchers]\n[[launchers.table]]\nname = "x"', 2, "launchers.table[0].script", "is missing"),
    ('[launchers]\n[[launchers.table]]\nscript = "x"', 2, "launchers.table[0].name", "is missing"),
    ('[[launchers.table]]\nscript = "x"\nname = 5', 3, "launchers.table[0].name", "must be a string, not an integer"),
    ("[brokers]\n", 1, "brokers", "unknown key; did you mean 'broker'?"),
    ("zzz = 1\n", 1, "zzz", "unknown key"),
    ("[console]\nendpont = 'x'", 2, "console.endpont", "unknown key; did you mean 'endpoint'?"),
    ('[console]\n"odd key".deep = 1', 2, 'console."odd key"', "unknown key"),
    ('"" = 1', 1, '""', "unknown key"),
    ("a" * 200 + " = 1", 1, '"' + "a" * 80 + '..."', "unknown key"),
]


@pytest.mark.parametrize(("text", "line", "key", "why"), BAD_TYPES)
def test_a_wrong_shape_is_an_error_with_its_line(text: str, line: int, key: str, why: str) -> None:
    ((found_line, found_key, found_why),) = errors(text)
    assert (found_line, found_key) == (line, key)
    assert why in found_why


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[broker]\ngrace = ", 2),
        ("[broker\n", 1),
        ("a = 1\n\n\na = 2\nb = 3\n", 4),
        ("[broker]\ngrace = 1\n[broker]\n", 3),
        ('x = "\nabc"', 1),
        ("\ufeffa = 1", 1),
        ("x = [1,\n2,\n\n", 2),
    ],
)
def test_a_syntax_error_has_its_line(text: str, line: int) -> None:
    with pytest.raises(BadConfig) as caught:
        parse(text, "broker.toml")
    (error,) = caught.value.errors
    assert (error.line, error.key) == (line, "")
    assert error.text.startswith("is no TOML: ")
    assert "at line" not in error.text
    assert str(caught.value) == f"broker.toml:{line}: {error.text}"


@pytest.mark.parametrize(
    ("text", "why"), [("x = " + "[" * 100_000, "is nested too deeply"), ("x = " + "9" * 5_000, "is no TOML")]
)
def test_what_the_reader_itself_trips_over(text: str, why: str) -> None:
    ((line, key, found),) = errors(text)
    assert (line, key) == (None, "")
    assert why in found


def test_all_errors_come_at_once_in_order_of_lines() -> None:
    text = """\
        [broker]
        grace = "x"
        [[elko.listeners]]
        endpoint = "tcp:70000"
        [[elko.listeners]]
        name = "lan"
        endpoint = "tcp:9001:interface=127.0.0.2"
        limits = { waits = -1, burst = 0 }
        alow = ["client"]
        [console]
        endpoint = "tcp:9003"
        [[launchers.table]]
        name = "a"
        [[launchers.table]]
        name = "b"
        script = ""
        """
    assert [(line, key) for line, key, _ in errors(text)] == [
        (2, "broker.grace"),
        (4, "elko.listeners[0].endpoint"),
        (8, "elko.listeners[1].limits.burst"),
        (8, "elko.listeners[1].limits.waits"),
        (9, "elko.listeners[1].alow"),
        (11, "console.endpoint"),
        (12, "launchers.table[0].script"),
        (16, "launchers.table[1].script"),
    ]


def test_no_error_follows_from_another() -> None:
    """A misspelt or ill-typed value is not also missed, nor its default compared with others."""
    text = """\
        [[elko.listeners]]
        name = 5
        endpoint = "tcp:9000"
        transport = "tpc"
        [[elko.listeners]]
        name = "main"
        endpoint = "tcp:9000"
        labl = "x"
        """
    assert [(line, key) for line, key, _ in errors(text)] == [
        (2, "elko.listeners[0].name"),
        (4, "elko.listeners[0].transport"),
        (8, "elko.listeners[1].labl"),
    ]


def test_the_form_of_an_error() -> None:
    bad = BadConfig("f.toml", [ConfigError(7, "b", "two"), ConfigError(3, "a.b", "one"), ConfigError(None, "", "none")])
    assert str(bad) == "f.toml: none\nf.toml:3: a.b: one\nf.toml:7: b: two"


def test_no_error_shows_a_secret() -> None:
    text = '[[elko.listeners]]\nauth = "open"\ncode = "hunter2"\n[console]\npassword = "hunter2\\n\\u0000"\ngrace = 1\n'
    with pytest.raises(BadConfig) as caught:
        parse(text, "broker.toml")
    assert "hunter2" not in str(caught.value)
    curve = f'[mc0]\nsecret_key = "{"0" * 40}"\n'
    with pytest.raises(BadConfig) as caught:
        parse(f"{curve}sessions = 0\n", "broker.toml")
    assert "0" * 40 not in str(caught.value)
    assert "0" * 40 not in repr(parse(curve, "broker.toml"))
    store = '[mtl]\nqueue_store = "postgresql://u@h/d"\nqueue_store_password = "hunter2"\n'
    assert "hunter2" not in repr(parse(store, "broker.toml"))


# Secrets in files

SECRETS = """\
[mtl]
queue_store = "postgresql://u@h/d"
queue_store_password_file = "main.code"

[[notify.rules]]
name = "pager"
url = "https://pager.example/hook"
secret_file = "pager.secret"
"""


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_secrets_come_from_files_beside_the_configuration(tmp_path: Path, end: str) -> None:
    (tmp_path / "main.code").write_bytes(f" sécret {end}".encode())
    (tmp_path / "pager.secret").write_bytes(f"other{end}".encode())
    (tmp_path / "broker.toml").write_text(SECRETS)
    config = read(tmp_path / "broker.toml")
    assert config.mtl.queue_store_password == " sécret "
    assert config.mtl.queue_store_password_file == "main.code"
    assert config.notify.rules[0].secret == "other"


def test_a_secret_may_have_an_absolute_path(tmp_path: Path) -> None:
    (tmp_path / "code").write_text("x\n")
    text = SECRETS.partition("\n\n")[0].replace("main.code", f"{tmp_path}/code")
    assert parse(text, "elsewhere/broker.toml").mtl.queue_store_password == "x"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"one\ntwo\n", "has more than one line"),
        (b"x" * (MAX_SECRET + 1), "is larger than 1024 bytes"),
        (b"a\xff", "is not UTF-8: line 1 has the byte 0xff"),
    ],
)
def test_a_bad_secret_file(tmp_path: Path, content: bytes | None, why: str) -> None:
    (tmp_path / "pager.secret").write_text("x")
    (tmp_path / "broker.toml").write_text(SECRETS)
    if content is not None:
        (tmp_path / "main.code").write_bytes(content)
    with pytest.raises(BadConfig) as caught:
        read(tmp_path / "broker.toml")
    (error,) = caught.value.errors
    assert (error.line, error.key) == (3, "mtl.queue_store_password_file")
    assert error.text.startswith(f"{tmp_path}/main.code ")
    assert why in error.text


def test_a_secret_is_given_once() -> None:
    store = '[mtl]\nqueue_store = "postgresql://u@h/d"\nqueue_store_password = "a"\nqueue_store_password_file = ""\n'
    rule = '[[notify.rules]]\nname = "a"\nurl = "https://a.b"\nsecret = "a"\nsecret_file = "b"\n'
    assert errors(store + rule) == [
        (4, "mtl.queue_store_password_file", "queue_store_password is given too; give one of them"),
        (9, "notify.rules[0].secret_file", "secret is given too; give one of them"),
    ]


def test_an_odd_path_of_a_secret() -> None:
    store = '[mtl]\nqueue_store = "postgresql://u@h/d"\nqueue_store_password_file = "{}"'
    assert errors(store.format("a\\u0000b"))[0][:2] == (3, "mtl.queue_store_password_file")
    assert "is no regular file" in errors(store.format("."))[0][2]


KEY = "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6"
MC0 = """\
[mc0]
secret_key_file = "keys/broker.private"
"""


@pytest.mark.parametrize("content", [KEY, KEY + "\n", f"\ufeff  {KEY}\r\n", f"{KEY} made in May\nfor the farm\n"])
def test_the_secret_key_is_the_first_word_of_its_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "broker.private").write_text(content)
    (tmp_path / "broker.toml").write_text(MC0)
    mc0 = read(tmp_path / "broker.toml").mc0
    assert (mc0.secret_key, mc0.secret_key_file) == (KEY, "keys/broker.private")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"", "has no secret key: its first word must be 40 Z85 characters"),
        (b"made in May\n" + KEY.encode(), "has no secret key"),
        (KEY.encode() + b"0", "has no secret key"),
        (b"#" * 40, "has no secret key"),
        (KEY.encode() + b" " * 4_057, "is larger than 4096 bytes"),
        (b"\xff" * 40, "is not UTF-8"),
    ],
)
def test_a_bad_secret_key_file(tmp_path: Path, content: bytes | None, why: str) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "broker.toml").write_text(MC0)
    if content is not None:
        (tmp_path / "keys" / "broker.private").write_bytes(content)
    with pytest.raises(BadConfig) as caught:
        read(tmp_path / "broker.toml")
    (error,) = caught.value.errors
    assert (error.line, error.key) == (2, "mc0.secret_key_file")
    assert error.text.startswith(f"{tmp_path}/keys/broker.private ")
    assert why in error.text
    assert KEY not in error.text


def test_a_secret_key_is_given_once() -> None:
    assert errors(f'[mc0]\nsecret_key = "{KEY}"\nsecret_key_file = "x"\n') == [
        (3, "mc0.secret_key_file", "secret_key is given too; give one of them")
    ]


OLD = """\
[[elko.listeners]]
auth = "password"
code = "figleaf"
offer = ["a"]
[director]
[[director.listeners]]
code_file = "x"
[mc0]
any_key = true
[[mc0.rules]]
keys = ["a"]
publish = [5]
[[mc0.rules]]
[mtl]
users = "u"
anonymous = true
client_keys = "d"
[[mtl.rules]]
[dbp]
auth = "open"
offer = []
[dns]
auth = "open"
[http]
auth = "users"
[console]
password = "x"
"""


def test_each_key_that_is_gone_is_one_error_with_its_line_and_what_to_do() -> None:
    found = errors(OLD)
    assert [(line, key) for line, key, _ in found] == [
        (2, "elko.listeners[0].auth"),
        (3, "elko.listeners[0].code"),
        (4, "elko.listeners[0].offer"),
        (7, "director.listeners[0].code_file"),
        (9, "mc0.any_key"),
        (10, "mc0.rules"),
        (15, "mtl.users"),
        (16, "mtl.anonymous"),
        (17, "mtl.client_keys"),
        (18, "mtl.rules"),
        (20, "dbp.auth"),
        (21, "dbp.offer"),
        (23, "dns.auth"),
        (25, "http.auth"),
        (27, "console.password"),
    ]
    assert {text for _, _, text in found} == {
        "is no key any more: users and rights are in the users file (access.file). "
        "'brokerctl user import FILE' writes it from this file"
    }


def test_a_listener_that_other_machines_reach_needs_a_users_file_and_the_lines_are_printed(tmp_path: Path) -> None:
    open_file = Path(OPEN_FILE)
    (tmp_path / "x.toml").write_text('[[elko.listeners]]\nendpoint = "tcp:9000"\n')
    with pytest.raises(BadConfig) as caught:
        read(tmp_path / "x.toml")
    first, *lines = str(caught.value).split("\n")
    assert first.startswith(f"{tmp_path}/x.toml:2: elko.listeners[0].endpoint: 0.0.0.0:9000 can be reached from other")
    assert [line.strip().partition("  #")[0] for line in lines] == [
        "[access]",
        'file = "users.toml"',
        "or, where everybody may do everything,",
        "[access]",
        f'file = "{open_file}"',
    ]
    with (tmp_path / "x.toml").open("a") as file:
        file.write("\n".join(lines[3:]))
    assert read(tmp_path / "x.toml").access.file == str(open_file)


@pytest.mark.parametrize("config", ["broker.toml", "./sub/../broker.toml"])
def test_the_directory_of_the_journal_is_relative_to_the_file_and_comes_out_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "broker.toml").write_text('[journal]\ndirectory = "metrics/journal"\n')
    monkeypatch.chdir(tmp_path)
    found = read(config).journal.directory
    assert found is not None
    assert Path(found).is_absolute()
    assert Path(found).resolve() == tmp_path / "metrics" / "journal"


def test_the_state_directory_is_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start from another working directory finds the same state."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "broker.toml").write_text('[broker]\nstate = "state"\n')
    monkeypatch.chdir(tmp_path / "sub")
    found = read("../broker.toml").broker.state
    assert found is not None
    assert Path(found).is_absolute()
    assert Path(found).resolve() == tmp_path / "state"


# Files


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"[broker]\n\n# caf\xe9\n", "is not UTF-8: line 3 has the byte 0xe9"),
        (b"#" * (MAX_SIZE + 1), f"is larger than {MAX_SIZE} bytes"),
    ],
)
def test_a_file_that_is_no_text(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "broker.toml"
    path.write_bytes(content)
    with pytest.raises(BadConfig) as caught:
        read(path)
    assert str(caught.value) == f"{path}: {why}"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path, why in [
        (tmp_path, "is no regular file"),
        (tmp_path / "none.toml", "cannot be read: No such file or directory"),
        (Path("/dev/zero"), "is no regular file"),
        (Path("a\0b"), "cannot be read: a zero byte in its name"),
    ]:
        with pytest.raises(BadConfig) as caught:
            read(path)
        assert str(caught.value) == f"{path}: {why}"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.touch(0)
    with pytest.raises(BadConfig, match="Permission denied"):
        read(str(path))


def test_windows_line_ends_and_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_bytes(b"\xef\xbb\xbf[broker]\r\n\r\ngrace = 1\r\n")
    assert read(path).broker.grace == 1.0
    path.write_bytes(b"\xef\xbb\xbf[broker]\r\n\r\ngrace = -1\r\n")
    with pytest.raises(BadConfig) as caught:
        read(path)
    assert caught.value.errors[0].line == 3
