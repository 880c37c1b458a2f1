"""The import of users and rights from configurations of former versions."""

from __future__ import annotations

import stat
import tomllib
from pathlib import Path

import pytest

from broker.access import importing, users_document
from broker.access.passwords import MIN_ITERATIONS, of
from broker.access.rights import grants_of
from broker.access.users_document import UserDirectory, parse
from broker.access.users_file import EditFailed
from broker.config.removed_keys import keys_of_users
from tests.access.users import KEY, OTHER_KEY, put

JOBS = of("pencil", MIN_ITERATIONS)

ELKO = """\
[[elko.listeners]]
name = "lan"
endpoint = "tcp:9000:interface=192.0.2.1"
auth = "password"  # of the farm
code = "figleaf"
offer = ["context-*"]
allow = ["client"]
[[elko.listeners]]
name = "ops"
endpoint = "tcp:9002:interface=127.0.0.1"
[director]
[[director.listeners]]
endpoint = "tcp:9010:interface=192.0.2.1"
auth = "password"
code = "figleaf"
allow = ["user", "provider"]
"""

MC0 = """\
[mc0]
endpoint = "tcp://*:61616"
secret_key_file = "broker.private"
client_keys = "clients"
"""

MC0_RULES = """\
[[mc0.rules]]
keys = ["operator"]
publish = ["*"]
subscribe = ["*"]
[[mc0.rules]]
keys = ["web*"]
publish = ["reply [x] *"]
subscribe = ["nodes {key}"]
"""

MTL = """\
[mtl]
endpoint = "tcp://*:5975"
users = "mtl.users"
hosts = ["/", "jobs"]
"""

MTL_RULES = """\
[[mtl.rules]]
users = ["jobs-*"]
hosts = ["/"]
read = ["queue:jobs *", "registry:service/bank*"]
write = ["topic:news {user}", "service:*", "registry:*"]
offer = ["job-*"]
"""


def imported(directory: Path, text: str) -> importing.Imported:
    clients = directory / "clients"
    clients.mkdir(exist_ok=True)
    (clients / "web1.public").write_text(f"{KEY} of web1\n")
    (clients / "operator.public").write_text(OTHER_KEY)
    (clients / "broken.public").write_text("no key")
    put(directory / "mtl.users", f"# users\njobs-1 {JOBS.text()}\n")
    put(directory / "x.toml", text)
    return importing.imported(str(directory / "x.toml"))


def users_of(found: importing.Imported) -> UserDirectory:
    assert found.users is not None
    assert keys_of_users(found.configuration) == []
    assert 'file = "users.toml"' in found.configuration
    return parse("users.toml", found.users)


Cases = list[tuple[str, str, str, str, str, bool]]
"""User, listener, operation, name, kind, and True if that is granted."""


def check(users: UserDirectory, cases: Cases) -> None:
    for user, listener, operation, name, kind, granted in cases:
        assert grants_of(user, listener, users.rights).may(operation, name, kind) is granted, (user, operation, name)


LAN, OPS, FARM = "elko listener 'lan'", "elko listener 'ops'", "director listener 'main'"


def test_codes_become_tokens_of_one_user_with_rights_at_their_listeners(tmp_path: Path) -> None:
    users = users_of(imported(tmp_path, ELKO))
    assert users.tokens[users_document.token_hash("figleaf")].user == "elko-lan"
    check(
        users,
        [
            ("elko-lan", LAN, "find", "bank", "service", True),
            ("elko-lan", LAN, "offer", "context-1", "service", True),
            ("elko-lan", LAN, "offer", "bank", "service", False),
            ("elko-lan", LAN, "view", "", "service", False),
            ("elko-lan", FARM, "offer", "x", "service", True),
            ("elko-lan", OPS, "find", "x", "service", False),
            ("", LAN, "find", "x", "service", False),
            ("", OPS, "admin.shutdown", "", "service", True),
            ("", "mc0", "publish", "x", "topic", True),
            ("", "mtl", "publish", "x", "queue", True),
            ("", "http", "admin.reload", "", "service", True),
            ("", "console", "admin.say", "", "service", True),
            ("", "dbp", "offer", "x", "service", True),
            ("", "dns", "find", "x", "service", False),
        ],
    )


