"""Holds README.md, CHANGELOG.md and the scripts to what the program says and does."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ortolan_runtime.version import __version__
from ortolan_server.cli import main
from ortolan_server.commands.registry import COMMANDS

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def command_under(heading: str) -> str:
    """Return the command that CI takes from under ``heading``."""
    script = [sys.executable, ROOT / "scripts" / "readme_command", heading]
    return subprocess.run(script, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("heading", ["Serve", "Test"])
def test_each_of_the_two_commands_is_one_line(heading: str) -> None:
    assert command_under(heading).count("\n") == 1


def test_the_command_to_serve_installs_no_torch() -> None:
    assert "dev" not in command_under("Serve")


def test_a_heading_without_a_command_is_an_error() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        command_under("Licence")


def test_every_ortolan_command_in_the_readme_is_one_that_the_program_knows() -> None:
    used = set(re.findall(r"(?:bin/|`)ortolan ([a-z]+)", README))
    known = {command.name for command in COMMANDS}
    assert {"serve", "export", "complete"} <= used <= known


def test_options_in_the_readme_are_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line for line in README.splitlines() if "bin/ortolan " in line and "&&" not in line]
    assert lines
    for line in lines:
        words = shlex.split(line.strip().strip("|`").split("`")[0])
        if not words or not words[0].endswith("ortolan"):
            continue
        with pytest.raises(SystemExit):
            main([words[1], "--help"])
        described = capsys.readouterr().out
        for word in words:
            assert not word.startswith("--") or word in described


def test_the_changelog_begins_with_this_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    first = re.search(r"^## \[(.+?)\]", changelog, re.MULTILINE)
    assert first is not None
    assert first[1] == __version__


@pytest.mark.parametrize(("name", "limit"), [("ARCHITECTURE.md", 150), ("CONTRIBUTING.md", 80)])
def test_a_document_stays_short(name: str, limit: int) -> None:
    assert len((ROOT / name).read_text(encoding="utf-8").splitlines()) <= limit


def test_every_module_that_the_architecture_names_exists() -> None:
    document = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    part = ""
    for line in document.splitlines():
        if line.startswith("## "):
            part = line[3:]
        if part in ("export", "runtime", "server") and line.startswith("| `"):
            for name in re.findall(r"`(\w+)/?`", line.split("|")[1]):
                folder = ROOT / part / f"ortolan_{part}"
                assert (folder / f"{name}.py").exists() or (folder / name).is_dir(), name
