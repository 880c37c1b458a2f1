"""A real Chromium on the page of a real daemon."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright
from playwright.sync_api import Response as PageResponse

from tests.integration.daemon import ROOT, Daemon
from tests.packages import MISSING, program
from tests.page.farm import Farm
from tests.patience import PATIENCE

OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
"""Chromium alone: it asks no server but the broker."""

WIDE = (1280, 800)
PHONE = (390, 844)


# One for a file, not for a session: while it runs, asyncio counts as running in this thread.
@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A browser with an empty profile."""
    executable = shutil.which("chromium-browser") or program("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=list(OPTIONS))
        expect.set_options(timeout=PATIENCE * 1000)
        yield browser
        browser.close()


# Playwright sets attributes on an object whose methods it calls.
@attrs.define(eq=False, slots=False)
class Tab:
    """A tab of the browser. ``errors``: defects, refused content and refused requests that it reported.

    ``permitted`` are the statuses of refusals that belong to the test.
    """

    page: Page
    permitted: Collection[int]
    errors: list[str] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("response", self._answered)
        self.page.set_default_timeout(PATIENCE * 1000)

    def _said(self, message: ConsoleMessage) -> None:
        # Refused requests are seen in the answers.
        if message.type in ("error", "warning") and not message.text.startswith("Failed to load resource"):
            self.errors.append(message.text)

    def _answered(self, response: PageResponse) -> None:
        # A loop that a busy machine stalls is not ready for a while.
        if response.status >= 400 and response.status not in self.permitted and not response.url.endswith("/readyz"):
            self.errors.append(f"{response.status} {response.url}")


Tabs = Callable[..., Page]


@pytest.fixture
def tabs(chromium: Browser) -> Iterator[Tabs]:
    """Opens tabs, each with a profile of its own; in the end none of them may have reported an error.

    ``permitted`` are statuses of refusals that belong to the test.
    """
    opened: list[Tab] = []

    def tab(url: str, size: tuple[int, int] = WIDE, permitted: Collection[int] = (), **options: Any) -> Page:
        context = chromium.new_context(viewport={"width": size[0], "height": size[1]}, **options)
        one = Tab(context.new_page(), permitted)
        opened.append(one)
        one.page.goto(url)
        return one.page

    yield tab
    errors = [error for each in opened for error in each.errors]
    for context in chromium.contexts:
        context.close()
    assert errors == []


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """A daemon for the tests of a file, which use names of their own; in the end it must have had no defect."""
    with Daemon(tmp_path_factory.mktemp("page")) as daemon:
        daemon.http_port()
        yield Farm(daemon)
        daemon.process.terminate()
        daemon.ended()
        daemon.wait_for("stopped")
        assert not [line for line in daemon.log if "Traceback" in line or " critical " in line]


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core."""
    found: list[Path] = sorted((ROOT / ".venv" / "share").glob("axe-core-*/package/axe.min.js"))
    if not found:
        pytest.skip(f"{MISSING}: npm-axe-core (the package axe-core of npm)")
    return found[-1].read_text()
