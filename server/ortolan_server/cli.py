"""The command ``ortolan``: what each subcommand takes, and how failures are told.

Exit codes: 0 done; 1 refused or failed, after one line on stderr; 2 wrong usage; 70 the engine
died; 130 interrupted.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import msgspec

from ortolan_runtime.bundle import cache_directory
from ortolan_runtime.engine import Engine, EngineOptions
from ortolan_runtime.errors import OrtolanError
from ortolan_runtime.version import __version__
from ortolan_server.default_model import default_bundle
from ortolan_server.serve_flags import add_server_flags, settings_of

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130

_WELCOME = """\
ortolan serves text completions from your own machine.

  ortolan serve                      serve the default model on http://127.0.0.1:8000
  ortolan complete "Once upon a"     complete a text here
  ortolan export SOURCE OUT          make a bundle from a Hugging Face directory or a GGUF file
  ortolan serve OUT                  serve that bundle
  ortolan bench OUT                  measure it on this machine
  ortolan inspect OUT                show what it is; `verify` checks that it still is that
  ortolan keys add NAME              make an API key

`ortolan COMMAND --help` shows every option.
"""
_SERVE_EXAMPLES = """\
examples:
  ortolan serve
  ortolan serve ./my-bundle --port 9000 --slots 32
  ORTOLAN_API_KEY=secret ortolan serve ./my-bundle --host 0.0.0.0
  ortolan serve --offline --kv-memory 2GiB
"""
_COMPLETE_EXAMPLES = """\
examples:
  ortolan complete "The capital of France is" --temperature 0
  ortolan complete "Once upon a time" --bundle ./my-bundle --max-tokens 200 --seed 7
"""
_BENCH_EXAMPLES = """\
examples:
  ortolan bench ./my-bundle
  ortolan bench ./my-bundle --batches 1,16 --temperature 0.8 --top-p 0.9 --json
"""
# These are ortolan_export's, which parses their arguments itself.
_EXPORTER_COMMANDS = {
    "export": "make a bundle from a model's weights",
    "inspect": "show what a bundle is",
    "verify": "check that a bundle is what it was",
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)


def main(argv: Sequence[str]) -> int:
    """Run the command line ``argv`` and return the exit code."""
    if not argv:
        sys.stdout.write(_WELCOME)
        return 0
    if argv[0] in _EXPORTER_COMMANDS:
        return _run_exporter(argv[0], argv[1:])
    if argv[0] == "keys":
        return _keys(argv[1:])
    arguments = _parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        code: int = arguments.run(arguments)
    except OrtolanError as exc:
        return _fail(str(exc))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return code


def parse_size(text: str) -> int:
    """Return the bytes of a size such as ``512MiB``, ``2G`` or ``1000000``."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"must be a size such as 512MiB or 2GB, got {text!r}")
    number, unit, binary = match.groups()
    base = 1024 if binary else 1000
    return int(float(number) * base ** (" KMGT".index(unit.upper()) if unit else 0))


def _numbers(text: str) -> tuple[int, ...]:
    """Return whole numbers of at least 1 that are separated by commas."""
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"must be numbers >= 1 such as 1,4,8, got {text!r}")
    return numbers


def _run_exporter(command: str, argv: Sequence[str]) -> int:
    try:
        from ortolan_export import cli as exporter
    except ModuleNotFoundError as exc:
        return _fail(f"{command} needs {exc.name}; install it with `pip install 'ortolan[export]'`")
    mains = {"inspect": exporter.inspect_main, "verify": exporter.verify_main}
    return mains.get(command, exporter.main)(argv)


def _keys(argv: Sequence[str]) -> int:
    from ortolan_server.keys_cli import main as keys_main

    try:
        return keys_main(argv)
    except OrtolanError as exc:
        return _fail(str(exc))


def _serve(arguments: argparse.Namespace) -> int:
    from ortolan_server.listening import listen
    from ortolan_server.logs import configure_logging
    from ortolan_server.serve import run_server

    configure_logging(arguments.log_format)
    settings = settings_of(arguments, os.environ)
    with closing(listen(settings)) as listener:
        options = _engine_options(arguments)
        engine = _open_engine(arguments, options)
        _say(_summary(engine))
        try:
            return run_server(engine, settings, listener, lambda path: Engine.open(path, options))
        finally:
            engine.close()


