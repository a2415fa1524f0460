"""Validates deploy/k8s against Kubernetes' own schemas, which refuse fields that there are not."""

from __future__ import annotations

import os
from pathlib import Path

import kubernetes_validate
import yaml

# kustomization.yaml is kubectl's, and has no schema here.
found = [
    document
    for path in sorted(Path(os.environ["DEPLOY"], "k8s").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
    if document["kind"] != "Kustomization"
]
assert len(found) == 5
for version in ("1.30", kubernetes_validate.latest_version()):
    for document in found:
        kubernetes_validate.validate(document, version, strict=True)
