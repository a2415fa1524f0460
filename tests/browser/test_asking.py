"""Asking by the page: what it shows is what the API says, in each dialect, for each seed."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
from driving import OpenTab

from ortolan_server.dialects.registry import DIALECTS
from serving import Server

COMPLETIONS = [dialect for dialect in DIALECTS if dialect.name != "chat"]
NAMES = [dialect.name for dialect in COMPLETIONS]
SETTINGS = {"temperature": 0.7, "max_tokens": 64}  # where the page begins


def test_the_form_has_every_field_that_the_dialect_takes(server: Server, open_tab: OpenTab) -> None:
    """Each once: no alias, nothing that takes null alone."""
    tab = open_tab(server)
    tab.wait_until_ready()
    for dialect in COMPLETIONS:
        tab.choose("#dialects", dialect.name)
        shown = tab.texts("#fields label[for^=field-]")
        wanted = {field.name for field in dialect.fields} - {"model", "prompt", "suffix"}
        assert sorted(shown) == sorted(wanted)


@pytest.mark.parametrize("name", NAMES)
def test_a_text_is_that_of_the_api(server: Server, open_tab: OpenTab, name: str) -> None:
    tab = open_tab(server)
    tab.wait_until_ready()
    tab.choose("#dialects", name)
    tab.prompt("Once upon a time")
    tab.fill("seed", "7")
    tab.generate()
    path = next(dialect.path for dialect in COMPLETIONS if dialect.name == name)
    assert tab.answers() == [server.text("Once upon a time", path=path, seed=7, **SETTINGS)]
    assert tab.text(".card h3") == "seed 7"
    assert "tokens/s" in tab.text(".card .figures")


def test_seeds_stand_side_by_side(server: Server, open_tab: OpenTab) -> None:
    """And each gives what it gives alone."""
    tab = open_tab(server)
    tab.wait_until_ready()
    tab.prompt("The king")
    tab.fill("seed", "40")
    tab.select("#seeds", "3")
    tab.generate()
    assert tab.texts(".card h3") == ["seed 40", "seed 41", "seed 42"]
    alone = [server.text("The king", seed=seed, **SETTINGS) for seed in (40, 41, 42)]
    assert tab.answers() == alone
    assert len(set(alone)) == 3
    places = tab.run("return [...document.querySelectorAll('.card')].map((c) => c.offsetTop)")
    assert len(set(places)) == 1


def test_choices_of_one_request_have_cards_of_their_own(server: Server, open_tab: OpenTab) -> None:
    tab = open_tab(server)
    tab.wait_until_ready()
    tab.fill("n", "2")
    tab.fill("seed", "7")
    tab.generate()
    expected = server.complete("Once upon a time", seed=7, n=2, **SETTINGS)["choices"]
    assert tab.answers() == [choice["text"] for choice in expected]
    assert tab.texts(".card h3") == ["seed 7 · choice 1", "seed 7 · choice 2"]


def test_one_of_several_models_can_be_chosen(pair: Server, open_tab: OpenTab) -> None:
    """And the code names it as well."""
    tab = open_tab(pair)
    tab.wait_until_ready()
    _, second = names = [model["id"] for model in pair.client.get("/v1/models").json()["data"]]
    assert tab.texts("#models option") == names
    tab.select("#models", second)
    tab.fill("seed", "7")
    tab.generate()
    asked = {"model": second, "seed": 7, **SETTINGS}
    assert tab.answers() == [pair.text("Once upon a time", **asked)]
    assert f'"model": "{second}"' in tab.text("#code")


def test_a_request_without_a_stream_works_as_well(server: Server, open_tab: OpenTab) -> None:
    tab = open_tab(server)
    tab.wait_until_ready()
    tab.fill("seed", "7")
    tab.run(
        "for (const name of ['stream', 'stream_options']) "
        "document.querySelector(`#field-${name}`).click()"
    )
    tab.generate()
    assert tab.answers() == [server.text("Once upon a time", seed=7, **SETTINGS)]


def test_tokens_are_coloured_by_the_logprobs_of_the_api(server: Server, open_tab: OpenTab) -> None:
    tab = open_tab(server)
    tab.wait_until_ready()
    tab.fill("seed", "7")
    tab.choose("#view", "tokens")
    tab.generate()
    scores = server.complete("Once upon a time", seed=7, logprobs=5, **SETTINGS)["choices"][0][
        "logprobs"
    ]
    assert tab.texts(".token") == [text.replace("\n", "↵\n") for text in scores["tokens"]]
    shown = tab.run(
        "return [...document.querySelectorAll('.token')]"
        ".map((token) => Number(token.style.getPropertyValue('--surprise')))"
    )
    expected = [min(logprob / math.log(0.02), 1) for logprob in scores["token_logprobs"]]
    assert shown == pytest.approx(expected, abs=0.001)


def test_an_answer_without_logprobs_is_asked_for_again(server: Server, open_tab: OpenTab) -> None:
    """The same seed gives the same text, now with its tokens."""
    tab = open_tab(server)
    tab.wait_until_ready()
    tab.generate()
    text = tab.answers()
    tab.choose("#view", "tokens")
    tab.wait_for("document.querySelector('.note button')")
    tab.one(".note button").click()
    tab.wait_for("document.querySelectorAll('.token').length > 10")
    tab.wait_for("document.querySelector('#stop').disabled")
    tab.choose("#view", "text")
    tab.wait_for("!document.querySelector('.card .text').hidden")
    assert tab.answers() == text


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("language", ["curl", "python"])
def test_the_request_as_code_gives_the_text(
    server: Server, open_tab: OpenTab, name: str, language: str
) -> None:
    """With fields that openai's package knows and such that go beside them."""
    tab = open_tab(server)
    tab.wait_until_ready()
    tab.choose("#dialects", name)
    tab.prompt('It\'s "one" line\nand $HOME \\n')
    for field, text in (("seed", "9007199254740993"), ("top_k", "40"), ("stop", "\\n\\n")):
        tab.fill(field, text)
    tab.run("document.querySelector('#field-stream_options').click()")
    tab.generate()
    tab.choose("#code-format", language)
    code = tab.text("#code")
    command = ["bash", "-c", code] if language == "curl" else [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    [text] = tab.answers()
    if language == "python":
        assert done.stdout == f"{text}\n"
    else:
        assert done.stdout.endswith("data: [DONE]\n\n")
    path = next(dialect.path for dialect in COMPLETIONS if dialect.name == name)
    expected = server.text(
        'It\'s "one" line\nand $HOME \\n',
        path=path,
        seed=9007199254740993,
        top_k=40,
        stop="\n\n",
        **SETTINGS,
    )
    assert text == expected


def test_every_argument_that_the_code_uses_is_one_of_openais_package(
    server: Server, open_tab: OpenTab
) -> None:
    import inspect

    from openai.resources.completions import Completions

    tab = open_tab(server)
    used = tab.run("return (await import('/page/snippets.js')).OPENAI_ARGUMENTS")
    known = set(inspect.signature(Completions.create).parameters)
    fields = {field.name for dialect in COMPLETIONS for field in dialect.fields}
    assert set(used) == known & fields - {"suffix"}
