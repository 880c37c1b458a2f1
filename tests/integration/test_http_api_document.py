"""The commands of docs/http-api.md print the output that the page shows. A dot of ellipsis stands for any text, `ID`
for the id of the one provider."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.integration.daemon import ROOT, Daemon
from tests.patience import PATIENCE

ID = "1795656622754816"

PAGE = (ROOT / "docs" / "http-api.md").read_text()


def commands(text: str) -> list[tuple[str, str]]:
    """The commands of the blocks ``console``, each with its output."""
    found = []
    for block in re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output))
    return found


def test_each_command_prints_what_the_page_shows(tmp_path: Path) -> None:
    id = ID
    with Daemon(tmp_path) as daemon:
        port = daemon.http_port()
        assert len(commands(PAGE)) > 10
        for command, output in commands(PAGE):
            done = subprocess.run(
                ["sh", "-c", command.replace("127.0.0.1:9080", f"127.0.0.1:{port}").replace(ID, id)],
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
            if id == ID and (registered := re.search(r'"provider":(\d+)', done.stdout)):
                id = registered[1]
            expected = "(?s:.*?)".join(map(re.escape, output.strip().replace(ID, id).split("…")))
            assert re.fullmatch(expected, done.stdout.strip()), f"{command}\n{done.stdout}"