def _complete(arguments: argparse.Namespace) -> int:
    options = EngineOptions(slots=1, threads=arguments.threads)
    with _open_engine(arguments, options) as engine:
        fields = {name: getattr(arguments, name) for name in _COMPLETE_FLAGS}
        seed = int.from_bytes(os.urandom(7)) if arguments.seed is None else arguments.seed
        for event in engine.generate(
            arguments.text, **fields, seed=seed, stop=tuple(arguments.stop)
        ):
            sys.stdout.write(event.text)
            sys.stdout.flush()
            if event.ending is not None and event.ending.error is not None:
                return _fail(event.ending.error)
    sys.stdout.write("\n")
    return 0


def _bench(arguments: argparse.Namespace) -> int:
    from ortolan_runtime.bench import BenchOptions, as_table, measure

    options = BenchOptions(**{name: getattr(arguments, name) for name in _BENCH_FLAGS})
    figures = measure(_bundle_of(arguments), options)
    if arguments.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(figures)).decode() + "\n")
    else:
        sys.stdout.write(as_table(figures))
    return 0


def _open_engine(arguments: argparse.Namespace, options: EngineOptions) -> Engine:
    return Engine.open(_bundle_of(arguments), options, verify=arguments.verify)


def _summary(engine: Engine) -> str:
    """Return what is served and what it may take, in one line."""
    manifest, statistics = engine.manifest, engine.statistics()
    tokens = statistics.kv_budget_tokens
    gigabytes = tokens * manifest.kv_bytes_per_token / 1e9
    return (
        f"{manifest.name} ({manifest.precision}): {statistics.slots} slots, context "
        f"{engine.context_length}, KV cache of at most {tokens} tokens ({gigabytes:.1f} GB)"
    )


def _bundle_of(arguments: argparse.Namespace) -> Path:
    """Return the bundle that was named, else the default one."""
    if arguments.bundle is not None:
        path: Path = arguments.bundle
        return path
    return default_bundle(cache_directory(os.environ), offline=arguments.offline, say=_say)


def _engine_options(arguments: argparse.Namespace) -> EngineOptions:
    return EngineOptions(
        slots=arguments.slots,
        threads=arguments.threads,
        prefill_chunk=arguments.prefill_chunk,
        queue_limit=arguments.queue_limit,
        kv_memory_bytes=arguments.kv_memory,
        device=arguments.device,
        spin=arguments.spin,
        speculate=arguments.speculate,
        relaxed=arguments.relaxed,
    )


