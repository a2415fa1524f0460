"""The usage log on a disk: rotation, and what happens when it is full."""

from __future__ import annotations

import logging
import resource
from pathlib import Path

import msgspec
import pytest

from limits import limited
from ortolan_server.observation import UsageRecord
from ortolan_server.usage_log import UsageLog, UsageLogError


def with_id(record: UsageRecord, number: int) -> UsageRecord:
    """Return a record of about 270 bytes."""
    return msgspec.structs.replace(record, request_id=str(number))


def ids(path: Path) -> list[str]:
    """Return the request ids of a file."""
    lines = path.read_bytes().splitlines()
    return [msgspec.json.decode(line, type=UsageRecord).request_id for line in lines]


def test_full_files_make_room_and_the_oldest_goes(tmp_path: Path, record: UsageRecord) -> None:
    """Two records fit into a file, and two old files are kept."""
    path = tmp_path / "usage.jsonl"
    log = UsageLog(path, max_bytes=700, kept=2)
    for number in range(9):
        log.put(with_id(record, number))
    log.close()
    found = [ids(tmp_path / name) for name in ("usage.jsonl.2", "usage.jsonl.1", "usage.jsonl")]
    assert found == [["4", "5"], ["6", "7"], ["8"]]
    assert len(list(tmp_path.iterdir())) == 3


def test_a_restart_appends(tmp_path: Path, record: UsageRecord) -> None:
    """Nothing of the last run is lost."""
    for number in range(2):
        log = UsageLog(tmp_path / "usage.jsonl", max_bytes=6000, kept=2)
        log.put(with_id(record, number))
        log.close()
    assert ids(tmp_path / "usage.jsonl") == ["0", "1"]


def test_a_full_disk_is_told_and_nothing_else(
    caplog: pytest.LogCaptureFixture, record: UsageRecord
) -> None:
    """Linux has a device that is always full."""
    log = UsageLog(Path("/dev/full"), max_bytes=700, kept=2)
    with caplog.at_level(logging.ERROR):
        for number in range(9):
            log.put(with_id(record, number))
        log.close()
    assert [line.args[0] for line in caplog.records if line.args] == [1, 2, 4, 8]
    assert "No space left" in caplog.text


def test_a_disk_that_fills_up_within_a_line_tears_none(tmp_path: Path, record: UsageRecord) -> None:
    """The half that found room is taken back, so that the next line is whole."""
    path = tmp_path / "usage.jsonl"
    log = UsageLog(path, max_bytes=6000, kept=2)
    with limited(resource.RLIMIT_FSIZE, 400):
        for number in range(2):
            log.put(with_id(record, number))
        log.close()
    log = UsageLog(path, max_bytes=6000, kept=2)
    log.put(with_id(record, 2))
    log.close()
    assert ids(path) == ["0", "2"]


def test_a_rotation_that_fails_again_and_again_loses_no_file(
    tmp_path: Path, record: UsageRecord
) -> None:
    """Each file holds one record, and no new one can be opened."""
    path = tmp_path / "usage.jsonl"
    for number in range(3):
        log = UsageLog(path, max_bytes=300, kept=2)
        log.put(with_id(record, number))
        log.close()
    log = UsageLog(path, max_bytes=300, kept=2)
    with limited(resource.RLIMIT_NOFILE, 3):
        for number in range(3, 6):
            log.put(with_id(record, number))
        log.close()
    assert [ids(tmp_path / f"usage.jsonl.{number}") for number in (2, 1)] == [["1"], ["2"]]


def test_a_path_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    """At the start."""
    with pytest.raises(UsageLogError, match="check --usage-log"):
        UsageLog(tmp_path / "nowhere" / "usage.jsonl", max_bytes=700, kept=2)