def test_key_files_become_keys_and_topic_rules_names_of_topics(tmp_path: Path) -> None:
    found = imported(tmp_path, MC0 + MC0_RULES)
    users = users_of(found)
    assert users.keys == {KEY: "web1", OTHER_KEY: "operator"}
    assert found.conflicts == ()
    check(
        users,
        [
            ("operator", "mc0", "publish", "reply [x] 1", "topic", True),
            ("web1", "mc0", "publish", "reply [x] 1", "topic", True),
            ("web1", "mc0", "publish", "reply x 1", "topic", False),
            ("web1", "mc0", "subscribe", "nodes web1", "topic", True),
            ("web1", "mc0", "subscribe", "nodes web2", "topic", False),
            ("web1", "mtl", "subscribe", "nodes web1", "topic", False),
            ("web7", "mc0", "subscribe", "nodes web7", "topic", True),
            ("", "mc0", "subscribe", "nodes", "topic", False),
        ],
    )


@pytest.mark.parametrize(
    ("keys", "nameless"), [("", False), ("any_key = true\n", True)], ids=["allowed keys", "any key"]
)
def test_without_rules_each_key_that_was_allowed_has_every_topic(tmp_path: Path, keys: str, nameless: bool) -> None:
    text = MC0.replace('client_keys = "clients"\n', keys) if keys else MC0
    users = users_of(imported(tmp_path, text))
    check(
        users,
        [
            ("web1", "mc0", "publish", "x", "topic", not nameless),
            ("", "mc0", "publish", "x", "topic", nameless),
            ("stranger", "mc0", "publish", "x", "topic", False),
        ],
    )


def test_verifiers_become_passwords_and_resources_operations_on_names(tmp_path: Path) -> None:
    users = users_of(imported(tmp_path, MTL + MTL_RULES))
    assert users.users["jobs-1"].passwords == (JOBS,)
    check(
        users,
        [
            ("jobs-1", "mtl", "subscribe", "jobs 1", "queue", True),
            ("jobs-1", "mtl", "subscribe", "jobs 1", "topic", False),
            ("jobs-1", "mtl", "publish", "news jobs-1", "topic", True),
            ("jobs-1", "mtl", "publish", "news jobs-2", "topic", False),
            ("jobs-1", "mtl", "find", "bank-1", "service", True),
            ("jobs-1", "mtl", "offer", "job-1", "service", True),
            ("jobs-1", "mtl", "offer", "bank-1", "service", False),
            ("jobs-1", "mtl jobs", "subscribe", "jobs 1", "queue", False),
            ("", "mtl", "find", "bank-1", "service", False),
        ],
    )


def test_users_of_mtl_without_rules_may_use_all_hosts(tmp_path: Path) -> None:
    users = users_of(imported(tmp_path, MTL + "anonymous = true\n"))
    for user in ("jobs-1", ""):
        check(users, [(user, host, "publish", "x", "queue", True) for host in ("mtl", "mtl jobs")])


def test_the_password_of_the_console_becomes_that_of_an_operator(tmp_path: Path) -> None:
    users = users_of(imported(tmp_path, '[console]\npassword = "hush"\n'))
    assert users.users["operator"].passwords[0].check("hush")
    check(users, [(user, "console", "admin.shutdown", "", "service", bool(user)) for user in ("operator", "")])


@pytest.mark.parametrize(
    ("first", "second", "conflict"),
    [
        ('keys = ["web1"]\npublish = ["a"]', 'keys = ["web*"]\npublish = ["a", "b"]', True),
        ('keys = ["web1"]', 'keys = ["*"]\nsubscribe = ["b"]', True),
        ('keys = ["w?b1"]\npublish = ["a"]', 'keys = ["[vw]eb*"]\npublish = ["b"]', True),
        ('keys = ["web1"]\npublish = ["*"]', 'keys = ["web*"]\npublish = ["a"]', False),
        ('keys = ["web1"]\npublish = ["a"]', 'keys = ["db*"]\npublish = ["b"]', False),
        ('keys = ["*"]\npublish = ["a"]', 'keys = ["web*"]\npublish = ["b"]', False),
        ('keys = [""]\npublish = ["a"]', 'keys = ["*"]\npublish = ["b"]', False),
    ],
)
def test_a_rule_that_an_earlier_one_narrows_is_a_comment(
    tmp_path: Path, first: str, second: str, conflict: bool
) -> None:
    found = imported(tmp_path, f"{MC0}[[mc0.rules]]\n{first}\n[[mc0.rules]]\n{second}\n")
    users = users_of(found)
    assert found.users is not None
    sentence = "mc0.rules[1] may give more than mc0.rules[0], which came first, to the same users"
    assert found.conflicts == ((sentence,) if conflict else ())
    assert ("# mc0.rules[1]: not in force" in found.users) is conflict
    assert not (conflict and grants_of("web1", "mc0", users.rights).may("publish", "b", "topic"))


