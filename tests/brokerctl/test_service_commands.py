"""``find`` for scripts, and ``offer`` on a terminal."""

from __future__ import annotations

import base64
import os
import pty
import select
import signal
import subprocess
import sys

import pytest

from tests.brokerctl.server import Canned, Server, ctl
from tests.integration.daemon import ROOT
from tests.patience import until


@pytest.mark.parametrize(
    ("hostport", "host", "port"),
    [
        ("127.0.0.1:7001", "127.0.0.1", "7001"),
        ("[2001:db8::1]:7001", "2001:db8::1", "7001"),
        ("[2001:db8::1]", "2001:db8::1", "''"),
        ("bank.example.org", "bank.example.org", "''"),
        ("/run/bank.sock", "/run/bank.sock", "''"),
    ],
)
def test_an_address_is_divided_into_variables(server: Server, hostport: str, host: str, port: str) -> None:
    server.answer("/v1/services/bank", {"services": [{"hostport": hostport}]})
    result = ctl("--url", server.url, "find", "bank", "-o", "env")
    address = f"'{hostport}'" if "[" in hostport else hostport
    assert result.stdout == f"BANK_ADDRESS={address}\nBANK_HOST={host}\nBANK_PORT={port}\n"


def test_an_offer_asks_for_the_password_once(server: Server) -> None:
    path = "/v1/services/bank/h:1"
    server.answer(path, {"provider": 7}, "PUT")
    server.answer(path, Canned(None, 204), "DELETE")
    outer, inner = pty.openpty()
    command = [sys.executable, "-m", "broker.brokerctl", "--url", server.url, "--user", "anna", "offer", "bank", "h:1"]
    process = subprocess.Popen(
        command,
        stdin=inner,
        stdout=inner,
        stderr=inner,
        env={**os.environ, "PYTHONPATH": str(ROOT), "ELKOBROKER_CONTEXTS": "/nonexistent"},
        start_new_session=True,
    )
    output = ""

    def shows(text: str) -> bool:
        nonlocal output
        if select.select([outer], [], [], 0)[0]:
            output += os.read(outer, 65536).decode()
        return text in output

    try:
        until(lambda: shows("Password of anna: "), "the password is asked for")
        os.write(outer, b"secret\n")
        until(lambda: shows("bank is offered at h:1"), "the service is offered")
        process.send_signal(signal.SIGINT)
        until(lambda: process.poll() is not None, "the command ends")
        until(lambda: shows("bank is withdrawn"), "the withdrawal is reported")
    finally:
        process.kill()
        process.wait()
        os.close(outer)
        os.close(inner)
    assert (process.returncode, output.count("Password of anna"), server.last.method) == (0, 1, "DELETE")
    field = "Basic " + base64.b64encode(b"anna:secret").decode()
    assert [each.headers["authorization"] for each in server.requests] == [field, field]


def test_warnings_of_unknown_form_are_left_out(server: Server) -> None:
    server.answer("/v1/services/bank/h:1", {"provider": 7, "warnings": 5}, "PUT")
    result = ctl("--url", server.url, "offer", "bank", "h:1", "--once")
    assert (result.exit_code, result.stderr) == (0, "")
