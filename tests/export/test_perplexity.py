"""How well a bundle predicts a text is measured as transformers would, and told next to fp32's."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parity import Reference

from ortolan_export.errors import VerificationError
from ortolan_export.native import export
from ortolan_export.perplexity import check_perplexity, measure_perplexity
from ortolan_export.progress import say_nothing
from ortolan_runtime.bundle import open_bundle
from ortolan_server.cli import main


@pytest.mark.parametrize("count", [2, 41, 53])
def test_the_perplexity_is_that_of_transformers(
    count: int, make_checkpoint: Any, reference_of: Any, tmp_path: Path
) -> None:
    checkpoint = make_checkpoint("llama", tie_word_embeddings=True)
    export(checkpoint, tmp_path / "out", precision="fp32")
    reference: Reference = reference_of(checkpoint)
    ids = reference.sequences[-1][:count]
    logits = reference.logits[-1][: count - 1].astype(np.float64)
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(count - 1), ids[1:]]
    found = measure_perplexity(open_bundle(tmp_path / "out"), ids, say_nothing)
    assert found == pytest.approx(math.exp(losses.mean()), rel=1e-5)


def test_each_window_is_predicted_from_itself_alone(tiny_bundle: Path) -> None:
    bundle = open_bundle(tiny_bundle)
    ids = np.random.default_rng(0).integers(0, 258, 2 * bundle.manifest.context_length).tolist()
    half = len(ids) // 2
    parts = [measure_perplexity(bundle, part, say_nothing) for part in (ids[:half], ids[half:])]
    whole = measure_perplexity(bundle, ids, say_nothing)
    assert whole == pytest.approx(math.sqrt(parts[0] * parts[1]), rel=1e-9)
    # A last window of one token has nothing to predict.
    assert measure_perplexity(bundle, ids[: half + 1], say_nothing) == parts[0]


def test_verify_prints_the_perplexity_next_to_the_references(
    glass_bundle: Path, glass_bundle_fp32: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["verify", str(glass_bundle), "--perplexity", "--against", str(glass_bundle_fp32)]
    assert main([*arguments, "--least-agreement", "0"]) == 0
    printed = capsys.readouterr().out
    assert "ok      perplexity of at most 1.2 times: " in printed
    assert "times that of glass (fp32), " in printed
    assert main([*arguments, "--least-agreement", "0", "--most-perplexity", "0.5"]) == 1
    assert "FAILED  perplexity of at most 0.5 times" in capsys.readouterr().out


def test_a_text_of_ones_own_is_scored(glass_bundle: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("Once upon a time there was a little girl, and she was very tired.")
    found = check_perplexity(glass_bundle, text, None, 1.0, say_nothing)
    noise = tmp_path / "noise"
    noise.write_text("zq xv jjk wq zzx vq kkj xq zv qqw jx zk vvx qz jw kq xz")
    worse = check_perplexity(glass_bundle, noise, None, 1.0, say_nothing)
    assert found.has_passed
    assert float(found.finding.split()[0]) < float(worse.finding.split()[0])


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "must have at least 2 tokens, got 0"), (b"\xff\xfe\x00", "must be text in UTF-8")],
)
def test_what_is_no_text_is_refused(
    content: bytes, message: str, glass_bundle: Path, tmp_path: Path
) -> None:
    (tmp_path / "text").write_bytes(content)
    with pytest.raises(VerificationError, match=message):
        check_perplexity(glass_bundle, tmp_path / "text", None, 1.0, say_nothing)


def test_bundles_of_two_models_are_not_compared(glass_bundle: Path, tiny_bundle: Path) -> None:
    with pytest.raises(VerificationError, match="vocabulary"):
        check_perplexity(glass_bundle, None, tiny_bundle, 1.0, say_nothing)
