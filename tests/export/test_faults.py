"""However an export ends, it leaves nothing half-written, and says in one line what went wrong."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from refusals import configure, refusal

from ortolan_runtime.bundle import new_folder, open_bundle
from ortolan_server.cli import main

_DYING_EXPORT = """
import os, signal, sys
from pathlib import Path
from ortolan_export.native import export
def report(stage, done, total):
    if stage == "writing weights" and done > total // 2:
        os.kill(os.getpid(), signal.SIGKILL)
export(Path(sys.argv[1]), Path(sys.argv[2]), report=report)
"""

_TERMINATED_EXPORT = """
import contextlib, os, signal, sys
from ortolan_export.commands import making
from ortolan_server.cli import main
def report(stage, done, total):
    if stage == sys.argv[3] and done >= total // 2:
        os.kill(os.getpid(), signal.SIGTERM)
making.progress_bar = lambda: contextlib.nullcontext(report)
sys.exit(main(["export", *sys.argv[1:3]]))
"""

_EXPORT_UNDER_NOHUP = """
import contextlib, os, signal, sys
from ortolan_export.commands import making
from ortolan_server.cli import main
signal.signal(signal.SIGHUP, signal.SIG_IGN)
def report(stage, done, total):
    os.kill(os.getpid(), signal.SIGHUP)
making.progress_bar = lambda: contextlib.nullcontext(report)
sys.exit(main(["export", *sys.argv[1:3]]))
"""

_EXPORT_IN_LITTLE_MEMORY = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
from ortolan_server.cli import main
sys.exit(main(["export", *sys.argv[1:]]))
"""

_EXPORT_ON_A_FULL_DISK = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
from ortolan_server.cli import main
sys.exit(main(["export", *sys.argv[1:]]))
"""


def test_a_missing_package_is_named(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    line = refusal(checkpoint, tmp_path / "out", capsys)
    assert "needs the package onnxruntime: pip install 'ortolan[export,cpu]'" in line


def test_a_folder_that_is_no_bundle_is_not_replaced(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work")
    assert "is no bundle" in refusal(checkpoint, tmp_path / "out", capsys)
    assert (tmp_path / "out" / "thesis.txt").read_text() == "years of work"


def test_an_unknown_option_ends_with_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["export", "source", "out", "--precision", "int3"])
    assert exit_info.value.code == 2
    told = capsys.readouterr().err
    assert "`ortolan export --help`" in told
    assert told.count("\n") == 1


def test_an_export_killed_midway_leaves_the_old_bundle_intact(
    checkpoint: Path, tmp_path: Path
) -> None:
    assert main(["export", str(checkpoint), str(tmp_path / "out")]) == 0
    before = open_bundle(tmp_path / "out", always_verify=True).manifest
    dying = subprocess.run(
        [sys.executable, "-c", _DYING_EXPORT, checkpoint, tmp_path / "out"], check=False
    )
    assert dying.returncode == -signal.SIGKILL
    assert open_bundle(tmp_path / "out", always_verify=True).manifest == before


def test_what_a_killed_export_left_goes_at_the_next(checkpoint: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", _DYING_EXPORT, checkpoint, tmp_path / "out"], check=False)
    (left,) = tmp_path.glob(".out.*")
    os.utime(left, (0, 0))
    assert main(["export", str(checkpoint), str(tmp_path / "out")]) == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model", "out"]


def test_what_another_export_is_writing_stays(checkpoint: Path, tmp_path: Path) -> None:
    with new_folder(tmp_path / "out") as written:
        os.utime(written, (0, 0))
        assert main(["export", str(checkpoint), str(tmp_path / "out")]) == 0
        assert written.is_dir()
        shutil.copytree(tmp_path / "out", written, dirs_exist_ok=True)
    open_bundle(tmp_path / "out", always_verify=True)


@pytest.mark.parametrize(
    "stage", ["measuring activations", "writing weights", "hashing the source"]
)
def test_a_terminated_export_leaves_the_old_bundle_and_nothing_else(
    stage: str, checkpoint: Path, tmp_path: Path
) -> None:
    assert main(["export", str(checkpoint), str(tmp_path / "out")]) == 0
    before = sorted(tmp_path.iterdir())
    stopped = subprocess.run(
        [sys.executable, "-c", _TERMINATED_EXPORT, checkpoint, tmp_path / "out", stage],
        check=False,
        capture_output=True,
        text=True,
    )
    assert stopped.returncode == 130
    assert stopped.stderr == "ortolan: interrupted; nothing was written\n"
    assert sorted(tmp_path.iterdir()) == before
    open_bundle(tmp_path / "out", always_verify=True)


def test_a_terminal_that_closes_ends_no_export_under_nohup(
    checkpoint: Path, tmp_path: Path
) -> None:
    subprocess.run(
        [sys.executable, "-c", _EXPORT_UNDER_NOHUP, checkpoint, tmp_path / "out"], check=True
    )
    open_bundle(tmp_path / "out", always_verify=True)


@pytest.mark.parametrize("name", ["", " ", "two\nlines"])
def test_a_name_that_cannot_be_shown_in_a_line_is_wrong_usage(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("export", "adopt"):
        with pytest.raises(SystemExit) as exit_info:
            main([command, "source", "out", "--name", name])
        assert exit_info.value.code == 2
        assert "--name: must be printable text in one line, got" in capsys.readouterr().err


def test_too_little_memory_is_told_in_one_line(checkpoint: Path, tmp_path: Path) -> None:
    # Rotary tables of this many positions take 64 GiB each.
    configure(checkpoint, max_position_embeddings=2**31 - 1)
    failed = subprocess.run(
        [sys.executable, "-c", _EXPORT_IN_LITTLE_MEMORY, checkpoint, tmp_path / "out"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert failed.returncode == 1
    assert re.fullmatch(
        r"ortolan: error: there is not enough memory: Unable to allocate .*\n", failed.stderr
    )
    assert sorted(tmp_path.iterdir()) == [checkpoint]


def test_a_full_disk_leaves_the_old_bundle_and_nothing_else(
    checkpoint: Path, tmp_path: Path
) -> None:
    assert main(["export", str(checkpoint), str(tmp_path / "out")]) == 0
    before = sorted(tmp_path.iterdir())
    failed = subprocess.run(
        [sys.executable, "-c", _EXPORT_ON_A_FULL_DISK, checkpoint, tmp_path / "out"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert failed.returncode == 1
    assert failed.stderr.startswith(f"ortolan: error: {tmp_path} has no room for out (")
    assert failed.stderr.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before
    open_bundle(tmp_path / "out", always_verify=True)
