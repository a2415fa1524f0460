"""A KV cache in int8: near the one in float32, as exact, and a quarter of its size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import FAMILIES
from parity import has_the_same_bits_in_chunks, relative_error
from refusals import refusal

from ortolan_export.architectures.plan import plan_decoder
from ortolan_export.attention import KINDS
from ortolan_export.kvscales import measure_scales
from ortolan_export.native import export, open_checkpoint
from ortolan_export.progress import say_nothing


@pytest.mark.parametrize("case", FAMILIES)
def test_the_cache_in_int8_is_near_transformers_and_exact_in_any_batch_and_chunks(
    case: str, make_checkpoint: Any, reference_of: Any, tmp_path: Path
) -> None:
    family, config = FAMILIES[case]
    checkpoint = make_checkpoint(family, **config)
    export(checkpoint, tmp_path / "out", precision="fp32", kv_dtype="int8")  # compares batches
    reference = reference_of(checkpoint)
    # Random tokens reach further than the text whose keys and values were measured.
    assert 0 < relative_error(tmp_path / "out", reference) < 0.12
    assert has_the_same_bits_in_chunks(tmp_path / "out", reference)


@pytest.mark.parametrize("precision", ["int8", "int4", "int8+int4"])
def test_every_precision_can_have_it(precision: Any, make_checkpoint: Any, tmp_path: Path) -> None:
    checkpoint = make_checkpoint("llama")
    plain = export(checkpoint, tmp_path / "plain", precision=precision)
    manifest = export(checkpoint, tmp_path / "out", precision=precision, kv_dtype="int8")
    assert (plain.kv_dtype, manifest.kv_dtype) == ("float32", "int8")
    assert 4 * manifest.kv_bytes_per_token == plain.kv_bytes_per_token


def test_channels_that_positions_rotate_into_each_other_share_a_scale(
    make_checkpoint: Any, tmp_path: Path
) -> None:
    checkpoint = make_checkpoint("llama")
    manifest = export(checkpoint, tmp_path / "out", precision="fp32")
    decoder = plan_decoder(open_checkpoint(checkpoint), None)
    ids = np.random.default_rng(0).integers(0, decoder.vocab_size, 300).tolist()
    scales = measure_scales(
        tmp_path / "out", decoder, manifest=manifest, token_ids=ids, report=say_nothing
    )
    assert set(scales) == {(layer, kind) for layer in range(decoder.layers) for kind in KINDS}
    half = decoder.head_size // 2
    for (_, kind), scale in scales.items():
        assert scale.shape == (1, decoder.kv_heads, 1, decoder.head_size)
        assert (scale > 0).all()
        shares = scale[..., :half] == scale[..., half:]
        assert shares.all() if kind == "key" else not shares.any()


def test_a_gpu_has_no_cache_in_int8(
    make_checkpoint: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--for", "cuda", "--kv-dtype", "int8")
    line = refusal(make_checkpoint("llama"), tmp_path / "bundle", capsys, *options)
    assert "--kv-dtype must be left out for cuda, got int8" in line
