"""``ortolan completion``: writes what lets a shell complete commands and options."""

from __future__ import annotations

import argparse
import sys

from ortolan_server.cli import parser
from ortolan_server.commands.registry import COMMANDS
from ortolan_server.shell_completion import SHELLS, script

EXAMPLES = """\
  ortolan completion bash > ~/.local/share/bash-completion/completions/ortolan
  ortolan completion zsh > ~/.zfunc/_ortolan       # with ~/.zfunc in fpath, before compinit
  ortolan completion fish > ~/.config/fish/completions/ortolan.fish
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    parser.add_argument("shell", choices=tuple(SHELLS), metavar="SHELL", help=", ".join(SHELLS))


def run(arguments: argparse.Namespace) -> int:
    """Write the script to stdout."""
    sys.stdout.write(script(arguments.shell, parser(*COMMANDS)))
    return 0
