"""What a precision costs is measured and told: case A-ORT-05."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ortolan_export.agreement import check_agreement, measure_agreement
from ortolan_export.errors import VerificationError
from ortolan_export.native import export
from ortolan_runtime.bundle import open_bundle
from ortolan_server.cli import main


@pytest.fixture(scope="module")
def int4(
    glass_checkpoint: Path, glass_bundle_int4: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, Path]:
    """Give int4 bundles by the level of their activations: 4 quantises them, 0 does not."""
    out = tmp_path_factory.mktemp("levels") / "0"
    export(glass_checkpoint, out, precision="int4", int4_accuracy_level=0)
    return {0: out, 4: glass_bundle_int4}


def test_a_bundle_agrees_with_itself(glass_bundle_fp32: Path) -> None:
    found = measure_agreement(glass_bundle_fp32, glass_bundle_fp32)
    assert (found.prompts, found.same, found.largest_difference) == (50, 1.0, 0.0)


@pytest.mark.parametrize("level", [0, 4])
def test_each_accuracy_level_is_recorded_and_measured_against_fp32(
    int4: dict[int, Path], glass_bundle_fp32: Path, level: int
) -> None:
    assert open_bundle(int4[level]).manifest.int4_accuracy_level == level
    found = measure_agreement(int4[level], glass_bundle_fp32)
    assert found.prompts == 50
    assert 0.5 < found.same <= 1.0
    assert 0.0 < found.largest_difference < 20.0


def test_the_two_levels_are_told_apart(int4: dict[int, Path]) -> None:
    assert measure_agreement(int4[4], int4[0]).largest_difference > 0.0


def test_an_agreement_below_the_least_is_flagged(
    int4: dict[int, Path], glass_bundle_fp32: Path
) -> None:
    assert not check_agreement(int4[4], glass_bundle_fp32, least=1.01).has_passed
    assert check_agreement(int4[4], glass_bundle_fp32, least=0.0).has_passed


def test_verify_prints_the_agreement(
    glass_bundle: Path, glass_bundle_fp32: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["verify", str(glass_bundle), "--against", str(glass_bundle_fp32)]
    assert main([*arguments, "--least-agreement", "0.5"]) == 0
    assert "ok      agreement of at least 50 %" in capsys.readouterr().out


def test_verify_fails_below_the_least_agreement(
    tiny_bundle: Path, make_checkpoint: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export(make_checkpoint("qwen2"), tmp_path / "other")
    arguments = ["verify", str(tiny_bundle), "--against", str(tmp_path / "other")]
    assert main([*arguments, "--least-agreement", "0.9"]) == 1
    assert "FAILED  agreement of at least 90 %" in capsys.readouterr().out


def test_bundles_of_two_models_are_not_compared(glass_bundle: Path, tiny_bundle: Path) -> None:
    with pytest.raises(VerificationError, match="vocabulary"):
        measure_agreement(glass_bundle, tiny_bundle)
