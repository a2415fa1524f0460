"""The image of deploy/Containerfile: built without a network, and run without any rights."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ortolan_runtime.engine import Engine, EngineOptions
from ortolan_server.cli import parser
from ortolan_server.commands.registry import find_command
from serving import wait_until

FILE = Path(__file__).parents[2] / "deploy" / "Containerfile"
TEXT = FILE.read_text(encoding="utf-8")
KEY = "sk-container"
PROGRAM = Path(__file__).with_name("in_container.py").read_text(encoding="utf-8")


def instructions(name: str) -> list[list[str]]:
    """Return the JSON form of each instruction of that name."""
    return [json.loads(found) for found in re.findall(rf"^ *{name} (\[.*\])$", TEXT, re.MULTILINE)]


def test_the_image_starts_with_options_that_exist() -> None:
    assert instructions("ENTRYPOINT") == [["ortolan"]]
    command = find_command("serve")
    assert command is not None
    parser(command).parse_args(instructions("CMD")[-1])


def test_the_image_is_of_nobody_and_looks_after_itself() -> None:
    """By number, so that Kubernetes can tell that it is not root."""
    assert re.findall(r"^USER (\d+):\d+$", TEXT, re.MULTILINE) == ["10001"]
    assert "HEALTHCHECK" in TEXT
    assert not re.search(r"\b(pip|apt-get|curl)\b", re.sub(r"^#.*$", "", TEXT, flags=re.MULTILINE))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Give the options that keep images apart from those of the machine."""
    for program in ("buildah", "podman", "runc"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    folder = tmp_path_factory.mktemp("images")
    return ["--root", f"{folder}/root", "--runroot", f"{folder}/run", "--storage-driver", "vfs"]


@pytest.fixture(scope="module")
def image(debian: Path, unpacked: Path, store: list[str]) -> str:
    """Give the image, whose base is a Debian with Python in place of Docker's."""
    base = run("buildah", *store, "from", "scratch")
    run("buildah", *store, "add", "--quiet", base, str(debian), "/")
    run("buildah", *store, "commit", "--quiet", base, "localhost/base")
    build = ["unshare", "--net", "buildah", *store, "bud", "--isolation", "chroot"]
    build += ["--format", "docker", "--build-arg", "BASE=localhost/base", "--file", str(FILE)]
    run(*build, "--tag", "localhost/ortolan", str(unpacked))
    return "localhost/ortolan"


@pytest.mark.slow
def test_a_container_serves_with_a_root_that_nobody_can_change(
    image: str, store: list[str], glass_bundle: Path
) -> None:
    """With no capabilities, no network and no user of its own, and it drains when it is told to."""
    podman = ["podman", *store, "--cgroup-manager=cgroupfs", "--events-backend=file"]
    podman += ["--runtime=runc"]
    with container(podman, image):
        probe, _ = instructions("CMD")  # the first is that of HEALTHCHECK
        wait_until(lambda: succeeds(*podman, "exec", "c", *probe), timeout_s=60)
        seen = json.loads(run(*podman, "exec", "c", "python", "-c", PROGRAM))
        run(*podman, "stop", "--time=30", "c")
        assert run(*podman, "inspect", "--format={{.State.ExitCode}}", "c") == "0"
    with Engine.open(glass_bundle, EngineOptions(threads=1)) as engine:
        expected = engine.complete("Once upon a time", max_tokens=8, temperature=0)
    assert seen == {"uid": 10001, "text": expected, "can_write": False, "too_much": []}


@contextlib.contextmanager
def container(podman: list[str], image: str) -> Iterator[None]:
    """Run ``image`` as the container ``c``."""
    options = ["--read-only", "--tmpfs=/tmp", "--cap-drop=all", "--network=none"]
    options += ["--security-opt=no-new-privileges", f"--env=ORTOLAN_API_KEY={KEY}"]
    # Podman's timers for HEALTHCHECK are systemd's; here the check is run by hand.
    options += ["--ulimit=nofile=4096:4096", "--ulimit=nproc=1000:1000", "--no-healthcheck"]
    run(*podman, "run", "--detach", "--name=c", *options, image)
    try:
        yield
    finally:
        subprocess.run([*podman, "rm", "--force", "--time=0", "c"], capture_output=True)


def run(*command: str) -> str:
    """Run a program and return what it prints."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def succeeds(*command: str) -> bool:
    """Return whether a program ends with 0."""
    return subprocess.run(command, capture_output=True, timeout=60).returncode == 0
