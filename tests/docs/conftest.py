"""A place where the commands of the docs are run: what they name lies there, at a tiny size.

- `./my-bundle`, `./llama`, `/srv/models` and `/srv/other-model` are bundles that talk nonsense;
  `./Llama-3.2-1B` is a checkpoint with random weights, `in.jsonl` a batch of one request.
- `http://127.0.0.1:8000` is a server of such a bundle under the default model's name, without keys;
  where a block has `$ADMIN_KEY`, it is one with keys.
- `ortolan serve` ends well as soon as it listens; `curl` fails on any status of 400 and above.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from blocks import ROOT, Block, RunBlock

from ortolan_server.keys import add_key
from scripted import write_babbling_bundle
from serving import Server, serving

_LIMIT_S = 120
_SHIMS = {
    "ortolan": f'exec "{sys.executable}" "{Path(__file__).with_name("ortolan_shim.py")}" "$@"',
    "python": f'exec "{sys.executable}" "$@"',
    "curl": f'exec "{shutil.which("curl")}" --silent --show-error --fail-with-body "$@"',
}


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a bundle of a few kilobytes with a context of 2,048."""
    folder = tmp_path_factory.mktemp("bundle") / "tiny"
    return write_babbling_bundle(folder, name="tiny", context_length=2048)


@pytest.fixture(scope="session")
def open_server(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Give a server without keys that calls its model as the docs do."""
    keys = str(tmp_path_factory.mktemp("no-keys") / "keys.json")
    with serving(bundle, model_name="SmolLM2-135M-Instruct", keys_file=keys) as server:
        yield server


@pytest.fixture(scope="session")
def locked_server(
    bundle: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, str]]:
    """Give a server with keys, and the secret of one of kind `admin`."""
    keys = tmp_path_factory.mktemp("keys") / "keys.json"
    _, secret = add_key(keys, "ops", kind="admin")
    with serving(bundle, model_name="small", keys_file=str(keys)) as server:
        yield server, secret


@pytest.fixture
def run_block(
    bundle: Path,
    make_checkpoint: Callable[..., Path],
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> RunBlock:
    """Give a function that runs a block as it is typed and returns what it printed."""
    place = _furnished(
        tmp_path / "place", bundle, make_checkpoint("llama", tie_word_embeddings=True)
    )

    def run(block: Block) -> str:
        server, key = request.getfixturevalue("open_server"), ""
        if "$ADMIN_KEY" in block.text:
            server, key = request.getfixturevalue("locked_server")
        text = _here(block.text, place, server)
        command = {"sh": ["bash", "-euo", "pipefail", "-c", text], "python": ["python", "-c", text]}
        done = subprocess.run(
            command[block.language],
            cwd=place,
            env=_environment(place, key),
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    return run


def _furnished(place: Path, bundle: Path, checkpoint: Path) -> Path:
    """Put what the docs name into a folder and return it."""
    for name in ("my-bundle", "llama", "srv/models/smollm2", "srv/models/llama", "srv/other-model"):
        shutil.copytree(bundle, place / name)
    _rename(place / "srv/models/llama")
    shutil.copytree(checkpoint, place / "Llama-3.2-1B")
    for folder in ("bin", ".venv/bin", ".venv-dev/bin"):
        (place / folder).mkdir(parents=True)
        for name, line in _SHIMS.items():
            shim = place / folder / name
            shim.write_text(f"#!/bin/sh\n{line}\n")
            shim.chmod(0o755)
    body = {"model": "tiny", "prompt": "x", "max_tokens": 2}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
    (place / "in.jsonl").write_text(json.dumps(line) + "\n")
    for name in ("deploy", "scripts"):
        (place / name).symlink_to(ROOT / name)
    return place


def _rename(bundle: Path) -> None:
    """Give a bundle another name than its copies have."""
    manifest = bundle / "bundle.json"
    manifest.write_text(manifest.read_text().replace('"tiny"', '"llama"'))


def _here(text: str, place: Path, server: Server) -> str:
    """Return a block's text with the names of this place for those of the docs."""
    first_key = "$(ortolan keys list | awk 'NR == 2 {print $1}')"
    names = {
        "http://127.0.0.1:8000": server.url,
        '"/srv/': f'"{place}/srv/',
        " /srv/": f" {place}/srv/",
        "=/srv/": f"={place}/srv/",
        "revoke 1f2e3d4c": f"revoke {first_key}",
    }
    for there, here in names.items():
        text = text.replace(there, here)
    return text


def _environment(place: Path, key: str) -> Mapping[str, str]:
    return {
        **os.environ,
        "HOME": str(place / "home"),
        "PATH": f"{place / 'bin'}:{os.environ['PATH']}",
        "ADMIN_KEY": key,
    }
