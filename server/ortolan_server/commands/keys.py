"""``ortolan keys``: adds, lists and revokes API keys."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from pathlib import Path

from ortolan_server.keys import (
    Key,
    KeyLimits,
    add_key,
    default_key_file,
    read_keys,
    revoke_key,
)

EXAMPLES = """\
  ortolan keys add laptop
  ortolan keys add ci --expires 30d --requests-per-minute 60 --concurrency 4
  ortolan keys list
  ortolan keys revoke 1f2e3d4c
"""
_SPAN = re.compile(r"(\d+)([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the commands below ``keys``."""
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_add(commands.add_parser("add", help="make a key and print its secret"))
    listing = commands.add_parser("list", help="show every key, without its secret")
    listing.set_defaults(run_keys=_list)
    revoking = commands.add_parser("revoke", help="make a key useless")
    revoking.add_argument("id", metavar="ID", help="as `ortolan keys list` shows it")
    revoking.set_defaults(run_keys=_revoke)
    for command in commands.choices.values():
        command.epilog = parser.epilog
        command.formatter_class = parser.formatter_class
        command.add_argument(
            "--file",
            type=Path,
            default=default_key_file(os.environ),
            help="the file of keys (default: %(default)s)",
        )


def run(arguments: argparse.Namespace) -> int:
    """Run the command below ``keys``. Raises KeyFileError and InvalidParameter."""
    code: int = arguments.run_keys(arguments)
    return code


def parse_span(text: str) -> int:
    """Return the seconds of a span such as ``30d`` or ``12h``."""
    match = _SPAN.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"must be a span such as 12h, 30d or 4w, got {text!r}")
    return int(match[1]) * _SECONDS[match[2]]


def _add(arguments: argparse.Namespace) -> int:
    limits = KeyLimits(
        requests_per_minute=arguments.requests_per_minute,
        tokens_per_minute=arguments.tokens_per_minute,
        concurrency=arguments.concurrency,
        models=tuple(arguments.models),
    )
    expires = None if arguments.expires is None else time.time() + arguments.expires
    key, secret = add_key(
        arguments.file, arguments.name, kind=arguments.kind, expires=expires, limits=limits
    )
    sys.stderr.write(f"key {key.id} ({key.name}); this is shown once:\n")
    sys.stdout.write(f"{secret}\n")
    return 0


def _list(arguments: argparse.Namespace) -> int:
    now = time.time()
    for key in read_keys(arguments.file):
        sys.stdout.write(f"{_line(key, now)}\n")
    return 0


def _revoke(arguments: argparse.Namespace) -> int:
    key = revoke_key(arguments.file, arguments.id)
    sys.stderr.write(f"revoked key {key.id} ({key.name})\n")
    return 0


def _line(key: Key, now: float) -> str:
    state = "revoked" if key.is_revoked else "good" if key.is_good(now) else "expired"
    until = "never" if key.expires is None else time.strftime("%F", time.gmtime(key.expires))
    limits = [
        f"{name}={value}"
        for name, value in (
            ("requests/min", key.limits.requests_per_minute),
            ("tokens/min", key.limits.tokens_per_minute),
            ("concurrency", key.limits.concurrency),
            ("models", ",".join(key.limits.models)),
        )
        if value
    ]
    made = time.strftime("%F", time.gmtime(key.created))
    fields = [key.id, f"{key.kind:<6}", f"{state:<7}", f"made {made}", f"expires {until}"]
    return "  ".join([*fields, key.name, *limits])


def _add_add(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("name", metavar="NAME", help="whose it is, for the list")
    add(
        "--kind",
        choices=("api", "access", "admin"),
        default="api",
        help="`access` keys do not open Second, only `admin` keys open /admin (default: api)",
    )
    add("--expires", type=parse_span, metavar="SPAN", help="as 12h or 30d (default: never)")
    add("--requests-per-minute", type=int, metavar="N", help="completions (default: no limit)")
    add("--tokens-per-minute", type=int, metavar="N", help="in and out (default: no limit)")
    add("--concurrency", type=int, metavar="N", help="completions at once (default: no limit)")
    add("--model", dest="models", action="append", default=[], help="one that it may use; repeats")
    parser.set_defaults(run_keys=_add)
