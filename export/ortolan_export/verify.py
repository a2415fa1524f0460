"""Runs a freshly written graph: records golden prompts, and checks that no row feels another.

It needs onnxruntime, which it imports when it is called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ortolan_export.errors import VerificationError
from ortolan_export.running import FATAL_ONLY, ModelRunner, Runner, translated_errors
from ortolan_export.source import Float32
from ortolan_runtime.bundle import GRAPH_NAME, Golden, KVDtype, Manifest

_GOLDEN_TOKENS = 8
# Half of it is a golden prompt's, and the rest holds the tokens that follow.
LEAST_CONTEXT = 2 * _GOLDEN_TOKENS
# Kernels for one row and for many add in different orders, which float32 shows and int8 does not.
_TOLERANCES: Mapping[KVDtype, float] = {"float32": 1e-3, "float16": 5e-2}


def open_runner(folder: Path, manifest: Manifest, *, rows: int, length: int) -> Runner:
    """Return what runs the bundle in ``folder``, with ``rows`` rows of ``length`` tokens."""
    if manifest.masked_graph is not None:
        return ModelRunner(folder, manifest, rows=rows, length=length)
    return GraphRunner(folder, manifest, rows=rows, length=length)


class GraphRunner(Runner):
    """The graphs of a bundle with KV buffers for ``rows`` sequences of ``length`` tokens.

    A second graph, where there is one, runs what is longer than a token a row. The buffers are
    filled with garbage at first: what no row has written, no row may read.
    """

    def __init__(self, folder: Path, manifest: Manifest, *, rows: int, length: int) -> None:
        self._names = manifest.graph
        self._decode = _session(folder / GRAPH_NAME)
        second = manifest.prefill_graph
        self._prefill = self._decode if second is None else _session(folder / second)
        shape = (rows, manifest.kv_heads, manifest.cache_length(length), manifest.head_size)
        self.caches: dict[tuple[int, str], Any] = {
            (layer, kind): np.full(shape, 7.0, manifest.kv_dtype)
            for layer in range(manifest.layers)
            for kind in ("key", "value")
        }

    def run(
        self, rows: Sequence[Sequence[int]], pasts: Sequence[int], positions: Sequence[int]
    ) -> tuple[Float32, Float32]:
        """Run one step; return logits ``[R, vocab]`` and their log-sum-exp ``[R]``.

        ``rows`` are the new tokens of each sequence, padded on the right to equal length by this
        function; ``pasts`` how many tokens each has cached; ``positions`` the wanted ones, flat
        over the padded rows.
        """
        names = self._names
        assert names.logsumexp is not None
        wanted = (names.logits, names.logsumexp)
        logits, logsumexp = self.observe(rows, pasts, positions, wanted)
        return logits, logsumexp

    def observe(
        self,
        rows: Sequence[Sequence[int]],
        pasts: Sequence[int],
        positions: Sequence[int],
        outputs: Sequence[str],
    ) -> list[Float32]:
        """Run one step as ``run`` does; return the graph's outputs of these names."""
        width = max(len(row) for row in rows)
        ids = np.zeros((len(rows), width), np.int64)
        for index, row in enumerate(rows):
            ids[index, : len(row)] = row
        lengths = np.array([p + len(r) for p, r in zip(pasts, rows, strict=True)], np.int32)
        first = np.array(pasts, np.int64)
        names = self._names
        feeds = {
            names.input_ids: ids,
            names.position_ids: first[:, None] + np.arange(width),
            names.seqlens_k: lengths - np.int32(1),
            names.total_sequence_length: np.array(lengths.max(), np.int32),
            names.write_indices: first,
            names.logit_positions: np.array(positions, np.int64),
        }
        wanted = {name: array for name, array in feeds.items() if name is not None}
        return self._run(self._prefill if width > 1 else self._decode, wanted, outputs)

    def _run(self, session: Any, feeds: Mapping[str, Any], wanted: Sequence[str]) -> list[Float32]:
        binding = session.io_binding()
        count = len(feeds[self._names.input_ids])
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)
        for name in wanted:  # first, since outputs come in the order of their binding
            binding.bind_output(name, "cpu")
        for (layer, kind), cache in self.caches.items():
            active = cache[:count]
            place = ("cpu", 0, active.dtype.type, active.shape, active.ctypes.data)
            binding.bind_input(self._names.past.format(layer=layer, kind=kind), *place)
            binding.bind_output(self._names.present.format(layer=layer, kind=kind), *place)
        with translated_errors():
            session.run_with_iobinding(binding)
        return [output.numpy() for output in binding.get_outputs()[: len(wanted)]]


