"""The same seeded request gives the same bits, whatever else happens to the engine.

A dozen requests of all kinds are run one after the other on an engine without cache or company;
every other way of running them must give the same text, tokens, logprobs and endings.
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from engines import (
    Outcome,
    Sink,
    alone,
    apart,
    assert_same,
    engine_on,
    mixed_requests,
    request,
    together,
)

from ortolan_export.native import export
from ortolan_runtime.bundle import open_bundle

PRECISIONS = ["int8", "int8 with an int8 cache", "int4", "int4 by 64", "fp32"]


@pytest.fixture(scope="module")
def bundles(
    glass_bundle: Path,
    glass_bundle_int4: Path,
    glass_bundle_fp32: Path,
    glass_checkpoint: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Path]:
    by_64 = tmp_path_factory.mktemp("int4") / "by-64"
    options: Any = {"int4_accuracy_level": 0, "int4_block_size": 64}
    export(glass_checkpoint, by_64, precision="int4", **options)
    cached = tmp_path_factory.mktemp("int8") / "cached"
    export(glass_checkpoint, cached, precision="int8", kv_dtype="int8")
    return {
        "int8": glass_bundle,
        "int8 with an int8 cache": cached,
        "int4": glass_bundle_int4,
        "int4 by 64": by_64,
        "fp32": glass_bundle_fp32,
    }


@pytest.fixture(scope="module")
def expected(bundles: dict[str, Path]) -> dict[str, list[Outcome]]:
    """Give each request's outcome on an engine of its own."""
    return {name: apart(bundle, mixed_requests(bundle)) for name, bundle in bundles.items()}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("prefill_chunk", [2, 7, 32, 256])
def test_a_mixed_batch_changes_no_bit_whatever_the_chunks(
    precision: str,
    prefill_chunk: int,
    bundles: dict[str, Path],
    expected: dict[str, list[Outcome]],
) -> None:
    requests = mixed_requests(bundles[precision])
    with engine_on(bundles[precision], slots=16, prefill_chunk=prefill_chunk) as engine:
        assert_same(together(engine, requests), expected[precision])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("slots", [1, 16])
def test_a_warm_cache_changes_no_bit(
    precision: str, slots: int, bundles: dict[str, Path], expected: dict[str, list[Outcome]]
) -> None:
    requests = mixed_requests(bundles[precision])
    with engine_on(bundles[precision], slots=slots) as engine:
        assert_same(alone(engine, requests), expected[precision])
        assert_same(together(engine, requests), expected[precision])
        assert engine.statistics().cached_prompt_tokens > 0


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("shuffle", range(2))
def test_the_order_of_arrival_changes_no_bit(
    precision: str, shuffle: int, bundles: dict[str, Path], expected: dict[str, list[Outcome]]
) -> None:
    requests = mixed_requests(bundles[precision])
    order = random.Random(shuffle).sample(range(len(requests)), len(requests))
    with engine_on(bundles[precision], slots=4, prefill_chunk=32) as engine:
        outcomes = together(engine, [requests[i] for i in order])
    assert_same(outcomes, [expected[precision][i] for i in order])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_two_threads_change_no_bit(
    precision: str, bundles: dict[str, Path], expected: dict[str, list[Outcome]]
) -> None:
    requests = mixed_requests(bundles[precision])
    with engine_on(bundles[precision], slots=8, threads=2) as engine:
        assert_same(together(engine, requests), expected[precision])
        assert_same(alone(engine, requests[:4]), expected[precision][:4])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("slots", [2, 16])
def test_preemption_for_want_of_memory_changes_no_bit(
    precision: str, slots: int, bundles: dict[str, Path], expected: dict[str, list[Outcome]]
) -> None:
    requests = mixed_requests(bundles[precision])
    memory = 128 * open_bundle(bundles[precision]).manifest.kv_bytes_per_token
    with engine_on(bundles[precision], slots=slots, kv_memory_bytes=memory) as engine:
        outcomes = together(engine, requests)
        assert engine.statistics().preemptions > 0
    assert_same(outcomes, expected[precision])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_requests_that_come_and_go_while_others_run_change_no_bit(
    precision: str, bundles: dict[str, Path], expected: dict[str, list[Outcome]]
) -> None:
    requests = mixed_requests(bundles[precision])
    passing = [request([7, 8, 9 + i], max_tokens=60, seed=i, ignore_eos=True) for i in range(6)]
    sink = Sink()
    with engine_on(bundles[precision], slots=6, prefill_chunk=7) as engine:
        ids = []
        for index, one in enumerate(requests):
            guest = engine.submit(passing[index % 6], Sink())
            ids.append(engine.submit(one, sink))
            if index % 3 == 2:
                sink.wait_until(lambda id=ids[-2]: id in sink.outcomes)
            engine.cancel(guest)
        assert_same(sink.wait_for(ids), expected[precision])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_restart_changes_no_bit(
    precision: str, bundles: dict[str, Path], expected: dict[str, list[Outcome]]
) -> None:
    requests = mixed_requests(bundles[precision])[:5]
    for _ in range(2):
        with engine_on(bundles[precision], slots=4) as engine:
            assert_same(together(engine, requests), expected[precision][:5])


def test_another_process_gives_the_same_bits(
    bundles: dict[str, Path], expected: dict[str, list[Outcome]]
) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path\n"
        "from engines import engine_on, mixed_requests, together\n"
        "bundle = Path(sys.argv[2])\n"
        "with engine_on(bundle, slots=3) as engine:\n"
        "    for outcome in together(engine, mixed_requests(bundle)[:4]): print(outcome.bits())"
    )
    command = [sys.executable, "-c", script, str(Path(__file__).parent)]
    ran = subprocess.run(
        [*command, str(bundles["int8"])], capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines() == [str(o.bits()) for o in expected["int8"][:4]]


@pytest.mark.slow
@pytest.mark.export
@pytest.mark.parametrize(
    ("precision", "kv_dtype"),  # its file has blocks of 32
    [("int8", "float32"), ("int8", "int8"), ("int4", "float32"), ("fp32", "float32")],
)
def test_the_default_model_gives_the_same_bits_in_every_way(
    precision: Any, kv_dtype: Any, smollm2_gguf: Path, tmp_path: Path
) -> None:
    bundle = tmp_path / "bundle"
    export(smollm2_gguf, bundle, precision=precision, kv_dtype=kv_dtype)
    requests = mixed_requests(bundle)
    long = [*requests[-1].prompt] * 20
    requests += [request(long[:n], max_tokens=6, seed=n, logprobs=1) for n in (300, 301, 650)]
    with engine_on(bundle, slots=1) as engine:
        right = [together(engine, [one])[0] for one in requests]
    for options in (
        {"slots": 16, "prefill_chunk": 7},
        {"slots": 5, "prefill_chunk": 32, "threads": 2},
        {"slots": 16, "kv_memory_bytes": 700 * engine.manifest.kv_bytes_per_token},
    ):
        with engine_on(bundle, **options) as engine:
            assert_same(together(engine, requests), right)
            assert_same(together(engine, requests[::-1]), right[::-1])
