"""``ortolan verify``: checks a bundle's digests and golden prompts, and that no row feels another.

Exit code 1 says that a check has failed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ortolan_export.progress import Report, progress_bar

if TYPE_CHECKING:
    from ortolan_export.checking import Check

EXAMPLES = """\
  ortolan verify ./smollm2
  ortolan verify ./smollm2 --against ./smollm2-fp32
  ortolan verify ./smollm2 --against ./smollm2-fp32 --perplexity ./novel.txt
"""
_BUILT_IN = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    add = parser.add_argument
    add("bundle", type=Path, metavar="BUNDLE", help="the bundle's folder")
    add(
        "--against",
        type=Path,
        metavar="REFERENCE",
        help="a bundle of the same model, such as its fp32 one, to compare greedy tokens with",
    )
    add(
        "--least-agreement",
        type=float,
        metavar="SHARE",
        default=0.8,
        help="fail below this share of equal tokens (default: %(default)s)",
    )
    add(
        "--perplexity",
        nargs="?",
        const=_BUILT_IN,
        metavar="TEXT",
        help="how well a text is predicted: that of a file, by default a short one of many kinds",
    )
    add(
        "--most-perplexity",
        type=float,
        metavar="RATIO",
        default=1.2,
        help="fail above this many times REFERENCE's perplexity (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the verdict of each check to stdout. Raises BundleError and VerificationError."""
    failed = 0
    with progress_bar() as report:
        for check in _checks(arguments, report):
            verdict = "ok" if check.has_passed else "FAILED"
            sys.stdout.write(f"{verdict:<7} {check.name}: {check.finding}\n")
            sys.stdout.flush()
            failed += not check.has_passed
    return 1 if failed else 0


def _checks(arguments: argparse.Namespace, report: Report) -> Iterator[Check]:
    from ortolan_export.agreement import check_agreement
    from ortolan_export.checking import check_bundle
    from ortolan_export.perplexity import check_perplexity

    yield from check_bundle(arguments.bundle, report)
    if arguments.against is not None:
        yield check_agreement(arguments.bundle, arguments.against, arguments.least_agreement)
    if arguments.perplexity is not None:
        text = None if arguments.perplexity == _BUILT_IN else Path(arguments.perplexity)
        yield check_perplexity(
            arguments.bundle, text, arguments.against, arguments.most_perplexity, report
        )