# Flags whose names are those of BenchOptions' fields, and of a request's.
_BENCH_FLAGS = (
    "batches",
    "prompt_tokens",
    "context_tokens",
    "decode_tokens",
    "repetitions",
    "threads",
    "temperature",
    "top_p",
    "speculate",
)
_COMPLETE_FLAGS = ("max_tokens", "temperature", "top_p", "top_k")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ortolan", description="Text completions on ONNX Runtime")
    parser.add_argument("--version", action="version", version=f"ortolan {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_serve(commands)
    _add_complete(commands)
    _add_bench(commands)
    for name, summary in _EXPORTER_COMMANDS.items():
        commands.add_parser(name, help=summary, add_help=False)
    commands.add_parser("keys", help="add, list and revoke API keys", add_help=False)
    return parser


def _add_serve(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _command(commands, "serve", "serve a bundle over HTTP", _SERVE_EXAMPLES, _serve)
    parser.add_argument(
        "bundle",
        nargs="?",
        type=Path,
        metavar="BUNDLE",
        help="the bundle's folder (default: SmolLM2-135M-Instruct, fetched once)",
    )
    engine = EngineOptions()
    add_server_flags(parser)
    _add_engine_flags(parser, engine)
    _add_source_flags(parser)


def _add_engine_flags(parser: argparse.ArgumentParser, engine: EngineOptions) -> None:
    add = parser.add_argument
    add("--slots", type=int, default=engine.slots, help="sequences at once (default: %(default)s)")
    add("--threads", type=int, help="threads of the session (default: the cores at hand)")
    add(
        "--prefill-chunk",
        type=int,
        default=engine.prefill_chunk,
        metavar="TOKENS",
        help="prompt tokens between two decode steps (default: %(default)s)",
    )
    add(
        "--queue-limit",
        type=int,
        default=engine.queue_limit,
        metavar="N",
        help="sequences that may wait; beyond it clients get 429 (default: %(default)s)",
    )
    add(
        "--kv-memory",
        type=parse_size,
        metavar="SIZE",
        help="bound on the KV cache, as 2GiB (default: every slot at full context, "
        "at most half of the free memory)",
    )
    add("--device", choices=("cpu", "cuda", "tensorrt"), default=engine.device)
    add("--spin", action="store_true", help="let idle threads busy-wait; for cores of one's own")
    _add_speculate(parser)
    add(
        "--relaxed",
        action="store_true",
        help="a little faster where one sequence decodes in int4 or fp32, but no longer the same "
        "bits in any company",
    )


def _add_complete(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _command(commands, "complete", "complete a text here", _COMPLETE_EXAMPLES, _complete)
    add = parser.add_argument
    add("text", metavar="TEXT", help="the beginning to complete")
    add("--bundle", type=Path, help="the bundle's folder (default: the default model)")
    add("--max-tokens", type=int, default=128, help="at most this many (default: %(default)s)")
    add("--temperature", type=float, default=0.7, help="0 is greedy (default: %(default)s)")
    add("--top-p", type=float, default=1.0, help="probability mass kept (default: %(default)s)")
    add("--top-k", type=int, default=0, help="tokens kept, 0 is all (default: %(default)s)")
    add("--seed", type=int, help="the same seed gives the same text (default: random)")
    add("--stop", action="append", default=[], metavar="TEXT", help="end before this text")
    add("--threads", type=int, help="threads of the session (default: the cores at hand)")
    _add_source_flags(parser)


def _add_bench(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from ortolan_runtime.bench import BenchOptions

    parser = _command(commands, "bench", "measure a bundle here", _BENCH_EXAMPLES, _bench)
    defaults = BenchOptions()
    add = parser.add_argument
    add("bundle", nargs="?", type=Path, metavar="BUNDLE", help="default: the default model")
    add(
        "--batches",
        type=_numbers,
        default=defaults.batches,
        metavar="N,N",
        help="sequences at once (default: 1,4,8,16)",
    )
    for name, meaning in (
        ("prompt_tokens", "length of the prompt that is prefilled"),
        ("context_tokens", "tokens before decoding starts"),
        ("decode_tokens", "tokens that each sequence decodes"),
        ("repetitions", "runs, of which the median counts"),
    ):
        add(
            f"--{name.replace('_', '-')}",
            type=int,
            default=getattr(defaults, name),
            metavar="N",
            help=f"{meaning} (default: %(default)s)",
        )
    add("--threads", type=int, help="threads of the session (default: the cores at hand)")
    add("--temperature", type=float, default=0.0, help="0 is greedy (default: %(default)s)")
    add("--top-p", type=float, default=1.0, help="probability mass kept (default: %(default)s)")
    add("--json", action="store_true", help="print JSON instead of a table")
    _add_speculate(parser)
    _add_source_flags(parser)


def _add_speculate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--speculate",
        action="store_true",
        help="guess ahead while one sequence decodes: faster on text that repeats itself, "
        "but no longer the same bits in any company",
    )


def _add_source_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--offline", action="store_true", help="fetch nothing")
    parser.add_argument(
        "--verify", action="store_true", help="check every digest of the bundle, changed or not"
    )


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    summary: str,
    examples: str,
    run: object,
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=summary,
        description=summary.capitalize(),
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def _say(line: str) -> None:
    sys.stderr.write(f"ortolan: {line}\n")


def _fail(message: str) -> int:
    sys.stderr.write(f"ortolan: error: {message}\n")
    return EXIT_FAILED
