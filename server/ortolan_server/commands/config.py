"""``ortolan config``: prints what ``ortolan serve`` would run with, and each value's source."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping

from ortolan_server.commands import serve
from ortolan_server.configuration import Configurable, Setting

EXAMPLES = """\
  ortolan config
  ortolan config --slots 32 --config ./ortolan.toml
  ORTOLAN_PORT=9000 ortolan config > ./ortolan.toml
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `ortolan serve` takes."""
    serve.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write a file of options that says the same, with each one's source."""
    configurable: Configurable = arguments.configurable
    settings = configurable.settings(arguments, os.environ)
    sys.stdout.write(as_toml(settings, os.environ))
    return 0


def as_toml(settings: Mapping[str, Setting], environment: Mapping[str, str]) -> str:
    """Return the settings as a table; what has no value is a comment. No secret is shown."""
    lines = [_line(setting) for setting in settings.values()]
    width = max(len(text) for text, _ in lines)
    rows = [f"{text:<{min(width, 48)}}  # {source}" for text, source in lines]
    if environment.get("ORTOLAN_API_KEY"):
        rows.append("# ORTOLAN_API_KEY is set")
    return "\n".join(["[serve]", *rows, ""])


def _line(setting: Setting) -> tuple[str, str]:
    if setting.said is None or setting.said == []:
        return f"# {setting.key}", f"{setting.source}: none"
    return f"{setting.key} = {_toml(setting.said)}", setting.source


def _toml(value: object) -> str:
    """Return a value as TOML writes it; JSON's strings, lists, numbers and booleans are its own."""
    if isinstance(value, bool | int | float | str):
        return json.dumps(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml(item) for item in value)}]"
    return json.dumps(str(value))
