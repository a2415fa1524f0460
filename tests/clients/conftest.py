"""Real client packages, each in an environment of its own, against one server with a key.

Environments are made once, with pip or npm, and kept in the cache. The programs are in
`programs/`; each exits with 0 when every assertion in it holds.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ortolan_runtime.bundle import cache_directory
from serving import Server, serving

PROGRAMS = Path(__file__).with_name("programs")
KEY = "sk-clients"

RunProgram = Callable[..., None]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this folder."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.clients)


@pytest.fixture(scope="session")
def server(glass_bundle: Path) -> Iterator[Server]:
    """Give a server of a small English model, behind a key."""
    headers = {"authorization": f"Bearer {KEY}"}
    with serving(glass_bundle, headers=headers, api_key=KEY) as running:
        yield running


@pytest.fixture(scope="session")
def tokenizer_folder(glass_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder from which transformers loads the model's tokenizer."""
    folder = tmp_path_factory.mktemp("tokenizer")
    shutil.copy(glass_bundle / "tokenizer.json", folder)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<eos>",
        "bos_token": "<bos>",
        "model_max_length": 128,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="session")
def environment(server: Server, tokenizer_folder: Path) -> dict[str, str]:
    """Give the environment variables that tell a program of the server."""
    return {
        **os.environ,
        "SERVER_URL": server.url,
        "BASE_URL": f"{server.url}/v1",
        "API_KEY": KEY,
        "MODEL": server.served,
        "TOKENIZER": str(tokenizer_folder),
        "DEPLOY": str(Path(__file__).parents[2] / "deploy"),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OTEL_SDK_DISABLED": "true",
    }


@pytest.fixture(scope="session")
def run_python(environment: dict[str, str]) -> RunProgram:
    """Give a function that runs a program of `programs/` beside some packages."""

    def run(program: str, *requirements: str, timeout_s: float = 300) -> None:
        python = _python_with(requirements)
        _run([str(python), "-W", "ignore", str(PROGRAMS / program)], environment, timeout_s)

    return run


@pytest.fixture(scope="session")
def run_node(environment: dict[str, str]) -> RunProgram:
    """Give a function that runs a program of `programs/` beside some npm packages."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")

    def run(program: str, *requirements: str, timeout_s: float = 300) -> None:
        folder = _folder("node", requirements)
        if not (folder / "made").exists():
            (folder / "package.json").write_text('{"private": true, "type": "module"}')
            command = ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error"]
            subprocess.run([*command, *requirements], cwd=folder, check=True, timeout=600)
            (folder / "made").touch()
        # An import looks for packages beside the program, so the program goes to the packages.
        copied = shutil.copy(PROGRAMS / program, folder / program)
        _run(["node", str(copied)], environment, timeout_s)

    return run


def _python_with(requirements: tuple[str, ...]) -> Path:
    """Return the interpreter of an environment with ``requirements``, made if there is none."""
    folder = _folder("python", requirements)
    python = folder / "bin" / "python"
    if not (folder / "made").exists():
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *requirements], check=True, timeout=1200)
        (folder / "made").touch()
    return python


def _folder(kind: str, requirements: tuple[str, ...]) -> Path:
    digest = hashlib.sha256(" ".join((sys.version, *requirements)).encode()).hexdigest()[:12]
    folder = cache_directory(os.environ) / "tests" / "clients" / f"{kind}-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _run(command: list[str], environment: dict[str, str], timeout_s: float) -> None:
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
