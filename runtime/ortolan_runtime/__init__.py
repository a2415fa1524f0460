"""Runs bundles on ONNX Runtime: from token ids to text, without torch and without HTTP."""

import os

# onnxruntime 1.32 keeps an identifier of the machine and sends events of its use to its makers,
# unless it is told otherwise before it is loaded (its Privacy.md). Nothing comes before this line.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
