"""Contexts: the file, the choice of the broker, credentials, and what is refused."""

from __future__ import annotations

import base64
import json
import stat
import tomllib
from pathlib import Path

import pytest

from tests.brokerctl.server import Server, ctl, page
from tests.garbage import no_collection


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "elkobroker" / "contexts.toml"


def context(tmp_path: Path, *words: object, input: str | None = None) -> tuple[int, str]:
    result = ctl("context", *words, input=input, XDG_CONFIG_HOME=str(tmp_path))
    return result.exit_code, result.stdout + result.stderr


def test_contexts_are_added_listed_used_and_removed(tmp_path: Path, file: Path) -> None:
    assert context(tmp_path, "add", "prod", "https://broker.example:9080", "--user", "anna") == (
        0, f"prod is added to {file}\n"
    )  # fmt: skip
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert context(tmp_path, "add", "test.one", "http://127.0.0.1:9081", "--token-stdin", input="ebt_x\n")[0] == 0
    assert tomllib.loads(file.read_text()) == {
        "current": "prod",
        "contexts": {
            "prod": {"url": "https://broker.example:9080", "user": "anna"},
            "test.one": {"url": "http://127.0.0.1:9081", "token": "ebt_x"},
        },
    }
    code, listed = context(tmp_path, "list")
    assert code == 0
    assert [line.split() for line in listed.splitlines()] == [
        ["CURRENT", "NAME", "URL", "CREDENTIALS"],
        ["-", "local", "http://127.0.0.1:9080", "-"],
        ["*", "prod", "https://broker.example:9080", "user", "anna"],
        ["-", "test.one", "http://127.0.0.1:9081", "token"],
    ]
    assert "ebt_x" not in context(tmp_path, "list", "--json")[1]
    assert context(tmp_path, "use", "test.one") == (0, "the current context is test.one\n")
    assert context(tmp_path, "remove", "test.one") == (0, "test.one is removed\n")
    assert context(tmp_path, "remove", "test.one")[0] == 4
    assert tomllib.loads(file.read_text()).keys() == {"contexts"}
    code, told = context(tmp_path, "use", "nothing")
    assert (code, told) == (2, "brokerctl: there is no context 'nothing'; known: local, prod\n")


def test_a_context_is_not_replaced_by_mistake(tmp_path: Path) -> None:
    assert context(tmp_path, "add", "a", "http://127.0.0.1:1")[0] == 0
    assert context(tmp_path, "add", "a", "http://127.0.0.1:2")[0] == 1
    assert context(tmp_path, "add", "a", "http://127.0.0.1:2", "--force")[0] == 0
    assert "127.0.0.1:2" in context(tmp_path, "list")[1]


def test_files_of_a_new_context_are_those_of_the_working_directory(tmp_path: Path, file: Path) -> None:
    assert context(tmp_path, "add", "a", "--token-file", "my.token")[0] == 0
    assert tomllib.loads(file.read_text())["contexts"]["a"]["token_file"] == str(Path.cwd() / "my.token")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("current = 5", "current names no context of the file: 5"),
        ("current = 'x'", "current names no context of the file: 'x'"),
        ("[contexts.a]\nuri = 'http://x'", "contexts.a: unknown key 'uri'; known: url, ca, cert"),
        ("[contexts.a]\nurl = 5", "contexts.a.url must be a string"),
        ("[contexts.a]\nunencrypted = 'yes'", "contexts.a.unencrypted must be true or false"),
        ("[context.a]", "unknown key 'context'"),
        ("contexts = 5", "contexts must be tables: [contexts.NAME]"),
        ("x = [", "is no TOML"),
        ("x = " + "[" * 5_000, "is no TOML"),
        ("[contexts.a]\ntoken = 'x'", "holds a token and can be read by other users; run: chmod 600"),
    ],
)
def test_a_wrong_file_is_one_sentence_with_its_path(tmp_path: Path, file: Path, content: str, sentence: str) -> None:
    file.parent.mkdir()
    file.write_text(content)
    file.chmod(0o644)
    # Garbage of other tests may have finalizers, for which a deep file leaves no stack.
    with no_collection():
        result = ctl("services", XDG_CONFIG_HOME=str(tmp_path))
    assert result.exit_code == 2
    assert result.stderr.startswith(f"brokerctl: {file}")
    assert sentence in result.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--url", "broker.example"], "is no address such as http://127.0.0.1:9080"),
        (["--url", "ftp://x"], "is no address such as"),
        (["--url", "http://x:99999"], "is no address such as"),
        (["--url", "http://x:1/\r\nEvil: yes"], "is no address such as"),
        (["--url", "http://127.0.0.1:"], "is no address such as"),
        (["--url", "http://x/%zz"], "is no address such as"),
        (["--url", "http://[::1"], "is no address such as"),
        (["--url", "http://a:b@x"], "credentials have keys of their own"),
        (["--url", "http://x", "--ca", "/x"], "ca needs an address that begins with https://"),
        (["--url", "https://x", "--key", "/x"], "key needs cert"),
        (["--url", "http://broker.example", "--user", "a"], "without encryption"),
        (["--token-file", "/x", "--user", "a"], "exclude each other"),
        (["--user", "a:b"], "has a colon"),
        (["--context", "nothing"], "there is no context 'nothing'"),
        (["--url", "https://127.0.0.1:1", "--ca", "/no/such/file"], "/no/such/file cannot be read: No such file"),
        (["--token-file", "/no/such/file"], "/no/such/file: the token cannot be read: No such file"),
        (["--user", "a"], "there is no terminal to ask for the password of a: set password_file"),
    ],
)
def test_a_wrong_choice_is_refused_before_anything_is_sent(words: list[str], sentence: str) -> None:
    result = ctl(*words, "services")
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_home_directory_that_is_unknown_is_one_sentence(tmp_path: Path, file: Path) -> None:
    file.parent.mkdir()
    file.write_text("[contexts.a]\ntoken_file = '~no.such.user/token'")
    sentence = "~no.such.user/token: the home directory is unknown"
    result = ctl("services", "--context", "a", XDG_CONFIG_HOME=str(tmp_path))
    assert (result.exit_code, result.stderr) == (2, f"brokerctl: {sentence}\n")
    result = ctl("doctor", "--token-file", "~no.such.user/token", "--json")
    assert {"level": "error", "what": "context", "text": sentence} in json.loads(result.stdout)


