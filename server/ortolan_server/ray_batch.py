"""A batch on many machines: ``ortolan batch`` with Ray Data between the file and the engines.

    python -m ortolan_server.ray_batch in.jsonl out.jsonl --bundle /srv/bundle --engines 4 --cpus 8

Each engine is an actor of Ray's; blocks of lines whose prompts begin alike go to one of them. The
files are on the machine that runs the command, the bundle's folder is on every node. What a line
gets is what ``ortolan batch`` gives it, and a batch that was killed goes on in the same way.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import ray
from ray.exceptions import RayError

from ortolan_runtime.engine import Engine, EngineOptions
from ortolan_runtime.errors import EngineClosed, OrtolanError
from ortolan_server.batch.answering import Answer, answer_block
from ortolan_server.batch.files import Progress, run_file
from ortolan_server.batch.lines import Line
from ortolan_server.responses import encode
from ortolan_server.terminal import EXIT_FAILED, fail, progress_line, say

# Lines that go to an engine together: enough for its slots, few enough that no engine idles at the
# end while another has a whole block left.
_BLOCK_LINES = 64

Block = dict[str, Any]


class BatchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where and how lines are answered: ``engines`` actors with ``cpus`` threads each."""

    bundle: str
    engines: int = 1
    cpus: int = 1
    slots: int = 16
    model_name: str | None = None


class EngineBlocks:
    """An engine in an actor, which answers one block of lines after another."""

    def __init__(self, *, bundle: str, slots: int, threads: int, name: str | None) -> None:
        self._engine = Engine.open(Path(bundle), EngineOptions(slots=slots, threads=threads))
        self._name = name

    def __call__(self, block: Block) -> Block:
        """Return the answers of ``line``, strings ``[lines]``, with their ``number``."""
        lines = [str(line) for line in block["line"]]
        answers = answer_block(self._engine, lines, self._name)
        return {"number": block["number"], "answer": np.array(answers, object)}


class ClusterAnswerer:
    """Answers lines with the engines of a cluster that this process has joined."""

    def __init__(self, options: BatchOptions) -> None:
        self._options = options

    def answer(self, lines: Iterable[Line]) -> Iterator[Answer]:
        """Yield the answer of each line, block by block. Raises EngineClosed when Ray gives up."""
        rows = [{"number": line.number, "line": _text_of(line)} for line in lines]
        if not rows:
            return
        blocks = -(-len(rows) // _BLOCK_LINES)
        options = self._options
        answered = ray.data.from_items(rows, override_num_blocks=blocks).map_batches(
            EngineBlocks,
            fn_constructor_kwargs={
                "bundle": options.bundle,
                "slots": options.slots,
                "threads": options.cpus,
                "name": options.model_name,
            },
            batch_size=_BLOCK_LINES,
            concurrency=options.engines,
            num_cpus=options.cpus,
        )
        try:
            for row in answered.iter_rows():
                yield _answer_of(row["number"], row["answer"])
        except RayError as exc:
            reason = (str(exc).strip().splitlines() or [type(exc).__name__])[-1]
            raise EngineClosed(f"an engine has failed; what is answered is kept: {reason}") from exc


def main(words: Sequence[str]) -> int:
    """Answer a file as the command line says; return the exit code."""
    arguments = _parser().parse_args(words)
    options = BatchOptions(
        bundle=str(arguments.bundle),
        engines=arguments.engines,
        cpus=arguments.cpus,
        slots=arguments.slots,
        model_name=arguments.model_name,
    )
    ray.init(address=arguments.address, log_to_driver=False)
    try:
        with progress_line() as show:

            def report(now: Progress) -> None:
                show(now.answered, now.lines, f"{now.failed} failed")

            done = run_file(ClusterAnswerer(options), arguments.source, arguments.target, report)
    except OrtolanError as exc:
        return fail(str(exc))
    finally:
        ray.shutdown()
    say(f"{done.answered} lines answered, {done.failed} failed")
    return EXIT_FAILED if done.failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ortolan_server.ray_batch",
        description="Answer a file of requests in OpenAI's batch format on a Ray cluster.",
    )
    add = parser.add_argument
    add("source", type=Path, metavar="IN", help="a request a line: custom_id, method, url, body")
    add("target", type=Path, metavar="OUT", help="an answer a line; what it holds is not redone")
    add("--bundle", type=Path, required=True, help="the bundle's folder, on every node")
    add("--address", help="the cluster's (default: RAY_ADDRESS, else one on this machine)")
    add("--engines", type=_positive, default=1, help="actors (default: %(default)s)")
    add("--cpus", type=_positive, default=1, help="threads of each (default: %(default)s)")
    add("--slots", type=_positive, default=16, help="sequences at once (default: %(default)s)")
    add("--model-name", help="the model's name in the requests (default: the bundle's)")
    return parser


def _positive(word: str) -> int:
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number >= 1, got {word!r}")
    return int(word)


def _text_of(line: Line) -> str:
    fields = {"custom_id": line.custom_id, "method": "POST", "url": line.dialect.path}
    return encode({**fields, "body": line.body}).decode()


def _answer_of(number: int, text: str) -> Answer:
    document = msgspec.json.decode(text)
    usage = ((document["response"] or {}).get("body") or {}).get("usage") or {}
    return Answer(
        number=number,
        document=document,
        generated_tokens=usage.get("completion_tokens", 0),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
