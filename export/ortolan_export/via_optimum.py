"""Exports a checkpoint by optimum's own exporter, and adopts what that writes.

For architectures that the native exporter does not know. It needs torch and transformers, which
this module imports when it is called. optimum is wrong now and then (Gemma 2 loses its soft-caps),
so that every graph is compared with transformers before its bundle takes a name.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np

from ortolan_export.adopt import adopt_export
from ortolan_export.checkpoint import read_json, read_texts
from ortolan_export.config import Config
from ortolan_export.errors import ExportError, SourceError, UnsupportedModel, VerificationError
from ortolan_export.existing import ExistingExport
from ortolan_export.foreign import choose_context_length
from ortolan_export.progress import Report, say_nothing
from ortolan_export.source import Float32
from ortolan_export.verify import open_runner
from ortolan_runtime.bundle import Manifest, check_replaceable

_PACKAGES = ("torch", "transformers", "optimum.exporters.onnx")
_TASK = "text-generation-with-past"
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_COMPARED_TOKENS = 48
# The largest difference of a logit, as a share of the logits' spread. Graphs that are right differ
# by 1e-5 to 1e-4.
_TOLERANCE = 2e-3


def export_via_optimum(
    source: Path,
    out: Path,
    *,
    name: str | None = None,
    context_length: int | None = None,
    report: Report = say_nothing,
) -> Manifest:
    """Write a bundle of the Hugging Face directory ``source`` to ``out``; return its manifest.

    Weights, activations and KV cache are float32. Arguments as in ``native.export``. Raises
    ExportError, BundleError.
    """
    _require_packages()
    if not source.is_dir():
        raise SourceError(f"--via optimum takes a Hugging Face model directory, got {source}")
    config = read_json(source / "config.json")
    texts = read_texts(source, config)
    # Both are refused now, and not after minutes of torch.
    choose_context_length(Config(config), context_length)
    out = out.absolute()
    check_replaceable(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.optimum.", dir=out.parent) as folder:
        checkpoint = _as_transformers_4(source, config, Path(folder) / "checkpoint")
        written = Path(folder) / "onnx"
        report("exporting by optimum", 0, 1)
        _run_optimum(checkpoint, written)
        report("exporting by optimum", 1, 1)
        found = ExistingExport(
            name=name or source.resolve().name,
            graph=written / "model.onnx",
            config=config,
            config_file=source / "config.json",
            texts=texts,
            weights=tuple(file for part in _WEIGHTS for file in sorted(source.glob(part))),
        )
        compare = partial(_compare_with_transformers, checkpoint)
        return adopt_export(found, out, context_length=context_length, report=report, check=compare)


def _require_packages() -> None:
    for package in _PACKAGES:
        try:
            is_there = util.find_spec(package) is not None
        except ModuleNotFoundError:
            is_there = False
        if not is_there:
            raise ExportError(
                f"--via optimum needs {package}: pip install 'ortolan[optimum,export,cpu]' into an "
                "environment of its own, since it needs a transformers older than 4.58"
            )


def _as_transformers_4(source: Path, config: Mapping[str, Any], folder: Path) -> Path:
    """Return a directory that transformers 4 reads: ``source``, or ``folder`` with links to it.

    transformers 5 writes the rotation's base and scaling into rope_parameters, which 4 passes over
    in silence. Raises UnsupportedModel for those that 4 has no fields for.
    """
    rope = config.get("rope_parameters")
    if not isinstance(rope, Mapping) or "rope_theta" in config:
        return source
    if any(isinstance(value, Mapping) for value in rope.values()):
        raise UnsupportedModel(
            "config.json: rope_parameters by kinds of layers cannot be read by the transformers 4 "
            "that optimum needs; save the checkpoint with transformers 4"
        )
    fields = {key: value for key, value in config.items() if key != "rope_parameters"}
    scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
    if "rope_theta" in rope:
        fields["rope_theta"] = rope["rope_theta"]
    if "partial_rotary_factor" in scaling:
        fields["partial_rotary_factor"] = scaling.pop("partial_rotary_factor")
    if scaling.get("rope_type", "default") != "default":
        fields["rope_scaling"] = scaling
    folder.mkdir(parents=True)
    for file in source.iterdir():
        if file.name != "config.json":
            (folder / file.name).symlink_to(file.resolve())
    (folder / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    return folder


def _run_optimum(checkpoint: Path, folder: Path) -> None:
    with _quiet():
        from optimum.exporters.onnx import main_export

        try:
            main_export(
                str(checkpoint),
                str(folder),
                task=_TASK,
                library_name="transformers",
                dtype="fp32",
                do_validation=False,  # we compare more than it does, and refuse what differs
                local_files_only=True,
            )
        except MemoryError:
            raise
        except Exception as exc:  # optimum, transformers and torch raise anything
            reason = " ".join(str(exc).split()).partition(". ")[0]
            raise UnsupportedModel(f"optimum cannot export {checkpoint.name}: {reason}") from exc


def _compare_with_transformers(checkpoint: Path, folder: Path, manifest: Manifest) -> None:
    """Raise VerificationError when the bundle in ``folder`` computes something else."""
    count = min(_COMPARED_TOKENS, manifest.context_length)
    tokens = np.random.default_rng(0).integers(0, manifest.vocab_size, count).tolist()
    expected = _transformers_logits(checkpoint, tokens)
    runner = open_runner(folder, manifest, rows=1, length=count)
    given, _ = runner.run([tokens], [0], range(count))
    difference = float(np.abs(given - expected).max() / max(expected.std(), 1e-9))
    if not difference <= _TOLERANCE:
        raise VerificationError(
            f"the graph that optimum wrote differs from transformers by {100 * difference:.2g} % "
            f"of the logits' spread, at most {100 * _TOLERANCE:.1g} % is allowed; optimum does not "
            f"know all of {manifest.architecture!r}: export it natively if `ortolan export` can"
        )


def _transformers_logits(checkpoint: Path, tokens: list[int]) -> Float32:
    """Return float32 ``[n, vocab]`` for the whole text at once, by transformers' plainest code."""
    with _quiet():
        import torch
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(
            checkpoint, torch_dtype=torch.float32, attn_implementation="eager"
        ).eval()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            logits: Float32 = model(torch.tensor([tokens])).logits[0].float().numpy()
        return logits


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what torch and transformers say of themselves off the terminal."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from optimum.utils import logging as optimum_logging
        from transformers.utils import logging as transformers_logging

        optimum_logging.set_verbosity_error()
        transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        yield
