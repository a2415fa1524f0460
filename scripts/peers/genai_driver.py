"""Measures onnxruntime-genai; run by the interpreter that has it, which need not have Ortolan.

genai_driver.py FOLDER THREADS PROMPT CONTEXT DECODE BATCHES prints tokens per second as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
import onnxruntime_genai as og


def main(folder: str, threads: str, prompt: str, context: str, decode: str, batches: str) -> None:
    """Measure the model in ``folder``."""
    config = og.Config(folder)
    options = {"session_options": {"intra_op_num_threads": int(threads)}}
    config.overlay(json.dumps({"model": {"decoder": options}}))
    model = og.Model(config)
    timed(model, 1, 16, 2)  # the first run also allocates
    prefill_s, _ = timed(model, 1, int(prompt), 0)
    figures: dict[str, Any] = {"prefill": int(prompt) / prefill_s, "decode": {}}
    for batch in map(int, batches.split(",")):
        _, decode_s = timed(model, batch, int(context), int(decode))
        figures["decode"][batch] = batch * int(decode) / decode_s
    print(json.dumps(figures))


def timed(model: Any, batch: int, context: int, steps: int) -> tuple[float, float]:
    """Return the seconds of prefilling ``batch`` contexts, and of ``steps`` greedy steps after."""
    length = context + steps + 2
    parameters = og.GeneratorParams(model)
    parameters.set_search_options(
        batch_size=batch, max_length=length, min_length=length, do_sample=False
    )
    generator = og.Generator(model, parameters)
    prompts = np.random.default_rng(0).integers(300, 100_000, (batch, context), np.int32)
    begun = time.perf_counter()
    generator.append_tokens(prompts)
    generator.generate_next_token()
    prefilled = time.perf_counter()
    for _ in range(steps):
        generator.generate_next_token()
    return prefilled - begun, time.perf_counter() - prefilled


if __name__ == "__main__":
    main(*sys.argv[1:])
