"""The commands ``ortolan export``, ``ortolan inspect`` and ``ortolan verify``."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ortolan_export.progress import progress_bar
from ortolan_export.source import PRECISIONS, Report
from ortolan_runtime.bundle import Manifest
from ortolan_runtime.errors import OrtolanError

if TYPE_CHECKING:
    from ortolan_export.checking import Check

_EPILOG = """\
examples:
  ortolan export ./SmolLM2-135M-Instruct ./smollm2
  ortolan export ./model.Q4_1.gguf ./smollm2 --precision fp32
  ortolan export ./Llama-3.2-1B ./llama --context-length 8192 --name llama-3.2-1b
"""


def main(argv: Sequence[str]) -> int:
    """Export as ``argv`` says; return 0, or 1 after one line on stderr about what failed."""
    arguments = _parser().parse_args(argv)
    try:
        with _interrupted_by(signal.SIGTERM, signal.SIGHUP):
            manifest = _export(arguments)
    except (OrtolanError, OSError) as exc:
        return _fail(str(exc))
    except ModuleNotFoundError as exc:
        return _fail(f"exporting needs the package {exc.name}: pip install 'ortolan[export,cpu]'")
    except KeyboardInterrupt:
        return _fail("interrupted; nothing was written")
    print(_summary(arguments.out, manifest))  # noqa: T201 - the command's own voice
    return 0


def inspect_main(argv: Sequence[str]) -> int:
    """Print what a bundle is and needs; return 0, or 1 after one line on stderr."""
    parser = _bundle_parser("inspect", "Show what a bundle is, what it holds and what it needs.")
    arguments = parser.parse_args(argv)
    try:
        from ortolan_export.inspection import describe

        print(describe(arguments.bundle))  # noqa: T201 - the command's own voice
    except (OrtolanError, OSError) as exc:
        return _fail(str(exc))
    except ModuleNotFoundError as exc:
        return _fail(f"inspecting needs the package {exc.name}: pip install 'ortolan[export]'")
    return 0


def verify_main(argv: Sequence[str]) -> int:
    """Run a bundle's checks and print each; return 0 when all have passed, else 1."""
    parser = _bundle_parser(
        "verify",
        "Check a bundle's digests, its golden prompts, and that no row or chunk feels another.",
    )
    parser.add_argument(
        "--against",
        type=Path,
        metavar="REFERENCE",
        help="a bundle of the same model, such as its fp32 one, to compare greedy tokens with",
    )
    parser.add_argument(
        "--least-agreement",
        type=float,
        metavar="SHARE",
        default=0.8,
        help="fail below this share of equal tokens (default: %(default)s)",
    )
    arguments = parser.parse_args(argv)
    try:
        return _verify(arguments)
    except (OrtolanError, OSError) as exc:
        return _fail(str(exc))
    except ModuleNotFoundError as exc:
        return _fail(f"verifying needs the package {exc.name}: pip install 'ortolan[export,cpu]'")
    except KeyboardInterrupt:
        return _fail("interrupted")


def _verify(arguments: argparse.Namespace) -> int:
    failed = 0
    with progress_bar() as report:
        for check in _checks(arguments, report or _say_nothing):
            verdict = "ok" if check.has_passed else "FAILED"
            print(f"{verdict:<7} {check.name}: {check.finding}")  # noqa: T201 - its own voice
            failed += not check.has_passed
    return 1 if failed else 0


def _checks(arguments: argparse.Namespace, report: Report) -> Iterator[Check]:
    from ortolan_export.agreement import check_agreement
    from ortolan_export.checking import check_bundle

    yield from check_bundle(arguments.bundle, report)
    if arguments.against is not None:
        yield check_agreement(arguments.bundle, arguments.against, arguments.least_agreement)


@contextmanager
def _interrupted_by(*signals: signal.Signals) -> Iterator[None]:
    """Let ``signals`` do what Ctrl-C does, so that nothing half-written stays behind."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _export(arguments: argparse.Namespace) -> Manifest:
    # Imported here: its packages are an extra, and whoever lacks them gets one line about it.
    from ortolan_export.native import export

    with progress_bar() as report:
        return export(
            arguments.source,
            arguments.out,
            precision=arguments.precision,
            name=arguments.name,
            context_length=arguments.context_length,
            int4_accuracy_level=arguments.int4_accuracy_level,
            report=report,
        )


def _fail(message: str) -> int:
    print(f"ortolan: error: {message}", file=sys.stderr)  # noqa: T201 - the command's own voice
    return 1


def _say_nothing(stage: str, done: int, total: int) -> None:
    pass


def _bundle_parser(command: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"ortolan {command}",
        description=description,
        epilog=f"examples:\n  ortolan {command} ./smollm2\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="the bundle's folder")
    return parser


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ortolan export",
        description="Make a bundle that ortolan can serve, from a model's weights.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "source",
        type=Path,
        metavar="SOURCE",
        help="a Hugging Face model directory (safetensors) or a GGUF file",
    )
    parser.add_argument(
        "out", type=Path, metavar="OUT", help="the bundle's folder; a bundle there is replaced"
    )
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        default="int8",
        help="how weights are stored and multiplied (default: %(default)s)",
    )
    parser.add_argument("--name", help="the name the server shows (default: the source's own)")
    parser.add_argument(
        "--context-length",
        type=int,
        metavar="N",
        help="tokens that a prompt and its completion may take together (default: the model's)",
    )
    parser.add_argument(
        "--int4-accuracy-level",
        type=int,
        choices=(0, 4),
        default=4,
        help="4 quantises the activations of 4-bit layers to 8 bits, twice as fast; "
        "0 leaves them in float32 (default: %(default)s)",
    )
    return parser


def _summary(out: Path, manifest: Manifest) -> str:
    size = sum(record.size for record in manifest.files) / 1e6
    return (
        f"{out}: {manifest.name}, {manifest.architecture}, {manifest.precision}, "
        f"context {manifest.context_length}, {size:.0f} MB"
    )
