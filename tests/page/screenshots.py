"""Makes the images of docs/page.md: a daemon, a small farm of Elko peers, and Chromium.

python -m tests.page.screenshots
"""

from __future__ import annotations

import json
import math
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.ports import free_port

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"

WIDE = (1280, 800)
PHONE = (390, 760)

NAMES = ("auth", "bank", "chat", "friends", "inventory", "lobby", "mail", "market", "presence", "quests")
SERVERS = 24
START = 30.0
"""Seconds that the daemon may take to start."""


@contextmanager
def daemon(folder: Path) -> Iterator[tuple[int, int]]:
    """Run a daemon, and yield its ports of Elko and HTTP."""
    elko, http = free_port(), free_port()
    ports = ["--port", str(elko), "--http-port", str(http)]
    others = [word for wire in ("mc0", "dbp", "mtl", "console") for word in (f"--{wire}-port", "0")]
    twistd = str(Path(sys.executable).with_name("twistd"))
    command = [twistd, "-n", "--pidfile=", "elkobroker", *ports, *others, "--state", str(folder / "state")]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, env={"PYTHONPATH": str(ROOT)})
    try:
        wait_for(f"http://127.0.0.1:{http}/healthz")
        yield elko, http
    finally:
        process.terminate()
        process.wait()


def wait_for(url: str) -> None:
    """Return once there is an answer."""
    end = time.monotonic() + START
    while True:
        try:
            urllib.request.urlopen(url).close()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
        else:
            return


def server(port: int, number: int, dice: random.Random) -> socket.socket:
    """Connect a server that offers one or two services, and reports a load."""
    name = NAMES[number % len(NAMES)]
    host = f"10.0.{number % 4}.{10 + number}"
    names = [name] if dice.random() < 0.6 else [name, f"{name}-admin"]
    services = [{"service": each, "hostport": f"{host}:{9000 + place}"} for place, each in enumerate(names)]
    connection = socket.create_connection(("127.0.0.1", port))
    for message in (
        {"to": "client", "op": "auth", "label": f"{name}-{number}"},
        {"to": "client", "op": "willserve", "services": services},
        {"to": "client", "op": "load", "factor": round(1.5 + math.sin(number) + dice.random(), 2)},
    ):
        connection.sendall(json.dumps(message).encode() + b"\n\n")
    return connection


def main() -> None:
    """Make the images."""
    executable = shutil.which("chromium") or shutil.which("chromium-browser")
    if executable is None:
        sys.exit("Chromium is not installed")
    IMAGES.mkdir(exist_ok=True)
    dice = random.Random(7)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        elko, http = stack.enter_context(daemon(folder))
        for number in range(SERVERS):
            stack.enter_context(server(elko, number, dice))
        browser = stack.enter_context(sync_playwright()).chromium.launch(
            executable_path=executable, args=["--headless", "--no-sandbox", "--disable-gpu"]
        )
        for file, place, (width, height) in (("page-wide.png", "", WIDE), ("page-phone.png", "services", PHONE)):
            page = browser.new_page(viewport={"width": width, "height": height})
            page.goto(f"http://127.0.0.1:{http}/#/{place}")
            page.locator("#connection[data-state=live]").wait_for(state="attached")
            page.get_by_text(NAMES[0], exact=False).first.wait_for()
            if not place:
                stack.enter_context(server(elko, SERVERS + 1, dice))
                page.get_by_role("region", name="New").get_by_text("offered").first.wait_for()
            page.wait_for_timeout(2_000)
            page.screenshot(path=IMAGES / file)
        browser.close()


if __name__ == "__main__":
    main()
