"""``ortolan verify``: checks a bundle's digests and golden prompts, and that no row feels another.

Exit code 1 says that a check has failed.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ortolan_export.errors import ExportError
from ortolan_export.progress import Report, progress_bar

if TYPE_CHECKING:
    from ortolan_export.checking import Check

EXAMPLES = """\
  ortolan verify ./smollm2
  ortolan verify ./smollm2 --against ./smollm2-fp32
  ortolan verify ./smollm2 --against ./smollm2-fp32 --perplexity ./novel.txt
"""
_BUILT_IN = ""
_LEAST_AGREEMENT = 0.8
_MOST_PERPLEXITY = 1.2


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
        type=_share,
        metavar="SHARE",
        help=f"with --against: fail below this share of equal tokens (default: {_LEAST_AGREEMENT})",
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
        type=_ratio,
        metavar="RATIO",
        help="with --against and --perplexity: fail above this many times REFERENCE's "
        f"(default: {_MOST_PERPLEXITY})",
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the verdict of each check to stdout. Raises BundleError and ExportError's tree."""
    _refuse_idle(arguments)
    failed = 0
    with progress_bar() as report:
        for check in _checks(arguments, report):
            verdict = "ok" if check.has_passed else "FAILED"
            sys.stdout.write(f"{verdict:<7} {check.name}: {check.finding}\n")
            sys.stdout.flush()
            failed += not check.has_passed
    return 1 if failed else 0


def _share(text: str) -> float:
    share = float(text)
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"must be within 0..1, got {text}")
    return share


def _ratio(text: str) -> float:
    ratio = float(text)
    if not 0 < ratio < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number > 0, got {text}")
    return ratio


def _refuse_idle(arguments: argparse.Namespace) -> None:
    """Raise ExportError for a limit of what is not measured."""
    has_reference = arguments.against is not None
    if arguments.least_agreement is not None and not has_reference:
        raise ExportError("--least-agreement needs --against, a bundle to agree with")
    if arguments.most_perplexity is not None and (
        not has_reference or arguments.perplexity is None
    ):
        raise ExportError("--most-perplexity needs --against and --perplexity, a ratio of two")


def _checks(arguments: argparse.Namespace, report: Report) -> Iterator[Check]:
    from ortolan_export.agreement import check_agreement
    from ortolan_export.checking import check_bundle
    from ortolan_export.perplexity import check_perplexity

    text = Path(arguments.perplexity) if arguments.perplexity else None
    if text is not None and not text.is_file():  # the checks before it take a while
        raise ExportError(f"no text at {text}: --perplexity takes a file, or nothing")
    yield from check_bundle(arguments.bundle, report)
    if arguments.against is not None:
        least = _given(arguments.least_agreement, _LEAST_AGREEMENT)
        yield check_agreement(arguments.bundle, arguments.against, least)
    if arguments.perplexity is not None:
        most = _given(arguments.most_perplexity, _MOST_PERPLEXITY)
        yield check_perplexity(arguments.bundle, text, arguments.against, most, report)


def _given(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value
