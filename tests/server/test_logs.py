"""What the log says, and what it never says."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import msgspec
import pytest

from ortolan_server.logs import LogFormat, configure_logging, log_completion
from ortolan_server.observation import UsageRecord


@pytest.fixture
def restored() -> Iterator[None]:
    """Leave logging as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("format", ["text", "json"])
def test_an_exception_is_told_without_its_message(format: LogFormat) -> None:
    """By its type and its place."""
    stream = io.StringIO()
    configure_logging(format, stream)
    try:
        raise ValueError("the prompt was: my secret")
    except ValueError:
        logging.getLogger("ortolan.engine").exception("sequence 7 failed")
    assert "secret" not in stream.getvalue()
    assert "ValueError at test_logs.py:" in stream.getvalue()
    assert "sequence 7 failed" in stream.getvalue()


@pytest.mark.usefixtures("restored")
def test_json_holds_all_that_is_known_of_a_completion(record: UsageRecord) -> None:
    """With the request's id."""
    stream = io.StringIO()
    configure_logging("json", stream)
    log_completion(record)
    found = json.loads(stream.getvalue())
    assert found["request_id"] == "req_1"
    assert found["message"] == "request req_1: 200 complete, 3 + 2 tokens in 0.250 s"
    assert found["level"] == "info"
    assert found["time"].endswith("Z")
    assert set(msgspec.structs.asdict(record)) - {"time"} <= set(found)


@pytest.mark.usefixtures("restored")
def test_text_is_one_line_a_completion(record: UsageRecord) -> None:
    """Its id first."""
    stream = io.StringIO()
    configure_logging("text", stream)
    log_completion(record)
    assert stream.getvalue() == (
        "INFO ortolan.requests: request req_1: 200 complete, 3 + 2 tokens in 0.250 s\n"
    )
