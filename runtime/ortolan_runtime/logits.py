"""What a step of the model gives: logits, and their log-sum-exp."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]  # [rows, vocab]
Row = npt.NDArray[np.float32]  # [vocab], one row of logits
LogSumExp = npt.NDArray[np.float32]  # [rows]
Ids = npt.NDArray[np.int64]
Lengths = npt.NDArray[np.int32]


@dataclass(slots=True, frozen=True)
class Output:
    """Logits of one step, float32 ``[positions, vocab]``, and their log-sum-exp ``[positions]``.

    Views of buffers that the next step overwrites.
    """

    logits: Logits
    logsumexp: LogSumExp


def row_logsumexp(logits: Logits) -> LogSumExp:
    """Return the log of the sum of the exponentials of each row of float32 ``[rows, vocab]``."""
    top = logits.max(axis=1, keepdims=True)
    mass = np.exp(logits - top).sum(axis=1, dtype=np.float64)
    result: LogSumExp = (top[:, 0] + np.log(mass)).astype(np.float32)
    return result
