"""Sending a report: its files and the pages of its services, and what is removed."""

from pathlib import Path

import pytest

from spark.capacity.report.files import send_report
from spark.capacity.tables.object_store import ObjectFolder, file_system, listing

pytestmark = pytest.mark.long


def names(bucket: ObjectFolder) -> list[str]:
    return sorted(one.name for one in listing(bucket))


def test_files_and_pages_are_sent_and_pages_without_a_service_removed(bucket: ObjectFolder, tmp_path: Path) -> None:
    (tmp_path / "services").mkdir()
    report, plan = tmp_path / "report.html", tmp_path / "plan.json"
    report.write_text("index")
    plan.write_text("{}")
    for name in ("chat", "mail"):
        (tmp_path / "services" / f"{name}.html").write_text(name)
    send_report(tmp_path, [report, plan], bucket)
    assert names(bucket) == ["plan.json", "report.html", "services/chat.html", "services/mail.html"]
    told = {name: file_system().open_input_file((bucket / name).path).metadata() for name in names(bucket)}
    assert told["plan.json"]["Content-Type"] == b"application/json"
    assert told["services/chat.html"]["Content-Type"] == b"text/html; charset=utf-8"

    (tmp_path / "services" / "mail.html").unlink()
    (tmp_path / "services" / "chat.html").write_text("new")
    send_report(tmp_path, [report], bucket)
    assert names(bucket) == ["plan.json", "report.html", "services/chat.html"]
    assert file_system().open_input_file((bucket / "services/chat.html").path).read() == b"new"
