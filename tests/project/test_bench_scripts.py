"""Holds the benchmark scripts' arithmetic, their reading of others' output, and their files."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import msgspec
import numpy as np
import pytest
from tokenizers import Tokenizer

from ortolan_export.native import open_checkpoint
from ortolan_runtime.bench import DecodeFigures, Figures

SCRIPTS = Path(__file__).parents[2] / "scripts"
sys.path.append(str(SCRIPTS))

contenders = importlib.import_module("peers.contenders")
formats = importlib.import_module("peers.formats")
process = importlib.import_module("peers.process")
report = importlib.import_module("peers.report")
restart = importlib.import_module("peers.restart")
weights = importlib.import_module("peers.weights")

TINY = weights.Shape(
    layers=2,
    hidden=32,
    heads=2,
    kv_heads=1,
    head_size=16,
    intermediate=64,
    vocabulary=300,
    context=64,
)
# Answers 503 once, as servers do that are loading, and then a stream whose first chunk is empty.
SLOW_SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    asked = 0
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        Handler.asked += 1
        self.send_response(503 if Handler.asked == 1 else 200)
        self.end_headers()
        self.wfile.write(b'data: {"choices": [{"text": ""}]}\\n\\n')
        self.wfile.write(b'data: {"choices": [{"text": "a"}]}\\n\\n')
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def script(name: str) -> ModuleType:
    """Import a script that has no suffix."""
    loader = SourceFileLoader(name, str(SCRIPTS / name))
    spec = spec_from_loader(name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # where its dataclasses look for their own module
    loader.exec_module(module)
    return module


def samples(metric: str, **values: tuple[float, ...]) -> list[object]:
    """Return samples of one metric, a value for each round."""
    return [
        report.Sample(round=number, contender=contender, metric=metric, value=value)
        for contender, rounds in values.items()
        for number, value in enumerate(rounds, 1)
    ]


def target(metric: str, theirs: tuple[str, ...], bound: float) -> object:
    return report.Target(metric=metric, ours="us", theirs=theirs, bound=bound)


def test_a_ratio_is_of_medians_over_the_best_peer() -> None:
    measured = samples("prefill", us=(10.0, 30.0, 50.0), a=(20.0, 20.0, 5.0), b=(1.0, 1.0, 99.0))
    (verdict,) = report.judge(measured, [target("prefill", ("a", "b"), 1.5)])
    assert verdict.ratio == 30.0 / 20.0
    assert verdict.is_met


def test_single_rounds_give_the_spread_of_a_ratio() -> None:
    measured = samples("prefill", us=(10.0, 30.0, 40.0), a=(10.0, 10.0, 20.0))
    (verdict,) = report.judge(measured, [target("prefill", ("a",), 2.5)])
    assert (verdict.least, verdict.ratio, verdict.most) == (1.0, 3.0, 3.0)


def test_of_seconds_fewer_are_better() -> None:
    measured = samples("start", us=(1.5,), a=(1.0,), b=(3.0,))
    met, missed = report.judge(
        measured, [target("start", ("a", "b"), 1.5), target("start", ("a", "b"), 1.4)]
    )
    assert (met.ratio, met.is_met, missed.is_met) == (1.5, True, False)


def test_a_share_is_judged_without_a_peer() -> None:
    measured = samples("outside the model", us=(0.04, 0.06, 0.03))
    (verdict,) = report.judge(measured, [target("outside the model", (), 0.05)])
    assert (verdict.ratio, verdict.is_met) == (0.04, True)


def test_a_target_is_not_judged_while_one_of_its_peers_is_missing() -> None:
    measured = samples("prefill", us=(10.0,), a=(1.0,))
    (verdict,) = report.judge(measured, [target("prefill", ("a", "b"), 1.5)])
    assert (verdict.ratio, verdict.is_met) == (None, None)
    assert "not measured" in report.verdicts_table([verdict])


def test_a_missed_target_is_not_hidden() -> None:
    measured = samples("prefill", us=(10.0,), a=(10.0,))
    table = report.verdicts_table(report.judge(measured, [target("prefill", ("a",), 1.5)]))
    assert "| ≥ 1.50× | 1.00×    | 1.00× to 1.00× | **missed** |" in table


def test_every_contender_has_a_row_of_medians() -> None:
    measured = [*samples("prefill", us=(1.0, 2.0, 9.0)), *samples("start", them=(0.5,))]
    heading, _, *rows = report.figures_table(measured).splitlines()
    assert [cell.strip() for cell in heading.split("|")] == [
        "",
        "",
        "prefill, tok/s",
        "start, s",
        "",
    ]
    assert [cell.strip() for cell in rows[0].split("|")] == ["", "us", "2.0", "", ""]
    assert [cell.strip() for cell in rows[1].split("|")] == ["", "them", "", "0.50", ""]


def test_every_target_is_of_a_metric_that_its_contenders_measure() -> None:
    decoded = {contenders.decode_metric(batch) for batch in contenders.Workload().batches}
    metrics = {*decoded, contenders.PREFILL, contenders.START, contenders.OUTSIDE}
    assert {found.metric for found in report.TARGETS} <= metrics


def test_the_json_of_ortolan_bench_is_read() -> None:
    figures = Figures(
        bundle="b",
        precision="int8",
        device="cpu",
        threads=2,
        load_s=1.0,
        prompt_tokens=512,
        prefill_tokens_per_s=245.0,
        first_token_ms=2000.0,
        context_tokens=128,
        decode=(DecodeFigures(batch=8, tokens_per_s=107.0, step_ms=75.0, outside_model=0.02),),
        peak_memory_mb=800.0,
    )
    measured = contenders.read_ortolan(msgspec.json.encode(figures).decode())
    assert measured == {"prefill": 245.0, "decode, batch 8": 107.0}


def test_the_lines_of_llama_bench_are_read() -> None:
    generation = {"n_prompt": 0, "n_gen": 16, "avg_ts": 33.4}
    prompt = {"n_prompt": 512, "n_gen": 0, "avg_ts": 154.0}
    output = "\n".join(json.dumps(row) for row in (generation, prompt))
    assert contenders.read_llama_bench(output) == {"prefill": 154.0}


def test_the_lines_of_llama_batched_bench_are_read() -> None:
    rows = [{"pp": 128, "tg": 24, "pl": pl, "speed_tg": 10.0 * pl} for pl in (1, 16)]
    output = "main: n_kv_max = 4096\n" + "\n".join(json.dumps(row) for row in rows)
    assert contenders.read_batched_bench(output) == {
        "decode, batch 1": 10.0,
        "decode, batch 16": 160.0,
    }


def test_what_onnxruntime_genai_prints_before_its_figures_is_skipped() -> None:
    output = 'a warning\n{"prefill": 106.0, "decode": {"1": 38.9}}\n'
    assert contenders.read_genai(output) == {"prefill": 106.0, "decode, batch 1": 38.9}


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b'data: {"choices": [{"text": "a"}]}\n', "a"),
        (b'data: {"choices": [{"text": ""}]}\n', ""),
        (b'data: {"choices": [], "usage": {}}\n', ""),
        (b"data: [DONE]\n", ""),
        (b": a comment\n", ""),
        (b"\n", ""),
    ],
)
def test_text_is_found_in_a_line_of_a_stream(line: bytes, text: str) -> None:
    assert restart.first_text(line) == text


def test_a_server_counts_as_started_when_its_first_text_came() -> None:
    seconds = restart.seconds_to_first_token([sys.executable, "-c", SLOW_SERVER])
    assert 0.0 < seconds < 30.0


def test_a_server_that_ends_at_its_start_is_told_of() -> None:
    with pytest.raises(process.ProgramFailed, match="ended with 3 at its start"):
        restart.seconds_to_first_token([sys.executable, "-c", "raise SystemExit(3)"])


def test_a_program_that_takes_too_long_is_ended() -> None:
    with pytest.raises(process.ProgramFailed, match=r"took more than 0\.2 s"):
        process.run([sys.executable, "-c", "import time; time.sleep(60)"], timeout_s=0.2)


def test_a_program_that_fails_is_told_of_by_its_last_line() -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('why')"]
    with pytest.raises(process.ProgramFailed, match="ended with 1: why"):
        process.run(command, timeout_s=30.0)


def test_a_signal_has_its_name() -> None:
    assert process.ending(-11) == "ended by SIGSEGV"


def test_the_same_weights_are_in_both_formats(tmp_path: Path) -> None:
    formats.write_huggingface(tmp_path / "hf", TINY)
    formats.write_gguf(tmp_path / "F32.gguf", TINY)
    one, other = open_checkpoint(tmp_path / "hf"), open_checkpoint(tmp_path / "F32.gguf")
    # A GGUF names no head that is tied to the embedding; nor does the other.
    assert one.shapes == other.shapes
    for name in one.shapes:
        np.testing.assert_array_equal(one.read(name), other.read(name))
    assert one.texts().eos_token_ids == other.texts().eos_token_ids == (299,)


def test_both_formats_have_the_same_tokens(tmp_path: Path) -> None:
    formats.write_huggingface(tmp_path / "hf", TINY)
    formats.write_gguf(tmp_path / "F32.gguf", TINY)
    one, other = (
        Tokenizer.from_str(open_checkpoint(path).texts().tokenizer)
        for path in (tmp_path / "hf", tmp_path / "F32.gguf")
    )
    text = 'He said "!!" & left.'
    assert one.encode(text).ids == other.encode(text).ids
    assert one.decode(one.encode(text).ids) == text


def test_a_large_vocabulary_has_tokens_of_three_letters_that_are_used() -> None:
    vocabulary = weights.vocabulary_of(20_000)
    assert len(set(vocabulary.tokens)) == 20_000
    assert (vocabulary.bos_id, vocabulary.eos_id) == (19_998, 19_999)
    assert weights.tokenizer_of(vocabulary).encode('!!"').tokens == ['!!"']


def test_a_row_of_logits_goes_through_the_points_of_its_profile() -> None:
    bench = script("bench_sampling")
    _, curve = bench._CLASSES[2]
    logits = bench.ranked_logits(curve, 50_000)
    assert np.all(np.diff(logits) < 0)
    assert logits[np.array(bench._RANKS) - 1] == pytest.approx(curve, abs=1e-4)


def test_a_profile_is_a_distribution_but_for_its_rounding() -> None:
    bench = script("bench_sampling")
    logits = bench.model_logits(16, 49_152, seed=0)
    assert bench.logsumexp_of(logits) == pytest.approx(0.0, abs=0.5)


def test_every_case_of_sampling_is_measured() -> None:
    command = [sys.executable, SCRIPTS / "bench_sampling"]
    options = ["--rows", "3", "--vocabulary", "20000", "--steps", "1", "--step-ms", "100", "--json"]
    output = subprocess.run(
        [*command, *options], check=True, capture_output=True, text=True, timeout=60
    ).stdout
    figures = json.loads(output)
    assert len(figures) == 2 * len(script("bench_sampling").CASES)
    assert all(figure["share"] == figure["step_ms"] / 100 for figure in figures)


def test_the_comparison_says_what_it_takes() -> None:
    command = [sys.executable, SCRIPTS / "bench_peers", "--help"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    assert "--llama" in shown
    assert "--genai-python" in shown


def test_a_quick_comparison_takes_the_threads_that_were_asked_for(tmp_path: Path) -> None:
    bench = script("bench_peers")
    given = bench.parser().parse_args(["--quick", "--threads", "3", "--work", str(tmp_path)])
    work = bench.setup_of(given).work
    assert (work.threads, work.prompt_tokens) == (3, bench.QUICK.prompt_tokens)


@pytest.mark.parametrize(("load", "is_told"), [([0.1, 2.1], False), ([0.1, 4.5], True)])
def test_a_busy_machine_is_told_of(load: list[float], is_told: bool) -> None:
    bench = script("bench_peers")
    run = bench.describe(contenders.Workload(threads=2))
    run.load_average = load
    assert ("do not use" in bench.as_markdown(run)) == is_told
