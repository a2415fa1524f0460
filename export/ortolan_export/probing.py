"""Finds out by running it what a graph of another exporter's bears: company, padding, chunks.

Nothing in a graph says how it counts positions and distances, so every claim is measured: a cached
step must compute what the whole text at once does, a row must not feel another, and padding must
not be seen, however far it moves the cached tokens from the new one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortolan_export.errors import VerificationError
from ortolan_export.source import Float32
from ortolan_runtime.bundle import GRAPH_NAME, Manifest, Padding

_TOKENS = 24
_CHUNK = 7
# Root mean squares of differences, as shares of the logits' spread. Formats of 16 and 4 bits round
# a row among many otherwise than alone; what is wrong is off by the spread itself.
_ROUNDING = 0.05
_SAME = 1e-3
_FATAL_ONLY = 4
# The widest padding tried takes this much memory; windows of attention are mostly far narrower.
_PADDED_BYTES = 1 << 28


class Probe:
    """A graph in a bundle's ``folder``, run under any padding."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        from ortolan_runtime.providers import default_threads, open_session, session_options

        options = session_options(threads=default_threads(), spin=False)
        options.log_severity_level = _FATAL_ONLY  # a padding that cannot run is an answer
        self._session = open_session(str(folder / GRAPH_NAME), "cpu", options)
        self._manifest = manifest
        rng = np.random.default_rng(0)
        count = max(2, min(_TOKENS, manifest.context_length // 2))
        self._tokens = rng.integers(0, manifest.vocab_size, (2, count))
        self._next = rng.integers(0, manifest.vocab_size, 1)

    def padding(self, why_rows_meet: str | None) -> Padding:
        """Return what padding the graph bears. Raises VerificationError.

        ``why_rows_meet`` says what in the graph may let rows feel each other, for the message.
        """
        alone = self._after(self._tokens[0], "none")
        self._check_company(alone, why_rows_meet)
        self._check_cache(alone)
        paddings: tuple[Padding, ...] = ("right", "left")
        for padding in paddings:
            far = self._far_from_its_past(padding)
            if far is not None and _difference(far, alone) <= _SAME:
                return padding
        return "none"

    def _check_cache(self, alone: Float32) -> None:
        tokens = np.append(self._tokens[0], self._next)
        whole = self._layout("none").prefill(0, tokens, 0, np.array([len(tokens) - 1])).logits[0]
        layout = self._layout("none")
        for start in range(0, len(tokens), _CHUNK):
            chunk = tokens[start : start + _CHUNK]
            chunked = layout.prefill(0, chunk, start, np.array([len(chunk) - 1])).logits[0]
        for what, logits in (("a decode step", alone), ("a prompt in chunks", chunked)):
            difference = _difference(logits, whole)
            if not difference <= _ROUNDING:
                raise VerificationError(
                    f"{what} on top of the cache must give the logits of the whole text, but they "
                    f"differ by {100 * difference:.2g} % of their spread; "
                    "export the model again with a newer exporter, or by `ortolan export`"
                )

    def _check_company(self, alone: Float32, why: str | None) -> None:
        """Raise VerificationError when a row's logits depend on another row's tokens."""
        layout, count = self._layout("none"), self._tokens.shape[1]
        for row, tokens in enumerate(self._tokens):
            layout.prefill(row, tokens, 0, np.array([count - 1]))
        other = (self._next + 1) % self._manifest.vocab_size
        both = layout.decode(np.append(self._next, other), np.full(2, count, np.int32))
        difference = _difference(both.logits[0], alone)
        if not difference <= _SAME:
            reason = "" if why is None else f" ({why})"
            raise VerificationError(
                f"a row's logits must not depend on other rows, but differ by "
                f"{100 * difference:.2g} % of their spread in company{reason}; adopt the graph in "
                "another precision (--graph), or make int8 by `ortolan export`"
            )

    def _after(self, tokens: NDArray[np.int64], padding: Padding) -> Float32:
        """Return the logits after one more token than ``tokens``, decoded by itself."""
        layout, count = self._layout(padding), len(tokens)
        layout.prefill(0, tokens, 0, np.array([count - 1]))
        logits: Float32 = layout.decode(self._next, np.array([count], np.int32)).logits[0]
        return logits

    def _far_from_its_past(self, padding: Padding) -> Float32 | None:
        """Return the same logits beside a row so long that the padding is as wide as it gets.

        None where the graph cannot run so.
        """
        layout, count = self._layout(padding), self._tokens.shape[1]
        layout.prefill(0, self._tokens[0], 0, np.array([count - 1]))
        past = np.array([count, self._room - 1], np.int32)
        try:
            logits: Float32 = layout.decode(np.repeat(self._next, 2), past).logits[0]
        except Exception:  # onnxruntime's share no base; some graphs have no place that far away
            return None
        return logits

    @property
    def _room(self) -> int:
        bearable = _PADDED_BYTES // (2 * self._manifest.kv_bytes_per_token)
        return max(min(self._manifest.context_length, bearable), 2 * _TOKENS)

    def _layout(self, padding: Padding) -> Any:
        """Return the runtime's ConcatLayout with empty rows; relaxed, so that all share a width."""
        from ortolan_runtime.layouts.concat import ConcatLayout

        graph = self._manifest.masked_graph
        assert graph is not None, "only adopted graphs are probed"
        graph = msgspec.structs.replace(graph, padding=padding)
        manifest = msgspec.structs.replace(self._manifest, masked_graph=graph)
        return ConcatLayout(self._session, manifest, rows=2, length=self._room, relaxed=True)


def _difference(one: Float32, other: Float32) -> float:
    """Return the root mean square of the difference, as a share of the second one's spread."""
    return float(np.sqrt(np.square(one - other).mean()) / max(other.std(), 1e-9))
