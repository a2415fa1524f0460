"""An int8+int4 bundle computes prompts in int8 and decodes in int4, over one KV cache."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from ortolan_export.verify import GraphRunner
from ortolan_runtime.bundle import (
    GRAPH_NAME,
    PREFILL_GRAPH_NAME,
    open_bundle,
    write_manifest,
)
from ortolan_runtime.errors import BundleError

_PROMPT = tuple(range(30, 70))


@pytest.fixture(scope="module")
def bundles(
    glass_bundle: Path, glass_bundle_int4: Path, glass_bundle_phased: Path
) -> dict[str, Path]:
    """Give glassllm's model in int8, in int4 and in both."""
    return {"int8": glass_bundle, "int4": glass_bundle_int4, "both": glass_bundle_phased}


def _runner(bundle: Path) -> GraphRunner:
    return GraphRunner(bundle, open_bundle(bundle).manifest, rows=2, length=64)


def _logprobs(outputs: tuple[Any, Any]) -> Any:
    logits, logsumexp = outputs
    return logits - logsumexp[:, None]


def test_the_manifest_names_the_graph_of_prompts(bundles: dict[str, Path]) -> None:
    both, int8 = (open_bundle(bundles[name]) for name in ("both", "int8"))
    assert both.manifest.precision == "int8+int4"
    assert both.prefill_graph_path == bundles["both"] / PREFILL_GRAPH_NAME
    assert not both.manifest.single_row_exact
    assert int8.prefill_graph_path is None


def test_a_prompt_scores_as_in_int8(bundles: dict[str, Path]) -> None:
    everywhere = range(len(_PROMPT))
    both, int8, int4 = (
        _logprobs(_runner(bundles[name]).run([_PROMPT], [0], everywhere))
        for name in ("both", "int8", "int4")
    )
    likely = int8 > -7
    assert np.abs(both - int8)[likely].mean() < 0.05
    assert np.abs(both - int4)[likely].mean() > 0.05


def test_a_token_decodes_to_the_bits_of_int4_over_the_same_cache(bundles: dict[str, Path]) -> None:
    both, int4 = (_runner(bundles[name]) for name in ("both", "int4"))
    both.last([_PROMPT, _PROMPT[:9]], [0, 0])
    int4.caches = both.caches
    rows, pasts = [[5], [6]], [len(_PROMPT), 9]
    assert both.last(rows, pasts)[0].tobytes() == int4.last(rows, pasts)[0].tobytes()


def test_a_chunk_of_a_prompt_gives_the_bits_of_the_whole(bundles: dict[str, Path]) -> None:
    whole, chunked = (_runner(bundles["both"]) for _ in range(2))
    expected = whole.last([_PROMPT], [0])[0]
    chunked.last([_PROMPT[:17]], [0])
    assert chunked.last([_PROMPT[17:]], [17])[0].tobytes() == expected.tobytes()


def test_what_both_graphs_have_is_stored_once(bundles: dict[str, Path]) -> None:
    graphs = [ir.load(bundles["both"] / name).graph for name in (GRAPH_NAME, PREFILL_GRAPH_NAME)]
    for name in ("model.embed_tokens.weight", "model.embed_tokens.scale", "rope.cos", "rope.sin"):
        tensors = [graph.initializers[name].const_value for graph in graphs]
        places = {(t.offset, t.length) for t in tensors if isinstance(t, ir.ExternalTensor)}
        assert len(places) == 1, name


def test_a_bundle_without_its_second_graph_is_refused(
    bundles: dict[str, Path], tmp_path: Path
) -> None:
    incomplete = shutil.copytree(bundles["both"], tmp_path / "incomplete")
    (incomplete / PREFILL_GRAPH_NAME).unlink()
    write_manifest(incomplete, open_bundle(bundles["both"]).manifest)
    with pytest.raises(BundleError, match=f"lists no {PREFILL_GRAPH_NAME}; export the model again"):
        open_bundle(incomplete)
