"""The server's log on stderr: lines of text or of JSON, without anything that a client said.

An exception is told by its type and its place. Its message stays out: it may hold a prompt.
"""

from __future__ import annotations

import logging
import sys
import time
from types import TracebackType
from typing import Any, Literal, TextIO, TypeAlias

import msgspec

from ortolan_server.edge import place_of
from ortolan_server.observation import UsageRecord

LogFormat = Literal["text", "json"]
ExceptionInfo: TypeAlias = (
    tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
)

logger = logging.getLogger("ortolan.requests")
_encoder = msgspec.json.Encoder()


def configure_logging(format: LogFormat, stream: TextIO = sys.stderr) -> None:
    """Send every log to ``stream``, in place of what was configured before."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def log_completion(record: UsageRecord) -> None:
    """Log one completion request that is over, with its id."""
    logger.info(
        "request %s: %s %s, %d + %d tokens in %.3f s",
        record.request_id,
        record.status,
        record.ending,
        record.prompt_tokens,
        record.generated_tokens,
        record.duration_s,
        extra={"fields": msgspec.structs.asdict(record)},
    )


class TextFormatter(logging.Formatter):
    """Level, logger and message; an exception in one more line."""

    def __init__(self) -> None:
        super().__init__("%(levelname)s %(name)s: %(message)s")

    def formatException(self, ei: ExceptionInfo) -> str:
        """Return the type and the place of an exception."""
        return "" if ei[1] is None else place_of(ei[1])


class JsonFormatter(logging.Formatter):
    """One object a line: time, level, logger, message, what else is known of a request."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        moment = time.gmtime(record.created)
        document: dict[str, Any] = {
            "time": f"{time.strftime('%FT%T', moment)}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info and record.exc_info[1] is not None:
            document["exception"] = place_of(record.exc_info[1])
        fields: dict[str, Any] = getattr(record, "fields", {})
        # Its own time is the request's beginning, which the line's is not.
        document |= {k if k != "time" else "began": v for k, v in fields.items()}
        return _encoder.encode(document).decode()
