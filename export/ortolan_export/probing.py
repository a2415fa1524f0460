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
from ortolan_export.running import FATAL_ONLY
from ortolan_export.source import Float32
from ortolan_runtime.bundle import GRAPH_NAME, WEIGHTS_NAME, KVLayout, Manifest, Padding

Tokens = NDArray[np.int64]

_TOKENS = 24
_CHUNK = 7
# Root mean squares of differences, as shares of the logits' spread. Formats of 16 and 4 bits round
# a row among many otherwise than alone; what is wrong is off by the spread itself.
_ROUNDING = 0.05
_SAME = 1e-3
# The widest padding tried takes this much memory, or as much as the weights.
_PADDED_BYTES = 1 << 28


class Probe:
    """A graph in a bundle's ``folder``, run in every layout and under any padding."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        from ortolan_runtime.providers import default_threads, open_session, session_options

        options = session_options(threads=default_threads(), spin=False)
        options.log_severity_level = FATAL_ONLY
        self._session = open_session(str(folder / GRAPH_NAME), "cpu", options)
        self._weight_bytes = (folder / WEIGHTS_NAME).stat().st_size
        rng = np.random.default_rng(0)
        count = max(2, min(_TOKENS, manifest.context_length // 2))
        self._manifest = manifest
        self._tokens = rng.integers(0, manifest.vocab_size, (2, count))
        self._next = rng.integers(0, manifest.vocab_size, 2)

    def settle(
        self, *, may_write_in_place: bool, may_have_windows: bool, why_rows_meet: str | None
    ) -> Manifest:
        """Return the manifest with the layout and the padding that the graph bears.

        Windows that the config tells of may be wider than what there is memory to try.
        ``why_rows_meet`` says what in the graph may let rows feel each other, for the message.
        Raises VerificationError.
        """
        if may_write_in_place:
            in_place = self._as(kv_layout="shared")
            try:
                alone = self._check(in_place, why_rows_meet)
            except Exception:  # onnxruntime's share no base; the other layout asks for less
                pass
            else:
                if self._is_the_same_far_from_its_past(in_place, alone):
                    return in_place
        alone = self._check(self._as(padding="none"), why_rows_meet)
        is_tried_to_the_end = self._room >= self._manifest.context_length
        paddings: list[Padding] = ["right", "left"]
        if may_have_windows and not is_tried_to_the_end:
            paddings.remove("right")
        for padding in paddings:
            if self._is_the_same_far_from_its_past(self._as(padding=padding), alone):
                return self._as(padding=padding)
        return self._as(padding="none")

    def _as(self, *, kv_layout: KVLayout = "concat", padding: Padding = "right") -> Manifest:
        graph = self._manifest.masked_graph
        assert graph is not None, "only adopted graphs are probed"
        graph = msgspec.structs.replace(graph, padding=padding)
        return msgspec.structs.replace(self._manifest, kv_layout=kv_layout, masked_graph=graph)

    def _check(self, manifest: Manifest, why_rows_meet: str | None) -> Float32:
        """Return the logits of two decode steps, after comparing them with other ways to them."""
        alone = self._decoded(manifest, self._tokens[:1])
        self._check_company(manifest, alone, why_rows_meet)
        self._check_cache(manifest, alone)
        return alone

    def _decoded(self, manifest: Manifest, prompts: Tokens, longest: int | None = None) -> Float32:
        """Return the first row's logits at each of two decode steps behind ``prompts``.

        The second step reads what the first has written. With ``longest`` the last row is taken for
        one of so many tokens.
        """
        layout, count = self._layout(manifest), prompts.shape[1]
        for row, tokens in enumerate(prompts):
            layout.prefill(row, tokens, 0, np.array([count - 1]))
        past = np.full(len(prompts), count, np.int32)
        past[-1] = longest or count
        # Other rows get other tokens.
        tokens = (self._next[:, None] + np.arange(len(prompts))) % manifest.vocab_size
        steps = [layout.decode(step, past + i).logits[0].copy() for i, step in enumerate(tokens)]
        return np.stack(steps)

    def _check_cache(self, manifest: Manifest, alone: Float32) -> None:
        """Raise VerificationError when a cached step is not what the whole text gives."""
        tokens = np.append(self._tokens[0], self._next)
        ends = np.arange(len(tokens) - 2, len(tokens))
        whole = self._layout(manifest).prefill(0, tokens, 0, ends).logits.copy()
        layout = self._layout(manifest)
        for start in range(0, len(tokens), _CHUNK):
            chunk = tokens[start : start + _CHUNK]
            chunked = layout.prefill(0, chunk, start, np.array([len(chunk) - 1])).logits
        for what, logits, wanted in (
            ("a decode step", alone, whole),
            ("a prompt in chunks", chunked, whole[1:]),
        ):
            difference = _difference(logits, wanted)
            if not difference <= _ROUNDING:
                raise VerificationError(
                    f"{what} on top of the cache must give the logits of the whole text, but they "
                    f"differ by {100 * difference:.2g} % of their spread; "
                    "export the model again with a newer exporter, or by `ortolan export`"
                )

    def _check_company(self, manifest: Manifest, alone: Float32, why: str | None) -> None:
        """Raise VerificationError when a row's logits depend on another row's tokens."""
        difference = _difference(self._decoded(manifest, self._tokens), alone)
        if not difference <= _SAME:
            reason = "" if why is None else f" ({why})"
            raise VerificationError(
                f"a row's logits must not depend on other rows, but differ by "
                f"{100 * difference:.2g} % of their spread in company{reason}; adopt the graph in "
                "another precision (--graph), or make int8 by `ortolan export`"
            )

    def _is_the_same_far_from_its_past(self, manifest: Manifest, alone: Float32) -> bool:
        """Return whether a row gives the same logits beside one as long as there is room for.

        Where rows are filled up, the padding is then as wide as it gets.
        """
        try:
            far = self._decoded(manifest, self._tokens, self._room - 2)
        except Exception:  # onnxruntime's share no base; some graphs have no place that far away
            return False
        return _difference(far, alone) <= _SAME

    @property
    def _room(self) -> int:
        two_rows_copied = 4 * self._manifest.kv_bytes_per_token
        bearable = max(_PADDED_BYTES, self._weight_bytes) // two_rows_copied
        return max(min(self._manifest.context_length, bearable), 2 * _TOKENS)

    def _layout(self, manifest: Manifest) -> Any:
        """Return one of the runtime's layouts with empty rows; relaxed: padded to one width."""
        from ortolan_runtime.layouts.concat import ConcatLayout
        from ortolan_runtime.layouts.shared import SharedLayout

        if manifest.kv_layout == "concat":
            return ConcatLayout(self._session, manifest, relaxed=True, rows=2, length=self._room)
        return SharedLayout(
            self._session, None, manifest, may_need_company=False, rows=2, length=self._room
        )


def _difference(one: Float32, other: Float32) -> float:
    """Return the root mean square of the difference, as a share of the second one's spread."""
    return float(np.sqrt(np.square(one - other).mean()) / max(other.std(), 1e-9))
