"""``ortolan batch``: answers a file of requests in OpenAI's batch format, without a server."""

from __future__ import annotations

import argparse
import logging
import time
from pathlib import Path

from ortolan_runtime.engine import EngineOptions
from ortolan_server.batch.answering import Answerer
from ortolan_server.batch.files import Progress, run_file
from ortolan_server.commands.options import (
    add_engine_options,
    add_source_options,
    engine_options_of,
    open_engine,
)
from ortolan_server.terminal import EXIT_FAILED, progress_line, say

EXAMPLES = """\
  ortolan batch in.jsonl out.jsonl
  ortolan batch in.jsonl out.jsonl --bundle ./my-bundle --slots 32
  ortolan batch in.jsonl out.jsonl --model-name gpt-3.5-turbo-instruct
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    add = parser.add_argument
    add("source", type=Path, metavar="IN", help="a request a line: custom_id, method, url, body")
    add("target", type=Path, metavar="OUT", help="an answer a line; what it holds is not redone")
    add("--bundle", type=Path, help="the bundle's folder (default: the default model)")
    add("--model-name", help="the model's name in the requests (default: the bundle's)")
    add_engine_options(parser)
    add_source_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Answer every line; return 1 when one has failed. Raises BatchError and OrtolanError."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    progress, started = Progress(), time.monotonic()
    options = engine_options_of(arguments, EngineOptions().queue_limit)
    with open_engine(arguments, options) as engine, progress_line() as show:

        def report(now: Progress) -> None:
            nonlocal progress
            progress = now
            rate = now.generated_tokens / (time.monotonic() - started)
            show(now.answered, now.lines, f"{now.failed} failed, {rate:.0f} tokens/s")

        answerer = Answerer(engine, name=arguments.model_name)
        try:
            run_file(answerer, arguments.source, arguments.target, report)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"{progress.answered} of {progress.lines} lines are answered; the same command "
                "goes on from there"
            ) from None
    say(_summary(progress, time.monotonic() - started, arguments.target))
    return EXIT_FAILED if progress.failed else 0


def _summary(progress: Progress, seconds: float, target: Path) -> str:
    """Return what was done, in one line."""
    why = f" ({target} says why)" if progress.failed else ""
    before = f", {progress.from_before} from before" if progress.from_before else ""
    return (
        f"{progress.answered} lines answered{before}, {progress.failed} failed{why}; "
        f"{progress.generated_tokens} tokens in {seconds:.1f} s"
    )
