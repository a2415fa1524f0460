"""The command ``ortolan``: finds the subcommand, runs it, and tells failures in one line.

Exit codes: 0 done; 1 refused or failed, after one line on stderr; 2 wrong usage; 70 the engine
died; 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from ortolan_runtime.errors import OrtolanError
from ortolan_runtime.version import __version__
from ortolan_server.commands.registry import COMMANDS, Command, find_command
from ortolan_server.terminal import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    fail,
    fill_closed_streams,
    interrupted_by,
    say,
)

_NEXT = """\
ortolan serves text completions from your own machine. To begin with:

  ortolan serve                      serve the default model on http://127.0.0.1:8000
  ortolan complete "Once upon a"     complete a text here
  ortolan export SOURCE OUT          make a bundle from a Hugging Face directory or a GGUF file
  ortolan serve OUT                  serve that bundle

Every command; `ortolan COMMAND --help` shows its options and examples:

"""
_EXIT_CODES = """\
exit codes:
  0    done
  1    refused or failed; one line on stderr says why
  2    wrong usage
  70   the engine's thread died while serving
  130  interrupted
"""


class _Parser(argparse.ArgumentParser):
    """A parser that tells wrong usage in one line, with the option that may have been meant."""

    def option_names(self) -> list[str]:
        """Return every spelling of every option."""
        return [name for action in self._actions for name in action.option_strings]

    def error(self, message: str) -> NoReturn:
        """Tell of wrong usage and end the process with 2."""
        link = "" if message.endswith("?") else ";"
        help_ = f"`{self.prog} --help` shows what there is"
        self.exit(2, f"ortolan: error: {message}{link} {help_}\n")

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse, and refuse here what is unknown: the command's own parser knows what is near."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            name = unknown[0].partition("=")[0]
            # An option behind ``--`` is a text like any other, and no other one is meant.
            others = [] if name in self.option_names() else self.option_names()
            self.error(f"there is no argument `{unknown[0]}` here{_meant(name, others)}")
        return found, unknown


def main(argv: Sequence[str]) -> int:
    """Run the command line ``argv`` and return the exit code."""
    fill_closed_streams()
    try:
        code = _run(argv)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Whoever read our output has enough; nothing more can be told there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except (OrtolanError, OSError) as exc:
        return fail(str(exc))
    except MemoryError as exc:
        return fail(": ".join(filter(None, ["there is not enough memory", str(exc)])))
    except KeyboardInterrupt as exc:
        return _interrupted(exc)
    except ImportError as exc:
        # Ctrl-C while ONNX Runtime's module is loaded, which makes it the cause of this.
        if isinstance(exc.__cause__, KeyboardInterrupt):
            return _interrupted(exc.__cause__)
        raise


def parser(*filled: Command) -> _Parser:
    """Return the parser of the command line; the commands ``filled`` have their options."""
    top = _Parser(
        prog="ortolan",
        description="Text completions on ONNX Runtime",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"ortolan {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        if command not in filled:
            commands.add_parser(command.name, help=command.summary, add_help=False)
            continue
        module = command.load()
        one = commands.add_parser(
            command.name,
            help=command.summary,
            description=f"{command.summary[0].upper()}{command.summary[1:]}.",
            epilog=f"examples:\n{module.EXAMPLES}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(one)
    return top


def _interrupted(interrupt: KeyboardInterrupt) -> int:
    say("; ".join(["interrupted", *map(str, interrupt.args)]))
    return EXIT_INTERRUPTED


def _run(argv: Sequence[str]) -> int:
    if not argv:
        sys.stdout.write(_NEXT + _list_of_commands())
        return 0
    command = find_command(argv[0])
    if command is None:
        return _run_none(argv)
    try:
        arguments = parser(command).parse_args(argv)
        with _endings(command):
            return command.load().run(arguments)
    except ModuleNotFoundError as exc:
        if not command.extra:
            raise
        return fail(
            f"{command.name} needs the package {exc.name}: pip install 'ortolan[{command.extra}]'"
        )


def _endings(command: Command) -> contextlib.AbstractContextManager[None]:
    """Return what lets a command undo what it has half done, however it is told to end."""
    if command.hears_signals:
        return contextlib.nullcontext()
    return interrupted_by(signal.SIGTERM, signal.SIGHUP)


def _run_none(argv: Sequence[str]) -> int:
    """Answer what names no command: --help, --version, or a mistake."""
    top = parser()
    names = [*top.option_names(), *(command.name for command in COMMANDS)]
    if argv[0] not in names:
        what = "option" if argv[0].startswith("-") else "command"
        top.error(f"there is no {what} `{argv[0]}`{_meant(argv[0], names)}")
    top.parse_args(argv)
    return 0


def _meant(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean `{near[0]}`?" if near else ""


def _list_of_commands() -> str:
    return "".join(f"  {command.name:<14}{command.summary}\n" for command in COMMANDS)
