"""``find`` for scripts."""

from __future__ import annotations

import pytest

from tests.brokerctl.server import Server, ctl


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