def _session(graph: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = FATAL_ONLY
    with translated_errors():
        return onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])


def row_tolerance(manifest: Manifest) -> float:
    """Return by how much a row's logits may differ between alone and in a batch."""
    return 0.0 if manifest.single_row_exact else _TOLERANCES.get(manifest.kv_dtype, 0.0)


def record_golden(
    folder: Path, manifest: Manifest, prompts: Sequence[Sequence[int]]
) -> tuple[Golden, ...]:
    """Return what follows each prompt greedily when it runs alone.

    Where a lone row rounds differently, the runtime never runs one, and alone means beside itself.
    Raises VerificationError when a prompt in a batch with the others scores the same tokens
    differently: in any bit for int8, by more than 1e-3 for float32 and 5e-2 for float16.
    """
    length = max(len(prompt) for prompt in prompts) + _GOLDEN_TOKENS
    runner = open_runner(folder, manifest, rows=max(2, len(prompts)), length=length)
    copies = 1 if manifest.single_row_exact else 2
    golden = tuple(_greedy(runner, prompt, copies) for prompt in prompts)
    _check_finite(manifest, golden)
    _check_isolation(manifest, golden, _scores_in_batch(runner, golden))
    return golden


def _greedy(runner: Runner, prompt: Sequence[int], copies: int) -> Golden:
    tokens: list[int] = []
    logprobs: list[float] = []
    row, past = list(prompt), 0
    for _ in range(_GOLDEN_TOKENS):
        logits, logsumexp = runner.last([row] * copies, [past] * copies)
        past += len(row)
        row = [int(logits[0].argmax())]
        tokens += row
        logprobs.append(float(logits[0, row[0]] - logsumexp[0]))
    return Golden(prompt_tokens=tuple(prompt), tokens=tuple(tokens), logprobs=tuple(logprobs))


def _scores_in_batch(runner: Runner, golden: Sequence[Golden]) -> list[list[float]]:
    """Return the logprobs of the golden tokens when all prompts run in one batch."""
    rows: list[list[int]] = [list(item.prompt_tokens) for item in golden]
    pasts = [0] * len(golden)
    scores: list[list[float]] = [[] for _ in golden]
    for step in range(_GOLDEN_TOKENS):
        logits, logsumexp = runner.last(rows, pasts)
        pasts = [past + len(row) for past, row in zip(pasts, rows, strict=True)]
        rows = [[item.tokens[step]] for item in golden]
        for index, (token,) in enumerate(rows):
            scores[index].append(float(logits[index, token] - logsumexp[index]))
    return scores


def _check_finite(manifest: Manifest, golden: Sequence[Golden]) -> None:
    for item in golden:
        if not np.isfinite(item.logprobs).all():
            raise VerificationError(
                "the exported graph gives logits that are no numbers; "
                f"the checkpoint's weights overflow {manifest.kv_dtype} or are damaged"
            )


def _check_isolation(
    manifest: Manifest, golden: Sequence[Golden], scores: Sequence[Sequence[float]]
) -> None:
    alone = np.array([item.logprobs for item in golden])
    difference = float(np.abs(alone - np.array(scores)).max())
    allowed = row_tolerance(manifest)
    if difference > allowed:
        raise VerificationError(
            f"a prompt's logprobs differ by {difference:.2g} between alone and in a batch, "
            f"at most {allowed:.2g} is allowed at {manifest.precision}"
        )
