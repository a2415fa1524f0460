"""How each contender is asked for its figures, and how its answer is read.

A measurement maps a metric to a number: tokens per second for prefill and decoding, seconds for the
start, a share of a step for what is not the model.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers.process import Command, run
from peers.restart import seconds_to_first_token

Measurement = dict[str, float]

PREFILL = "prefill"
START = "start"
OUTSIDE = "outside the model"


@dataclass(frozen=True, slots=True)
class Workload:
    """What everybody has to do: a prompt, and decoding several sequences after a context."""

    threads: int = 2
    prompt_tokens: int = 512
    context_tokens: int = 128
    decode_tokens: int = 24
    batches: tuple[int, ...] = (1, 8, 16)
    timeout_s: float = 300.0


@dataclass(frozen=True, slots=True)
class Contender:
    """A name, and a function that measures once in processes of its own."""

    name: str
    measure: Callable[[], Measurement]


def decode_metric(batch: int) -> str:
    """Return the name of decoding ``batch`` sequences at once."""
    return f"decode, batch {batch}"


def ortolan(name: str, bundle: Path, work: Workload, environment: Mapping[str, str]) -> Contender:
    """Return a bundle, measured through the whole engine: sampling and text included."""
    command: Command = [
        *_bench_command(bundle, work),
        *("--batches", ",".join(map(str, work.batches))),
        *("--prompt-tokens", str(work.prompt_tokens)),
    ]

    def measure() -> Measurement:
        return read_ortolan(run(command, timeout_s=work.timeout_s, environment=environment))

    return Contender(name, measure)


def ortolan_sampling(
    name: str, bundle: Path, work: Workload, environment: Mapping[str, str]
) -> Contender:
    """Return a bundle whose rows are all drawn with top_p, for the time outside the model."""
    command: Command = [
        *_bench_command(bundle, work),
        *("--batches", str(max(work.batches))),
        *("--prompt-tokens", "16", "--temperature", "0.8", "--top-p", "0.9"),
    ]

    def measure() -> Measurement:
        output = run(command, timeout_s=work.timeout_s, environment=environment)
        return {OUTSIDE: json.loads(output)["decode"][0]["outside_model"]}

    return Contender(name, measure)


def llama(name: str, programs: Path, model: Path, work: Workload) -> Contender:
    """Return llama.cpp with one file: its own two benchmarks, which leave sampling out."""
    threads = str(work.threads)
    prefill: Command = [
        programs / "llama-bench",
        *("-m", model, "-t", threads, "-p", str(work.prompt_tokens), "-n", "0"),
        *("-r", "1", "-o", "jsonl"),
    ]
    decode: Command = [
        programs / "llama-batched-bench",
        *("-m", model, "-t", threads, "-tb", threads, "-c", str(_llama_context(work))),
        # The prompt is shared, which spares llama.cpp 15 of 16 prefills and changes no decode step.
        *("-pps", "-npp", str(work.context_tokens), "-ntg", str(work.decode_tokens)),
        *("-npl", ",".join(map(str, work.batches)), "--output-format", "jsonl"),
    ]

    def measure() -> Measurement:
        return {
            **read_llama_bench(run(prefill, timeout_s=work.timeout_s)),
            **read_batched_bench(run(decode, timeout_s=work.timeout_s)),
        }

    return Contender(name, measure)


def genai(name: str, python: Path, folder: Path, work: Workload) -> Contender:
    """Return onnxruntime-genai with a model of its own builder, greedy sampling included."""
    driver = Path(__file__).with_name("genai_driver.py")
    numbers = (work.threads, work.prompt_tokens, work.context_tokens, work.decode_tokens)
    command: Command = [
        python,
        driver,
        folder,
        *map(str, numbers),
        ",".join(map(str, work.batches)),
    ]
    # Our modules must not be found by an interpreter that has other packages.
    clean = {"PYTHONPATH": ""}

    def measure() -> Measurement:
        return read_genai(run(command, timeout_s=work.timeout_s, environment=clean))

    return Contender(name, measure)


def ortolan_start(
    name: str, bundle: Path, work: Workload, environment: Mapping[str, str]
) -> Contender:
    """Return the time from starting ``ortolan serve`` to the first token over HTTP."""
    command: Command = [
        *(sys.executable, "-m", "ortolan_server", "serve", bundle, "--offline"),
        *("--model-name", "peers", "--threads", str(work.threads), "--port"),
    ]

    def measure() -> Measurement:
        _read_through(bundle.iterdir())
        return {START: seconds_to_first_token(command, environment=environment)}

    return Contender(name, measure)


def llama_start(name: str, programs: Path, model: Path, work: Workload) -> Contender:
    """Return the time from starting llama-server to the first token over HTTP."""
    command: Command = [
        programs / "llama-server",
        *("-m", model, "-t", str(work.threads), "-c", str(_llama_context(work)), "--port"),
    ]

    def measure() -> Measurement:
        _read_through([model])
        return {START: seconds_to_first_token(command)}

    return Contender(name, measure)


def read_ortolan(output: str) -> Measurement:
    """Return the figures of ``ortolan bench --json``."""
    figures = json.loads(output)
    return {
        PREFILL: figures["prefill_tokens_per_s"],
        **{decode_metric(d["batch"]): d["tokens_per_s"] for d in figures["decode"]},
    }


def read_llama_bench(output: str) -> Measurement:
    """Return the prefill speed of ``llama-bench -o jsonl``, whose rows are tests."""
    rows = _json_lines(output)
    return {PREFILL: next(row["avg_ts"] for row in rows if row["n_prompt"] and not row["n_gen"])}


def read_batched_bench(output: str) -> Measurement:
    """Return the decode speeds of ``llama-batched-bench --output-format jsonl``, a row a batch."""
    return {decode_metric(row["pl"]): row["speed_tg"] for row in _json_lines(output)}


def read_genai(output: str) -> Measurement:
    """Return the figures of our driver of onnxruntime-genai: its last line."""
    figures = json.loads(output.strip().splitlines()[-1])
    decode = {decode_metric(int(batch)): speed for batch, speed in figures["decode"].items()}
    return {PREFILL: figures["prefill"], **decode}


def _json_lines(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def _bench_command(bundle: Path, work: Workload) -> Command:
    return [
        *(sys.executable, "-m", "ortolan_server", "bench", bundle, "--json"),
        *("--threads", str(work.threads), "--repetitions", "1"),
        *("--context-tokens", str(work.context_tokens)),
        # The first token comes from the prefill.
        *("--decode-tokens", str(work.decode_tokens + 1)),
    ]


def _llama_context(work: Workload) -> int:
    return max(4096, max(work.batches) * (work.context_tokens + work.decode_tokens))


def _read_through(files: Iterable[Path]) -> None:
    """Bring files into the page cache."""
    for file in files:
        with file.open("rb") as content:
            while content.read(1 << 24):
                pass
