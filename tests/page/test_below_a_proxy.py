"""The page below a path of nginx, as a browser shows it there."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.integration.proxies import Behind, proxy
from tests.page.conftest import Tabs
from tests.page.farm import Farm


@pytest.mark.long
def test_the_page_below_a_path_shows_what_its_own_script_registers(farm: Farm, tabs: Tabs, tmp_path: Path) -> None:
    port = farm.daemon.http_port()
    with proxy("nginx", Behind(port, port, port), tmp_path / "nginx") as front:
        page = tabs(f"http://127.0.0.1:{front}/farm/#/services")
        expect(page.locator("#connection")).to_have_text("Live")
        # A string as the body is text/plain. The proxy sends the broker's own Host.
        status = page.evaluate(
            """async () => {
              const body = JSON.stringify({ hostport: "192.0.2.1:80", ttl: 60 });
              return (await fetch("v1/services/scripted/1", { method: "PUT", body })).status;
            }"""
        )
        assert status == 201
        expect(page.locator("tbody tr").filter(has_text="scripted")).to_contain_text("192.0.2.1:80")
