"""Configurations that cannot be served: `--check`, `--check-ports`, the start and a reload name each fault in a line.

The programs run on a terminal: nothing asks for a passphrase there.
"""

from __future__ import annotations

import os
import pty
import re
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from tests.config.certificates import certificate
from tests.examples import sampled
from tests.integration.configurations import OFF, listener
from tests.integration.daemon import Daemon, environment, twistd
from tests.integration.http_api import ask


def unusable(directory: Path) -> tuple[str, list[str]]:
    """A configuration with faults in files of TLS and in choices, and the lines that name them, in order."""
    authority = certificate(directory, "authority")
    own = certificate(directory, "own", issuer=authority)
    locked, other = certificate(directory, "locked", b"secret"), certificate(directory, "other")
    der, chain = directory / "own.der", directory / "chain.pem"
    der.write_bytes(x509.load_pem_x509_certificate(own[0].read_bytes()).public_bytes(Encoding.DER))
    chain.write_bytes(authority[0].read_bytes() + own[0].read_bytes())

    def tls(public: Path, private: Path) -> str:
        return f"tls:0:certificate={public}:key={private}:interface=127.0.0.1"

    text = (
        OFF
        + f'[http]\nendpoint = "{tls(*locked)}"\n'
        + f'[console]\nendpoint = "{tls(own[0], other[1])}"\n'
        + f'[cluster]\netcd = ["https://127.0.0.1:1"]\ncertificate = "{own[0]}"\nkey = "{other[1]}"\n'
        + '[log]\nlevel = "loud"\n'
        + '[[checks.rules]]\nservices = ["*"]\nkind = "htpp"\n'
        + '[[checks.rules]]\nservices = ["*"]\n'
        + listener("director", endpoint=tls(chain, own[1]), of="director")
        + listener("main", endpoint=tls(der, own[1]))
        + listener("second", 'transport = "pigeon"')
    )
    strange = f"the private key in {other[1]} does not belong to the certificate in {own[0]}"
    return text, [
        f"http.endpoint: the private key in {locked[1]} has a passphrase: passphrase_file must name a file that has it",
        f"console.endpoint: {strange}",
        f"cluster.certificate: {strange}",
        'log.level: must be "debug" or "info" or "warn" or "error"',
        'checks.rules[0].kind: must be "ping" or "tcp" or "http"; did you mean "http"?',
        "checks.rules[1].kind: is missing",
        f"director.listeners[0].endpoint: {chain} is in the wrong order: the certificate of {own[1]} is number 2",
        f"elko.listeners[0].endpoint: {der} has no certificate in PEM form",
        'elko.listeners[1].transport: must be "tcp" or "websocket" or "http" or "rtcp"',
    ]


def on_a_terminal(directory: Path, *options: str) -> tuple[int, list[str]]:
    """Run the daemon, which is expected to end, on a terminal. Returns its exit code and the lines there."""
    command = [twistd(), "-n", "--pidfile=", "elkobroker", *options]
    variables = environment()
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(directory)
        os.execve(command[0], command, variables)
    text = b""
    with suppress(OSError):  # the end of a terminal
        while data := os.read(terminal, 65_536):
            text += data
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text.decode().splitlines()


@pytest.mark.parametrize("option", sampled(["--check", "--check-ports", "--no-check"]))
def test_each_fault_is_a_line_on_the_terminal(tmp_path: Path, option: str) -> None:
    text, expected = unusable(tmp_path)
    (tmp_path / "x.toml").write_text(text)
    options = [] if option == "--no-check" else [option]
    code, lines = on_a_terminal(tmp_path, "--config", "x.toml", "--state", "state", *options)
    assert code == 1
    assert [re.sub(r"^\S*x\.toml:\d+: ", "", line) for line in lines] == expected


def test_each_fault_is_a_line_of_the_log_at_a_reload(tmp_path: Path) -> None:
    config = tmp_path / "x.toml"
    good = OFF + listener("main")
    config.write_text(good)
    with Daemon(tmp_path, "--config", str(config)) as daemon:
        daemon.port()
        text, expected = unusable(tmp_path)
        config.write_text(text)
        daemon.signal(signal.SIGHUP)
        for line in expected:
            daemon.wait_for(f"not reloaded: .*{re.escape(line)}")
        told = ask(daemon, "POST", "/v1/actions/reload", {})[1]["problems"]
        assert [re.sub(r"^\S*x\.toml:\d+: ", "", line) for line in told] == expected
        config.write_text(good)
        daemon.signal(signal.SIGHUP)
        daemon.wait_for("the configuration was reloaded")
        assert not [line for line in daemon.log if "Traceback" in line or "failed" in line]
