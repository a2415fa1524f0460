"""Runs bundles on ONNX Runtime: from token ids to text, without torch and without HTTP."""
