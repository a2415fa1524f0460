"""What the shells make of the scripts: each shell that is here is asked, as by the tab key."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ortolan_server.cli import parser
from ortolan_server.commands.registry import COMMANDS
from ortolan_server.shell_completion import SHELLS, script

# Words typed so far, the last of them to be completed; what must be offered; what must not.
CASES = [
    (["se"], "serve", "bench"),
    (["serve", "--queue"], "--queue-limit", "--port"),
    (["serve", "--device", "c"], "cuda", "tensorrt"),
    (["keys", "re"], "revoke", "add"),
    (["keys", "add", "--to"], "--tokens-per-minute", "--kind"),
    (["completion", "z"], "zsh", "bash"),
]
_BASH = """
source "$1"; shift
COMP_WORDS=(ortolan "$@"); COMP_CWORD=$#
_ortolan
printf '%s\\n' "${COMPREPLY[@]}"
"""
_ZSH = """
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PROMPT=; autoload -U compinit; compinit -D -u; source $1; bindkey '^I' list-choices"
zpty -w shell "print READ""Y"
zpty -r shell seen '*READY*'
zpty -w -n shell "$2"$'\\t'
for i in {1..40}; do
    sleep 0.1
    zpty -r -t shell seen && print -r -- "$seen"
done
zpty -d shell
"""


def needs(shell: str) -> str:
    """Return the shell's path; skip where it is not installed."""
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed")
    return path


@pytest.fixture
def written(tmp_path: Path) -> dict[str, Path]:
    """Give each shell's script in a file."""
    files = {}
    for shell in SHELLS:
        files[shell] = tmp_path / shell
        files[shell].write_text(script(shell, parser(*COMMANDS)))
    return files


@pytest.mark.parametrize(("words", "offered", "hidden"), CASES)
def test_bash_offers_what_fits(
    words: list[str], offered: str, hidden: str, written: dict[str, Path], tmp_path: Path
) -> None:
    command = [needs("bash"), "-c", _BASH, "bash", str(written["bash"]), *words]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    found = run.stdout.split()
    assert offered in found
    assert hidden not in found


def test_bash_offers_files_where_a_command_takes_one(
    written: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "bundle").mkdir()
    command = [needs("bash"), "-c", _BASH, "bash", str(written["bash"]), "serve", "bun"]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert run.stdout.split() == ["bundle"]


@pytest.mark.parametrize(("words", "offered", "hidden"), CASES)
def test_fish_offers_what_fits(
    words: list[str], offered: str, hidden: str, written: dict[str, Path], tmp_path: Path
) -> None:
    line = f'source {written["fish"]}; complete -C "ortolan {" ".join(words)}"'
    command = [needs("fish"), "--no-config", "-c", line]
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    found = [row.split("\t")[0] for row in run.stdout.splitlines()]
    assert offered in found
    assert hidden not in found


@pytest.mark.slow
@pytest.mark.parametrize(("words", "offered", "hidden"), CASES)
def test_zsh_offers_what_fits(
    words: list[str], offered: str, hidden: str, written: dict[str, Path]
) -> None:
    """In a terminal of its own, since zsh completes nowhere else."""
    line = f"ortolan {' '.join(words)}"
    command = [needs("zsh"), "-f", "-c", _ZSH, "zsh", str(written["zsh"]), line]
    seen = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout
    assert offered in seen
    assert hidden not in seen


def test_zsh_reads_the_script(written: dict[str, Path]) -> None:
    subprocess.run([needs("zsh"), "-n", str(written["zsh"])], check=True)
