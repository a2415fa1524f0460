"""Families that differ most from a Llama, run by the engine that serves them."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest
from families import FAMILIES

from ortolan_export.native import export

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))

from engines import alone, engine_on, request, together

_PROMPT_LENGTHS = (3, 50, 17, 1, 70)


@pytest.mark.parametrize("precision", ["int8", "fp32"])
@pytest.mark.parametrize("case", ["gpt2", "gemma2", "mixtral"])
def test_a_request_gives_the_same_alone_and_in_company(
    case: str, precision: Any, make_checkpoint: Any, tmp_path: Path
) -> None:
    family, config = FAMILIES[case]
    export(make_checkpoint(family, **config), tmp_path / "out", precision=precision)
    rng = random.Random(3)
    requests = [
        request(
            [rng.randrange(256) for _ in range(length)],
            max_tokens=12,
            seed=length,
            logprobs=2,
            ignore_eos=True,
        )
        for length in _PROMPT_LENGTHS
    ]
    with engine_on(tmp_path / "out", slots=1) as engine:
        expected = alone(engine, requests)
    with engine_on(tmp_path / "out", slots=4) as engine:
        assert together(engine, requests) == expected