def secret(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_credentials_of_each_kind_are_sent(server: Server, tmp_path: Path) -> None:
    server.answer("/v1/services", page())
    token, password = secret(tmp_path / "token", "ebt_abc\n"), secret(tmp_path / "password", "p\u00e4ss:word\n")

    def sent(*words: object, **env: str) -> str | None:
        assert ctl("--url", server.url, *words, "services", **env).exit_code == 0
        return server.last.headers.get("authorization")

    assert sent() is None
    assert sent("--token-file", token) == "Bearer ebt_abc"
    basic = base64.b64encode("anna:p\u00e4ss:word".encode()).decode()
    assert sent("--user", "anna", "--password-file", password) == f"Basic {basic}"
    assert sent(ELKOBROKER_TOKEN="ebt_env") == "Bearer ebt_env"
    assert sent("--token-file", token, ELKOBROKER_TOKEN="ebt_env") == "Bearer ebt_abc"


def test_a_secret_that_others_can_read_is_not_used(server: Server, tmp_path: Path) -> None:
    token = secret(tmp_path / "token", "ebt_abc")
    token.chmod(0o640)
    result = ctl("--url", server.url, "--token-file", token, "services")
    assert result.exit_code == 2
    assert (
        result.stderr == f"brokerctl: {token} holds the token and can be read by other users; run: chmod 600 {token}\n"
    )
    assert server.requests == []


def test_the_broker_is_chosen_by_option_then_environment_then_file(server: Server, tmp_path: Path, file: Path) -> None:
    server.answer("/v1/services", page())
    elsewhere = "http://127.0.0.1:1"
    secret_token = "ebt_of_the_file"
    file.parent.mkdir()
    secret(file, f'current = "here"\n[contexts.here]\nurl = "{server.url}"\ntoken = "{secret_token}"\n')
    home = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert ctl("services", **home, ELKOBROKER_TOKEN="ebt_env").exit_code == 0
    assert server.last.headers["authorization"] == f"Bearer {secret_token}"
    assert ctl("services", **home, ELKOBROKER_URL=elsewhere).exit_code == 3
    assert ctl("services", "--context", "here", **home, ELKOBROKER_URL=elsewhere).exit_code == 0
    assert ctl("services", "--url", elsewhere, "--context", "here", **home).exit_code == 3
    assert ctl("services", ELKOBROKER_URL=server.url, **home).exit_code == 0
    # The token of one broker is not sent to another.
    assert "authorization" not in server.last.headers


def test_the_path_of_the_file_may_be_given_and_its_files_are_beside_it(server: Server, tmp_path: Path) -> None:
    server.answer("/v1/services", page())
    secret(tmp_path / "my.token", "ebt_abc")
    contexts = secret(tmp_path / "mine.toml", f'[contexts.a]\nurl = "{server.url}"\ntoken_file = "my.token"\n')
    assert ctl("-c", "a", "services", ELKOBROKER_CONTEXTS=str(contexts)).exit_code == 0
    assert server.last.headers["authorization"] == "Bearer ebt_abc"
