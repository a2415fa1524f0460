"""`ortolan pack`: an archive is made, and installed and served where there is no network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from ortolan_runtime.engine import Engine, EngineOptions
from ortolan_runtime.errors import InvalidParameter
from ortolan_server.cli import main
from ortolan_server.packing.archive import Entry, write_archive
from ortolan_server.packing.wheels import Target

SESSION = Path(__file__).with_name("offline_session.py")


def test_the_same_files_make_the_same_archive(tmp_path: Path) -> None:
    """Whenever they were written, in whatever order they are named."""
    (tmp_path / "one").write_text("1")
    (tmp_path / "two").write_text("2")
    entries = [Entry("b/two", tmp_path / "two", True), Entry("a", tmp_path / "one")]
    first = write_archive(tmp_path / "first.tar.gz", "root", entries)
    os.utime(tmp_path / "one", (1, 1))
    (tmp_path / "one").chmod(0o600)
    assert write_archive(tmp_path / "other.tar.gz", "root", entries[::-1]) == first
    with tarfile.open(tmp_path / "first.tar.gz") as archive:
        modes = {member.name: member.mode for member in archive.getmembers()}
    assert modes == {"root/SHA256SUMS": 0o644, "root/a": 0o644, "root/b/two": 0o755}


def test_an_archive_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_archive(tmp_path / "out.tar.gz", "root", [Entry("a", tmp_path / "missing")])
    assert list(tmp_path.iterdir()) == []


def test_the_tags_of_a_machine_begin_with_its_own_glibc() -> None:
    tags = Target(machine="aarch64", glibc="2.28", pythons=("3.11",)).platforms()
    assert tags[0] == "manylinux_2_28_aarch64"
    assert "manylinux_2_17_aarch64" in tags
    assert "manylinux2014_aarch64" in tags
    assert "manylinux_2_29_aarch64" not in tags


@pytest.mark.parametrize(
    "wrong", [{"glibc": "2.5"}, {"glibc": "new"}, {"pythons": ("3.9",)}, {"machine": "arm64"}]
)
def test_a_machine_that_cannot_serve_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter, match=next(iter(wrong)).rstrip("s")):
        Target(**{"machine": "x86_64", "glibc": "2.28", "pythons": ("3.11",), **wrong})


def test_an_archive_of_another_kind_is_refused(
    tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pack", str(tiny_bundle), str(tmp_path / "out.zip")]) == 1
    assert "must end with .tar.gz" in capsys.readouterr().err


@pytest.fixture(scope="module")
def session(unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Give what happened on a machine without a network."""
    namespace = (
        ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--net", "--map-root-user"]
    )
    if subprocess.run([*namespace, "true"], capture_output=True).returncode != 0:
        pytest.skip("network namespaces are not allowed here")
    prefix = tmp_path_factory.mktemp("host") / "ortolan"
    # The interpreter itself, not one of an environment: what is installed here must not help.
    python = str(Path(sys.executable).resolve())
    command = [*namespace, python, "-I", str(SESSION), str(unpacked), str(prefix)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return {**json.loads(done.stdout), "prefix": prefix}


@pytest.mark.clients
def test_an_archive_serves_where_there_is_no_network(
    session: dict[str, Any], glass_bundle: Path
) -> None:
    """With the same text as here."""
    (choice,) = session["answer"]["choices"]
    with Engine.open(glass_bundle, EngineOptions(threads=1)) as engine:
        assert choice["text"] == engine.complete("Once upon a time", max_tokens=8, temperature=0)
    assert session["code"] == 0
    assert str(session["prefix"] / "bundle") in session["said"]


@pytest.mark.clients
def test_systemd_is_told_of_the_start_and_of_the_end(session: dict[str, Any]) -> None:
    assert session["states"] == ["READY=1", "STOPPING=1"]


@pytest.mark.clients
def test_the_serving_host_has_nothing_of_the_exporter(session: dict[str, Any]) -> None:
    """Nor pip: it ran from its wheel."""
    assert {"ortolan", "onnxruntime", "numpy"} <= set(session["packages"])
    assert not {"torch", "transformers", "onnx_ir", "gguf", "pip"} & set(session["packages"])


@pytest.mark.clients
def test_an_installed_program_makes_the_wheel_that_it_came_from(
    session: dict[str, Any], unpacked: Path
) -> None:
    """So that an archive can be made on any host that serves."""
    (original,) = unpacked.glob("wheels/ortolan-*.whl")
    with zipfile.ZipFile(original) as one, zipfile.ZipFile(session["wheel"]) as other:
        names = {name for name in one.namelist() if not name.endswith("RECORD")}
        assert names == {name for name in other.namelist() if not name.endswith("RECORD")}
        for name in names:
            assert one.read(name) == other.read(name), name


@pytest.mark.clients
def test_a_damaged_archive_is_not_installed(unpacked: Path, tmp_path: Path) -> None:
    (tokenizer,) = unpacked.glob("bundle/tokenizer.json")
    kept = tokenizer.read_bytes()
    tokenizer.write_bytes(kept[:-1] + b" ")
    try:
        command = [str(unpacked / "install"), str(tmp_path / "prefix")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    finally:
        tokenizer.write_bytes(kept)
    assert done.returncode == 1
    assert "bundle/tokenizer.json: FAILED" in done.stderr
    assert "install: error: a file is not what was packed" in done.stderr
    assert not (tmp_path / "prefix").exists()


@pytest.mark.clients
def test_another_python_is_refused_by_the_installer(unpacked: Path, tmp_path: Path) -> None:
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho 3.9\n")
    other.chmod(0o755)
    done = subprocess.run(
        [str(unpacked / "install"), str(tmp_path / "prefix")],
        env={**os.environ, "PYTHON": str(other)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f"this archive is for Python {here}, {other} is 3.9" in done.stderr
