"""Batches: each line has its answer, once, whatever happens on the way."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ortolan_runtime.engine import Engine, EngineOptions
from ortolan_runtime.errors import EngineClosed
from ortolan_server.batch import lines as batch_lines
from ortolan_server.batch.answering import Answerer, answer_block
from ortolan_server.batch.files import BatchError, Progress, run_file
from ortolan_server.batch.lines import LineError, prefix_key, read_line
from ortolan_server.cli import main
from scripted import by_token, byte_level_tokenizer, write_bundle
from serving import serving, wait_until

Json = dict[str, Any]


@pytest.fixture(scope="module")
def engine(babbling_bundle: Path) -> Iterator[Engine]:
    """Give an engine with four slots."""
    with Engine.open(babbling_bundle, EngineOptions(slots=4, threads=1)) as engine:
        yield engine


def line(id: str, url: str = "/v1/completions", **body: Any) -> Json:
    """Return a request for six tokens of `babbling`."""
    fields = {"model": "babbling", "prompt": "x", "max_tokens": 6, **body}
    return {"custom_id": id, "method": "POST", "url": url, "body": fields}


def lines_of(count: int, seed: int = 3) -> list[Json]:
    """Return requests of many kinds, whose prompts begin alike in groups."""
    rng = random.Random(seed)
    return [
        line(
            f"line-{i}",
            prompt=rng.choice(["one ", "two ", "three "]) * 20 + rng.choice("abc"),
            temperature=rng.choice([0, 1]),
            n=rng.choice([1, 1, 2]),
            logprobs=rng.choice([None, 2]),
            max_tokens=rng.choice([1, 7, 30]),
        )
        for i in range(count)
    ]


def write(path: Path, requests: list[Json | str]) -> Path:
    """Write a file of requests; a string is a line as it is."""
    rows = [one if isinstance(one, str) else json.dumps(one) for one in requests]
    path.write_text("".join(f"{row}\n" for row in rows))
    return path


def read(path: Path) -> list[Json]:
    """Return the answers of a file."""
    return [json.loads(row) for row in path.read_text().splitlines()]


def result(answer: Json) -> Any:
    """Return what an answer says, without what differs in every run."""
    body = answer["response"]["body"]
    return (
        answer["custom_id"],
        body.get("choices"),
        body.get("usage", {}).get("completion_tokens"),
    )


def run(engine: Engine, source: Path, target: Path) -> Progress:
    """Answer a file."""
    return run_file(Answerer(engine), source, target, lambda progress: None)


def test_each_line_has_an_answer_in_openais_format(engine: Engine, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", [line("a"), "", line("b", prompt=[1, 2], n=2)])
    progress = run(engine, source, tmp_path / "out.jsonl")
    assert (progress.lines, progress.answered, progress.failed) == (2, 2, 0)
    answers = {answer["custom_id"]: answer for answer in read(tmp_path / "out.jsonl")}
    assert set(answers) == {"a", "b"}
    one = answers["a"]
    assert set(one) == {"id", "custom_id", "response", "error"}
    assert one["id"].startswith("batch_req_")
    assert one["error"] is None
    assert set(one["response"]) == {"status_code", "request_id", "body"}
    assert one["response"]["status_code"] == 200
    body = one["response"]["body"]
    assert (body["object"], body["model"]) == ("text_completion", "babbling")
    assert body["usage"]["completion_tokens"] == 6
    assert len(answers["b"]["response"]["body"]["choices"]) == 2


def test_an_answer_is_what_the_server_gives(
    engine: Engine, babbling_bundle: Path, tmp_path: Path
) -> None:
    """Bodies good and bad; the seed is told, since the server draws another."""
    bodies = [
        {"seed": 5, "n": 2, "logprobs": 3},
        {"echo": True, "logprobs": 1, "temperature": 0},
        {"temperature": 9},
        {"prompt": []},
        {"model": "cat"},
        {"max_tokens": 70_000},
    ]
    requests = [line(str(i), **body) for i, body in enumerate(bodies)]
    answers = [json.loads(text) for text in answer_block(engine, [json.dumps(r) for r in requests])]
    with serving(babbling_bundle) as server:
        for request, answer in zip(requests, answers, strict=True):
            real = server.post("/v1/completions", request["body"])
            found = answer["response"]
            assert found["status_code"] == real.status_code
            for volatile in ("id", "created"):
                assert (volatile in found["body"]) == (volatile in real.json())
            kept = found["body"].keys() - {"id", "created", "usage"}
            assert {k: found["body"][k] for k in kept} == {k: real.json()[k] for k in kept}


def test_lines_that_are_no_requests_are_answered_with_an_error(
    engine: Engine, tmp_path: Path
) -> None:
    """With their number; the others go on."""
    bad: list[tuple[Json | str, str]] = [
        ("{", "invalid_json_line"),
        ("[]", "invalid_json_line"),
        ("[" * 200, "invalid_json_line"),
        ({"method": "POST"}, "missing_required_parameter"),
        (line("get") | {"method": "GET"}, "invalid_method"),
        (line("url", url="/v1/embeddings"), "invalid_url"),
        ({**line("body"), "body": "x"}, "missing_required_parameter"),
        (line("same"), "duplicate_custom_id"),
    ]
    source = write(tmp_path / "in.jsonl", [line("same"), *(one for one, _ in bad), line("last")])
    progress = run(engine, source, tmp_path / "out.jsonl")
    assert (progress.lines, progress.answered, progress.failed) == (10, 10, 8)
    answers = read(tmp_path / "out.jsonl")
    errors = {a["error"]["line"]: a["error"]["code"] for a in answers if a["error"]}
    assert errors == {number: code for number, (_, code) in enumerate(bad, 2)}
    messages = " ".join(a["error"]["message"] for a in answers if a["error"])
    for told in ("`custom_id` must be", "got null", 'got "GET"', 'got "/v1/embeddings"'):
        assert told in messages
    assert {a["custom_id"] for a in answers if a["response"]} == {"same", "last"}
    assert run(engine, source, tmp_path / "out.jsonl").from_before == 10
    assert len(read(tmp_path / "out.jsonl")) == 10


def test_a_body_that_is_refused_or_streams_is_an_answer_with_its_status(engine: Engine) -> None:
    """As the dialect has it."""
    requests = [
        line("bad", n=0),
        line("stream", stream=True),
        line("chat", url="/v1/chat/completions", messages=[{"role": "user", "content": "x"}]),
    ]
    found = [json.loads(text) for text in answer_block(engine, [json.dumps(r) for r in requests])]
    assert [answer["response"]["status_code"] for answer in found] == [400, 400, 400]
    params = [answer["response"]["body"]["error"]["param"] for answer in found]
    assert params == ["n", "stream", "messages"]  # this bundle has no chat template


def test_a_chat_goes_through_the_bundles_template(tmp_path: Path) -> None:
    tokenizer = byte_level_tokenizer("hoo")
    vocab = tokenizer.get_vocab_size()
    hoo = tokenizer.token_to_id("hoo")
    bundle = write_bundle(
        tmp_path / "owl",
        tokenizer,
        token_table=by_token(vocab, dict.fromkeys(range(vocab), hoo)),
        name="owl",
        chat_template="{% for message in messages %}{{ message.content }}\n{% endfor %}",
    )
    body = {"model": "owl", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
    asked = {"custom_id": "c", "method": "POST", "url": "/v1/chat/completions", "body": body}
    with Engine.open(bundle, EngineOptions(slots=2, threads=1)) as engine:
        answer = json.loads(answer_block(engine, [json.dumps(asked)])[0])
    reply = answer["response"]["body"]
    assert reply["object"] == "chat.completion"
    assert reply["choices"][0]["message"]["content"] == "hoohoohoo"
    assert reply["usage"]["prompt_tokens"] == 3


def test_what_a_line_gets_does_not_depend_on_the_others(engine: Engine, tmp_path: Path) -> None:
    """Not on their order, nor on a run before; a line without a seed has one of its own."""
    requests = lines_of(40)
    shuffled = random.Random(1).sample(requests, len(requests))
    sets = []
    for name, some in (("a", requests), ("b", shuffled), ("c", requests[::3])):
        source = write(tmp_path / f"{name}.jsonl", list(some))
        run(engine, source, tmp_path / f"{name}.out")
        sets.append({result(a)[0]: result(a) for a in read(tmp_path / f"{name}.out")})
    whole, again, part = sets
    assert len(whole) == 40
    assert whole == again
    assert part.items() <= whole.items()
    alone = json.loads(answer_block(engine, [json.dumps(requests[7])])[0])
    assert result(alone) == whole["line-7"]


def test_prompts_that_begin_alike_come_together(engine: Engine, tmp_path: Path) -> None:
    """So that the cache serves them, in however mixed an order they stand."""
    texts = ["red " * 50, "sun " * 50, "sea " * 50]
    requests = [line(str(i), prompt=f"{texts[i % 3]}{i}", max_tokens=1) for i in range(60)]
    keys = [prefix_key(read_line(json.dumps(r).encode(), 1)) for r in requests]
    order = sorted(range(60), key=lambda i: keys[i])
    assert [i % 3 for i in order] == sorted((i % 3 for i in range(60)), key=[0, 2, 1].index)
    before = engine.statistics().cached_prompt_tokens
    run(engine, write(tmp_path / "in.jsonl", list(requests)), tmp_path / "out.jsonl")
    saved = engine.statistics().cached_prompt_tokens - before
    asked = sum(
        a["response"]["body"]["usage"]["prompt_tokens"] for a in read(tmp_path / "out.jsonl")
    )
    assert saved > 0.9 * asked


def test_a_half_written_line_is_done_again_and_whole_ones_are_not(
    engine: Engine, tmp_path: Path
) -> None:
    source, target = write(tmp_path / "in.jsonl", list(lines_of(12))), tmp_path / "out.jsonl"
    run(engine, source, target)
    whole = read(target)
    rows = target.read_bytes().splitlines(keepends=True)
    target.write_bytes(b"".join(rows[:5]) + rows[5][:-9])
    progress = run(engine, source, target)
    assert (progress.answered, progress.from_before) == (12, 5)
    again = read(target)
    assert again[:5] == whole[:5]
    assert sorted(map(repr, map(result, again))) == sorted(map(repr, map(result, whole)))


def test_a_batch_that_is_killed_goes_on(babbling_bundle: Path, tmp_path: Path) -> None:
    """By SIGKILL in the midst of work; every line is answered once."""
    requests = [line(f"line-{i}", max_tokens=40, temperature=1) for i in range(120)]
    source, target = write(tmp_path / "in.jsonl", list(requests)), tmp_path / "out.jsonl"
    command = [sys.executable, "-m", "ortolan_server", "batch", str(source), str(target)]
    command += ["--bundle", str(babbling_bundle), "--slots", "4", "--threads", "1"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: target.exists() and target.read_bytes().count(b"\n") > 10, 60)
        process.kill()
    done = target.read_bytes().count(b"\n")
    assert 10 < done < 120
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        told = process.stderr.read()
        assert process.wait() == 0
    assert f"120 lines answered, {done} from before, 0 failed" in told
    assert sorted(a["custom_id"] for a in read(target)) == sorted(r["custom_id"] for r in requests)


def test_a_signal_ends_a_batch_in_order(babbling_bundle: Path, tmp_path: Path) -> None:
    """With how far it is, and exit code 130."""
    requests = [line(f"line-{i}", max_tokens=200, ignore_eos=True) for i in range(400)]
    source, target = write(tmp_path / "in.jsonl", list(requests)), tmp_path / "out.jsonl"
    command = [sys.executable, "-m", "ortolan_server", "batch", str(source), str(target)]
    command += ["--bundle", str(babbling_bundle), "--threads", "1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        wait_until(lambda: target.exists() and target.stat().st_size > 0, 60)
        process.send_signal(signal.SIGTERM)
        told = process.stderr.read()
        assert process.wait(10) == 130
    assert "of 400 lines are answered; the same command goes on" in told
    assert target.read_bytes().endswith(b"\n")


def test_the_command_tells_what_it_did_and_whether_a_line_failed(
    babbling_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--bundle", str(babbling_bundle), "--threads", "1", "--model-name", "gpt"]
    good = write(tmp_path / "good.jsonl", [line("a", model="gpt")])
    assert main(["batch", str(good), str(tmp_path / "good.out"), *options]) == 0
    assert "1 lines answered, 0 failed; 6 tokens in" in capsys.readouterr().err
    bad = write(tmp_path / "bad.jsonl", [line("a", model="gpt"), line("b")])
    assert main(["batch", str(bad), str(tmp_path / "bad.out"), *options]) == 1
    assert "2 lines answered, 1 failed (" in capsys.readouterr().err
    # What failed before still makes the exit code.
    assert main(["batch", str(bad), str(tmp_path / "bad.out"), *options]) == 1


def test_files_that_cannot_be_used_are_named(engine: Engine, tmp_path: Path) -> None:
    """Before anything is done."""
    source = write(tmp_path / "in.jsonl", [line("a")])
    other = tmp_path / "notes.txt"
    other.write_text("not an answer\n")
    for wrong, words in (
        ((tmp_path / "nothing", tmp_path / "out"), "nothing cannot be read"),
        ((source, tmp_path / "no" / "out"), "cannot be written"),
        ((source, source), "another file"),
        ((source, other), "line 1 of .*notes.txt is no answer"),
    ):
        with pytest.raises(BatchError, match=words):
            run(engine, *wrong)
    assert other.read_text() == "not an answer\n"


def test_two_batches_do_not_write_one_file(engine: Engine, tmp_path: Path) -> None:
    """The second is refused while the first runs."""
    source = write(tmp_path / "in.jsonl", list(lines_of(5)))
    refused = []

    def meddle(progress: Progress) -> None:
        with pytest.raises(BatchError, match="another process") as caught:
            run(engine, source, tmp_path / "out.jsonl")
        refused.append(caught)

    run_file(Answerer(engine), source, tmp_path / "out.jsonl", meddle)
    assert refused


def test_an_engine_that_dies_ends_the_batch_and_writes_no_failures(
    babbling_bundle: Path, tmp_path: Path
) -> None:
    """They would not be done again."""
    requests = [line(str(i), max_tokens=30, ignore_eos=True) for i in range(20)]
    source, target = write(tmp_path / "in.jsonl", list(requests)), tmp_path / "out.jsonl"
    with Engine.open(babbling_bundle, EngineOptions(slots=2, threads=1)) as engine:
        real, steps = engine._stepper.step, iter(range(200))

        def step() -> object:
            next(steps)  # StopIteration at last, as any fault of our own would be raised
            return real()

        engine._stepper.step = step  # type: ignore[method-assign,assignment]
        with pytest.raises(EngineClosed, match="what is answered is kept"):
            run(engine, source, target)
    assert 0 < len(read(target)) < 20
    assert all(answer["response"]["status_code"] == 200 for answer in read(target))


@pytest.mark.parametrize("prompt", [None, 3, [], [[]], [None], {}, [[1, 2], [3]], ["a"], [True]])
def test_any_prompt_has_a_key(prompt: Any) -> None:
    """Also one that will be refused."""
    for url in ("/v1/completions", "/v1/chat/completions"):
        request = line("a", url=url, prompt=prompt, messages=prompt)
        assert prefix_key(read_line(json.dumps(request).encode(), 1)).startswith(url)


def test_a_line_error_names_its_line() -> None:
    with pytest.raises(LineError, match="must be a JSON object") as caught:
        read_line(b"3", 17)
    assert caught.value.number == 17
    started = time.monotonic()
    with pytest.raises(LineError, match="nested deeper"):
        read_line(b"[" * 1_000_000, 1)
    assert time.monotonic() - started < 5


def test_the_page_shows_lines_that_are_requests_and_every_code() -> None:
    page = (Path(__file__).parents[2] / "docs" / "batch.md").read_text(encoding="utf-8")
    shown = [row for row in page.splitlines() if row.startswith('{"custom_id"')]
    assert [read_line(row.encode(), 1).custom_id for row in shown] == ["a-1", "a-2"]
    source = Path(batch_lines.__file__).read_text(encoding="utf-8")
    codes = {*re.findall(r'LineError\(\w+, "(\w+)"', source), "duplicate_custom_id"}
    assert len(codes) == 5
    assert all(f"`{code}`" in page for code in codes)
