"""The usage log on a disk: rotation, and what happens when it is full."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import pytest

from ortolan_server.observation import UsageRecord
from ortolan_server.usage_log import UsageLog, UsageLogError


def record(id: str) -> UsageRecord:
    """Return a record of about 270 bytes."""
    return UsageRecord(
        time=1.0,
        request_id=id,
        key_id=None,
        dialect="openai",
        model="m",
        is_stream=False,
        status=200,
        ending="complete",
        finish_reasons={"length": 1},
        prompt_tokens=1,
        cached_tokens=0,
        prefilled_tokens=1,
        reused_tokens=0,
        generated_tokens=2,
        delivered_tokens=2,
        first_token_s=0.1,
        duration_s=0.2,
    )


def ids(path: Path) -> list[str]:
    """Return the request ids of a file."""
    lines = path.read_bytes().splitlines()
    return [msgspec.json.decode(line, type=UsageRecord).request_id for line in lines]


def test_full_files_make_room_and_the_oldest_goes(tmp_path: Path) -> None:
    """Two records fit into a file, and two old files are kept."""
    path = tmp_path / "usage.jsonl"
    log = UsageLog(path, max_bytes=700, kept=2)
    for number in range(9):
        log.put(record(str(number)))
    log.close()
    found = [ids(tmp_path / name) for name in ("usage.jsonl.2", "usage.jsonl.1", "usage.jsonl")]
    assert found == [["4", "5"], ["6", "7"], ["8"]]
    assert len(list(tmp_path.iterdir())) == 3


def test_a_restart_appends(tmp_path: Path) -> None:
    """Nothing of the last run is lost."""
    for number in range(2):
        log = UsageLog(tmp_path / "usage.jsonl", max_bytes=6000, kept=2)
        log.put(record(str(number)))
        log.close()
    assert ids(tmp_path / "usage.jsonl") == ["0", "1"]


def test_a_full_disk_is_told_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    """Linux has a device that is always full."""
    log = UsageLog(Path("/dev/full"), max_bytes=700, kept=2)
    with caplog.at_level(logging.ERROR):
        for number in range(9):
            log.put(record(str(number)))
        log.close()
    assert [line.args[0] for line in caplog.records if line.args] == [1, 2, 4, 8]
    assert "No space left" in caplog.text


def test_a_path_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    """At the start."""
    with pytest.raises(UsageLogError, match="check --usage-log"):
        UsageLog(tmp_path / "nowhere" / "usage.jsonl", max_bytes=700, kept=2)
