"""Golden pairs: `golden/DIALECT/NAME.json` holds a request and the answer that it must have.

They are meant to be read. What differs from run to run is written as a word: ID, CREATED (checked
to be the present, in the dialect's unit), FINGERPRINT, SEED where it was drawn, CACHED.
`UPDATE_GOLDEN=1` writes the answers anew.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from serving import Server, events

FOLDER = Path(__file__).with_name("golden")
PAIRS = sorted(FOLDER.glob("*/*.json"))
HEADERS = ("content-type", "x-ortolan-seed", "x-ortolan-ignored")
TOLERANCE = 1e-5  # of logprobs, between machines
VOLATILE = {"id": "ID", "created": "CREATED", "system_fingerprint": "FINGERPRINT"}


@pytest.mark.parametrize("path", PAIRS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_answer_is_the_golden_one(path: Path, speaker: Server) -> None:
    """To the letter, but for what cannot be."""
    pair = json.loads(path.read_text())
    answer = asked(speaker, pair, milliseconds=path.parent.name == "second")
    if os.environ.get("UPDATE_GOLDEN"):
        kept = {name: pair[name] for name in ("title", "path", "request")}
        text = json.dumps(kept | answer, indent=1, ensure_ascii=False)
        path.write_text(text + "\n")
        return
    expected = {name: pair[name] for name in ("status", "headers", "answer")}
    assert_alike(answer, expected, path.stem)


def test_there_are_pairs_for_every_dialect() -> None:
    """So that an empty folder does not pass."""
    folders = {path.parent.name for path in PAIRS}
    assert folders == {"openai", "tokensmind", "second", "together", "chat"}
    assert len(PAIRS) > 40


def asked(server: Server, pair: dict[str, Any], *, milliseconds: bool) -> dict[str, Any]:
    """Return status, headers and answer, in which volatile values are replaced by words."""
    response = server.post(pair["path"], pair["request"])
    shown = {name: response.headers[name] for name in HEADERS if name in response.headers}
    if "seed" not in pair["request"] and "/openai/" not in pair["path"]:
        shown = {name: value for name, value in shown.items() if name != "x-ortolan-seed"}
    if response.headers["content-type"] == "application/json":
        answer: Any = steady(response.json(), milliseconds=milliseconds)
    else:
        answer = [
            event if event == "[DONE]" else steady(json.loads(event), milliseconds=milliseconds)
            for event in events(response.content)
        ]
    drawn = {"cached_tokens": "CACHED"} | ({} if "seed" in pair["request"] else {"seed": "SEED"})
    answer = replaced(answer, drawn)
    return {"status": response.status_code, "headers": shown, "answer": answer}


def steady(document: dict[str, Any], *, milliseconds: bool) -> dict[str, Any]:
    """Return ``document`` with words for what differs from run to run."""
    if "created" in document:
        created_s = document["created"] / (1000 if milliseconds else 1)
        assert abs(created_s - time.time()) < 300
    return {name: VOLATILE.get(name, value) for name, value in document.items()}


def replaced(value: Any, words: dict[str, str]) -> Any:
    """Return ``value`` with a word for each key's value, at any depth."""
    if isinstance(value, list):
        return [replaced(item, words) for item in value]
    if isinstance(value, dict):
        return {name: words.get(name) or replaced(item, words) for name, item in value.items()}
    return value


def assert_alike(got: Any, want: Any, place: str) -> None:
    """Compare JSON values, numbers with a fraction within the tolerance, keys in their order."""
    if isinstance(want, float):
        assert got == pytest.approx(want, abs=TOLERANCE), place
    elif isinstance(want, dict):
        assert list(got) == list(want), place
        for name in want:
            assert_alike(got[name], want[name], f"{place}.{name}")
    elif isinstance(want, list):
        assert len(got) == len(want), place
        for index, item in enumerate(want):
            assert_alike(got[index], item, f"{place}[{index}]")
    else:
        assert got == want, place
