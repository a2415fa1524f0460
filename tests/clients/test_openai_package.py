"""The openai package for Python: what a user of `client.completions.create` relies on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from serving import Server

KEY = "sk-clients"
PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    """Give a client that does not try again."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as made:
        yield made


def test_the_model_is_listed_and_found(client: openai.OpenAI) -> None:
    """As tools do before anything else."""
    assert [model.id for model in client.models.list()] == ["glass"]
    assert client.models.retrieve("glass").id == "glass"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_a_completion_and_its_stream_are_one_text(client: openai.OpenAI) -> None:
    """With the same usage."""
    fields: dict[str, Any] = {
        "model": "glass",
        "prompt": PROMPT,
        "max_tokens": 24,
        "temperature": 0,
    }
    client.completions.create(**fields)  # so that the prompt is in the cache for both
    whole = client.completions.create(**fields)
    *chunks, last = client.completions.create(
        **fields, stream=True, stream_options={"include_usage": True}
    )
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert last.choices == []
    assert last.usage == whole.usage


def test_chat_answers_400_without_a_template(client: openai.OpenAI) -> None:
    """Saying what to do."""
    with pytest.raises(openai.BadRequestError, match="no chat template"):
        client.chat.completions.create(
            model="glass", messages=[{"role": "user", "content": "Hello"}]
        )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 3}, "temperature"),
        ({"n": 0}, "n"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"max_tokens": 1000}, "max_tokens"),
    ],
)
def test_a_bad_field_is_a_bad_request_that_names_it(
    client: openai.OpenAI, fields: dict[str, Any], param: str
) -> None:
    """The status decides the exception, the body its fields."""
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**{"model": "glass", "prompt": PROMPT, **fields})
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"


def test_keys_and_models_have_exceptions_of_their_own(
    client: openai.OpenAI, server: Server
) -> None:
    """With a request id in each."""
    stranger = client.with_options(api_key="sk-other")
    with pytest.raises(openai.AuthenticationError) as caught:
        stranger.completions.create(model="glass", prompt=PROMPT)
    assert caught.value.request_id
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="other", prompt=PROMPT)
    assert missing.value.code == "model_not_found"


def test_a_stream_that_is_left_ends_there(client: openai.OpenAI) -> None:
    """And the next request is served."""
    with client.completions.create(
        model="glass", prompt=PROMPT, max_tokens=100, stream=True
    ) as stream:
        next(iter(stream))
    assert client.completions.create(model="glass", prompt=PROMPT, max_tokens=1).choices
