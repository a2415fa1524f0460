"""How the exporter's checks run a bundle; adopted graphs as the server does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ortolan_export.errors import VerificationError
from ortolan_export.source import Float32
from ortolan_runtime.bundle import Bundle, Manifest

# The log level of sessions: what fails is told by an exception, or is an answer.
FATAL_ONLY = 4


@contextmanager
def translated_errors() -> Iterator[None]:
    """Raise VerificationError in the place of whatever onnxruntime raises."""
    import onnxruntime

    from ortolan_runtime.model import first_line, ort_errors

    try:
        yield
    except ort_errors() as exc:
        raise VerificationError(
            f"onnxruntime {onnxruntime.__version__} cannot run the graph ({first_line(exc)}); "
            "a newer onnxruntime may know it"
        ) from exc


class Runner(ABC):
    """Runs steps of a bundle's graph, whatever inputs that has."""

    @abstractmethod
    def run(
        self, rows: Sequence[Sequence[int]], pasts: Sequence[int], positions: Sequence[int]
    ) -> tuple[Float32, Float32]:
        """Run one step; return logits ``[R, vocab]`` at ``positions`` and their log-sum-exp."""

    def last(self, rows: Sequence[Sequence[int]], pasts: Sequence[int]) -> tuple[Float32, Float32]:
        """Run one step; return the logits after each row's last token, and their log-sum-exp."""
        width = max(len(row) for row in rows)
        return self.run(rows, pasts, [i * width + len(row) - 1 for i, row in enumerate(rows)])


class ModelRunner(Runner):
    """The runtime's own model over the bundle in a folder, with ``rows`` rows of ``length`` tokens.

    What no row has written holds values that are no numbers: no row may read it.
    """

    def __init__(self, folder: Path, manifest: Manifest, *, rows: int, length: int) -> None:
        from ortolan_runtime.kvbuffers import KVBuffers
        from ortolan_runtime.model import Model
        from ortolan_runtime.providers import default_threads

        bundle = Bundle(folder, manifest)
        self._model = Model(bundle, rows=rows, length=length, threads=default_threads())
        buffers = self._model.buffers
        assert isinstance(buffers, KVBuffers), "adopted graphs run on the CPU"
        for array in buffers.arrays:
            array[:] = np.nan

    def run(
        self, rows: Sequence[Sequence[int]], pasts: Sequence[int], positions: Sequence[int]
    ) -> tuple[Float32, Float32]:
        """Run one step; return logits ``[R, vocab]`` and their log-sum-exp ``[R]``.

        ``rows`` are the new tokens of each sequence, ``pasts`` how many tokens each has cached;
        ``positions`` the wanted ones in rising order, flat over rows of equal length. One token a
        row is a decode step, more are a prefill of each row.
        """
        with translated_errors():
            return self._run(rows, pasts, positions)

    def _run(
        self, rows: Sequence[Sequence[int]], pasts: Sequence[int], positions: Sequence[int]
    ) -> tuple[Float32, Float32]:
        width = max(len(row) for row in rows)
        if width == 1:
            tokens = np.array([row[0] for row in rows], np.int64)
            output = self._model.decode(tokens, np.array(pasts, np.int32))
            return output.logits[positions].copy(), output.logsumexp[positions].copy()
        parts = []
        for index, row in enumerate(rows):
            own = [p - index * width for p in positions if p // width == index]
            wanted = np.array(own or [0], np.int64)
            output = self._model.prefill(index, np.array(row, np.int64), pasts[index], wanted)
            parts.append((output.logits[: len(own)].copy(), output.logsumexp[: len(own)].copy()))
        logits, logsumexp = zip(*parts, strict=True)
        return np.concatenate(logits), np.concatenate(logsumexp)
