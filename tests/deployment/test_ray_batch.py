"""A batch through Ray Data, with two engines on a cluster of this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ortolan_runtime.engine import Engine, EngineOptions
from ortolan_server.batch.answering import Answerer
from ortolan_server.batch.files import run_file

pytestmark = pytest.mark.slow
pytest.importorskip("ray.data", reason="Ray is not installed; pip install 'ortolan[ray]'")


def requests(count: int) -> list[str]:
    """Return lines of a batch; one of them asks for what is refused."""
    bodies = [{"prompt": f"The {i % 7} cat", "max_tokens": 6, "model": "m"} for i in range(count)]
    bodies[3]["max_tokens"] = -1
    fields = {"method": "POST", "url": "/v1/completions"}
    return [json.dumps({"custom_id": str(i), **fields, "body": b}) for i, b in enumerate(bodies)]


def texts(path: Path) -> dict[str, Any]:
    """Return each answer's text, or its status where it has none, by its custom_id."""
    answers = [json.loads(row) for row in path.read_text("utf-8").splitlines()]
    assert len(answers) == len({answer["custom_id"] for answer in answers})
    found = {}
    for answer in answers:
        response = answer["response"]
        choices = response["body"].get("choices")
        found[answer["custom_id"]] = choices[0]["text"] if choices else response["status_code"]
    return found


def cluster_batch(source: Path, target: Path, bundle: Path) -> subprocess.CompletedProcess[str]:
    """Run the command as it is typed."""
    command = [sys.executable, "-m", "ortolan_server.ray_batch", str(source), str(target)]
    options = ["--bundle", str(bundle), "--engines", "2", "--model-name", "m", "--address", "local"]
    environment = {**os.environ, "RAY_DISABLE_IMPORT_WARNING": "1"}
    return subprocess.run(
        [*command, *options],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment,
        check=False,
    )


def test_two_engines_give_the_answers_of_one_and_go_on_after_a_kill(
    glass_bundle: Path, tmp_path: Path
) -> None:
    """The second run finds half of the answers, and a line that was cut off."""
    source, alone = tmp_path / "in.jsonl", tmp_path / "alone.jsonl"
    source.write_text("\n".join(requests(150)) + "\n", "utf-8")
    with Engine.open(glass_bundle, EngineOptions(slots=4, threads=1)) as engine:
        run_file(Answerer(engine, name="m"), source, alone, lambda _: None)
    expected = texts(alone)
    assert expected["3"] == 400

    target = tmp_path / "out.jsonl"
    done = cluster_batch(source, target, glass_bundle)
    assert done.returncode == 1, done.stderr  # one line has failed
    assert "150 lines answered, 1 failed" in done.stderr
    assert texts(target) == expected

    rows = target.read_text("utf-8").splitlines(keepends=True)
    target.write_text("".join(rows[:70]) + rows[70][:20], "utf-8")
    cluster_batch(source, target, glass_bundle)
    assert target.read_text("utf-8").splitlines(keepends=True)[:70] == rows[:70]
    assert texts(target) == expected


def test_a_bundle_that_is_not_there_is_told_in_one_line(tmp_path: Path) -> None:
    """What is answered stays; here that is nothing."""
    source = tmp_path / "in.jsonl"
    source.write_text(requests(4)[0] + "\n", "utf-8")
    done = cluster_batch(source, tmp_path / "out.jsonl", tmp_path / "nowhere")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ortolan: error: an engine has failed; what is answered is kept")
    assert "nowhere" in last
