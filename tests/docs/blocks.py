"""The commands in README.md and docs/: which a test runs, and why it cannot run the others."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMANDS = ("sh", "python")
OTHERS = ("", "json", "toml", "ini", "yaml", "nginx", "text")

_FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)

# Page and the block's first line: why it is not run, and what checks it instead.
NOT_RUN = {
    "README.md: python3 -m venv .venv && .venv/bin/pip install '.[cpu,export]' && "
    ".venv/bin/ortolan serve": "fetches 93 MB and takes port 8000; .ci/run runs it from nothing",
    "README.md: python3 -m venv .venv-dev && .venv-dev/bin/pip install -e '.[cpu,export,dev]' && "
    ".venv-dev/bin/pytest": "it is what runs this test; .ci/run runs it from nothing",
    "docs/quickstart.md: python3 -m venv .venv": "the README's command in two lines",
    "docs/quickstart.md: .venv/bin/ortolan serve": "the README's command without its beginning",
    "docs/deployment.md: python3 -m venv /opt/ortolan && /opt/ortolan/bin/pip install "
    "'.[cpu]'": "needs root and systemd; tests/deployment/test_systemd.py checks the unit",
    "docs/deployment.md: ortolan pack ./my-bundle my-model.tar.gz --python 3.11": "fetches 30 "
    "wheels; tests/deployment/test_pack.py packs",
    "docs/deployment.md: tar xf my-model.tar.gz": "needs root for /opt; "
    "tests/deployment/test_pack.py installs and serves without a network",
    "docs/deployment.md: ortolan pack ./my-bundle my-model.tar.gz --python 3.13": "needs podman "
    "and root; tests/deployment/test_container.py builds and runs the image",
    "docs/deployment.md: kubectl create secret generic ortolan-keys --from-file=keys.json": "needs "
    "a cluster; tests/deployment/test_kubernetes.py and tests/clients hold the manifests",
    "docs/scaling.md: sed 's|--offline|--offline --port %i|; s|usage.jsonl|usage-%i.jsonl|' "
    "deploy/ortolan.service > /etc/systemd/system/ortolan@.service": "needs root and systemd; "
    "tests/deployment/test_systemd.py runs its first line and checks what it makes",
    "docs/scaling.md: pip install '.[cpu,ray]'": "installs Ray and serves for ever; "
    "tests/deployment/test_ray.py runs a cluster where Ray is installed",
    "docs/batch.md: pip install '.[cpu,ray]'": "installs Ray; "
    "tests/deployment/test_ray_batch.py runs the command where Ray is installed",
    "docs/gpu.md: ortolan export ./Llama-3.2-1B ./llama --for tensorrt --context-length 4096": ""
    "needs a GPU with TensorRT; tests/export/test_targets.py makes such bundles without one",
    "docs/performance.md: # llama.cpp, from the source package on PyPI; needs a C++ compiler; "
    "a quarter of an hour or more on 2 cores": "builds other programs for a quarter of an hour",
    "docs/performance.md: .venv-dev/bin/python scripts/bench_peers --llama llama/bin "
    "--genai-python genai/bin/python --rounds 0": "needs what the block before it builds; "
    "tests/project/test_bench_scripts.py tests the script",
    "docs/performance.md: .venv-dev/bin/python scripts/bench_sampling --bundle "
    ".cache/bench-peers/ortolan-int8": "needs a model of 4 GB; tests/project/test_bench_scripts.py "
    "runs the script without it",
    "docs/performance.md: .venv-dev/bin/python scripts/bench_speculation ./my-bundle": "takes "
    "minutes with a model that writes English, and says nothing with another",
}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    language: str
    text: str

    @property
    def name(self) -> str:
        """Return what it is known by: its page and its first line."""
        first = self.text.strip().partition("\n")[0].removesuffix("\\").strip()
        return f"{self.page}: {first}"


RunBlock = Callable[[Block], str]


def blocks() -> list[Block]:
    """Return every fenced block of README.md and docs/."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [
        Block(str(page.relative_to(ROOT)), language, text)
        for page in pages
        for language, text in _FENCE.findall(page.read_text(encoding="utf-8"))
    ]


def commands() -> list[Block]:
    """Return the blocks that are typed."""
    return [block for block in blocks() if block.language in COMMANDS]