def test_patterns_of_a_wire_match_no_user_of_another(tmp_path: Path) -> None:
    text = MC0 + "[[mc0.rules]]\nkeys = ['*']\npublish = ['a']\n" + MTL
    check(
        users_of(imported(tmp_path, text)),
        [
            ("web1", "mc0", "publish", "a", "topic", True),
            ("jobs-1", "mc0", "publish", "a", "topic", False),
            ("jobs-1", "mtl", "publish", "a", "topic", True),
            ("web1", "mtl", "publish", "a", "topic", False),
        ],
    )


def test_a_users_file_is_kept_and_the_empty_user_becomes_anonymous(tmp_path: Path) -> None:
    before = '# ours\n[[users]]\nname = "ann"\n[[rights]]\nusers = ["ann", ""]\noperations = ["find"]\n'
    put(tmp_path / "old.toml", before)
    found = imported(tmp_path, f'[access]\nfile = "old.toml"\n{ELKO}')
    assert found.users is not None
    users = parse("users.toml", found.users)
    assert found.users.startswith("# ours\n")
    assert users.rights[0].users == ("ann", "anonymous", "elko-lan")
    assert 'file = "old.toml"' in found.configuration


@pytest.mark.parametrize("text", ["", '[mc0]\nauth = "open"\n', "[dns]\nenabled = true\n"])
def test_listeners_that_are_open_on_this_machine_alone_need_no_users(tmp_path: Path, text: str) -> None:
    found = imported(tmp_path, text)
    assert found.users is None
    assert "access" not in found.configuration
    assert keys_of_users(found.configuration) == []


def test_the_configuration_keeps_all_else(tmp_path: Path) -> None:
    found = imported(tmp_path, "# mine\n" + MC0 + "# limits\nsessions = 5\n" + MC0_RULES + "[log]\nlevel = 'warn'\n")
    assert found.configuration == (
        '# mine\n[mc0]\nendpoint = "tcp://*:61616"\nsecret_key_file = "broker.private"\n'
        "# limits\nsessions = 5\n[log]\nlevel = 'warn'\n\n[access]\nfile = \"users.toml\"\n"
    )


def test_a_key_in_an_inline_table_is_left_to_an_editor(tmp_path: Path) -> None:
    found = imported(tmp_path, 'elko.listeners = [{ auth = "password", code = "figleaf" }]\n')
    assert found.left == ("elko.listeners[0].auth", "elko.listeners[0].code")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x =", "is no TOML"),
        ("mc0 = 1", "is not valid"),
        ('[[elko.listeners]]\nauth = "password"', "has no code"),
        ('[console]\npassword_file = "none"', "password_file"),
        ('[mc0]\nendpoint = "x"', "is no endpoint"),
    ],
)
def test_a_bad_configuration_is_an_error_and_nothing_is_written(tmp_path: Path, text: str, why: str) -> None:
    path = put(tmp_path / "x.toml", text)
    with pytest.raises(EditFailed, match=why):
        importing.write(path, str(tmp_path / "users.toml"))
    assert [each.name for each in tmp_path.iterdir()] == ["x.toml"]


def test_a_users_file_that_cannot_be_written_leaves_no_configuration(tmp_path: Path) -> None:
    path = put(tmp_path / "x.toml", ELKO)
    with pytest.raises(EditFailed, match="cannot be written"):
        importing.write(path, str(tmp_path / "missing" / "users.toml"))
    assert [each.name for each in tmp_path.iterdir()] == ["x.toml"]


@pytest.mark.parametrize("folder", [".", "conf", "elsewhere"])
def test_the_new_configuration_names_the_file_with_the_users(tmp_path: Path, folder: str) -> None:
    for name in ("conf", "elsewhere"):
        (tmp_path / name).mkdir()
    path, to = put(tmp_path / "conf" / "x.toml", ELKO), tmp_path / folder / "people.toml"
    importing.write(path, str(to))
    new = Path(f"{path}.new")
    assert (new.parent / tomllib.loads(new.read_text())["access"]["file"]).resolve() == to.resolve()


def test_no_file_is_replaced(tmp_path: Path) -> None:
    path, users = put(tmp_path / "x.toml", ELKO, 0o640), tmp_path / "users.toml"
    importing.write(path, str(users))
    assert stat.S_IMODE(users.stat().st_mode) == 0o640
    written = users.read_text()
    assert "figleaf" not in written
    with pytest.raises(EditFailed, match="exists already"):
        importing.write(path, str(users))
    assert (Path(path).read_text(), users.read_text()) == (ELKO, written)
