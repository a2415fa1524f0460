"""Every command of ``ortolan``, as data; its module is imported when it is called.

A new command is one module and one entry here. The module has ``EXAMPLES``, lines that show its
use, ``add_arguments(parser)``, and ``run(arguments)``, which imports what is dear and returns the
exit code. Failures are raised: the command line makes one line of them.
"""

from __future__ import annotations

import argparse
import importlib
from typing import Protocol, cast

import msgspec


class CommandModule(Protocol):
    """What the module of a command has."""

    EXAMPLES: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add what the command takes."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command and return the exit code."""


class Command(msgspec.Struct, frozen=True):
    """One command: its name, what it does in a few words, and where its module is.

    ``extra`` names the extra of the package that brings what it needs; ``is_configurable`` that its
    options may come from the environment and a file, too; ``hears_signals`` that it ends in its own
    way when it is told to: SIGTERM and SIGHUP do to any other what Ctrl-C does.
    """

    name: str
    summary: str
    module: str
    extra: str = ""
    is_configurable: bool = False
    hears_signals: bool = False

    def load(self) -> CommandModule:
        """Import the command's module."""
        return cast(CommandModule, importlib.import_module(self.module))


COMMANDS = (
    Command(
        "serve",
        "serve bundles over HTTP",
        "ortolan_server.commands.serve",
        "cpu",
        is_configurable=True,
        hears_signals=True,
    ),
    Command("complete", "complete a text here", "ortolan_server.commands.complete", "cpu"),
    Command("batch", "answer a file of requests", "ortolan_server.commands.batch", "cpu"),
    Command(
        "engine-build",
        "build TensorRT's engines of a bundle ahead",
        "ortolan_server.commands.engine_build",
        "gpu",
    ),
    Command("bench", "measure a bundle here", "ortolan_server.commands.bench", "cpu"),
    Command(
        "export",
        "make a bundle from a model's weights",
        "ortolan_export.commands.export",
        "export,cpu",
    ),
    Command(
        "adopt",
        "make a bundle of an ONNX export that exists",
        "ortolan_export.commands.adopt",
        "export,cpu",
    ),
    Command("inspect", "show what a bundle is", "ortolan_export.commands.inspect", "export,cpu"),
    Command(
        "verify",
        "check that a bundle is what it was",
        "ortolan_export.commands.verify",
        "export,cpu",
    ),
    Command(
        "pack", "make an archive for a machine without a network", "ortolan_server.commands.pack"
    ),
    Command("keys", "add, list and revoke API keys", "ortolan_server.commands.keys"),
    Command(
        "config",
        "show what `serve` runs with, and where each value comes from",
        "ortolan_server.commands.config",
        "cpu",
    ),
    Command(
        "completion",
        "write a script that lets a shell complete all this",
        "ortolan_server.commands.completion",
        "cpu",
    ),
)


def configurable_commands() -> list[str]:
    """Return the commands whose options may stand in a file."""
    return [command.name for command in COMMANDS if command.is_configurable]


def find_command(name: str) -> Command | None:
    """Return the command of that name, if there is one."""
    return next((command for command in COMMANDS if command.name == name), None)
