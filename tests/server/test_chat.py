"""Chat: messages through a template, then the same engine."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ortolan_runtime.errors import InvalidParameter
from ortolan_server.chat_template import ChatTemplate
from ortolan_server.dialects.chat import CHAT
from ortolan_server.errors import ApiError
from ortolan_server.fields import read_values
from ortolan_server.kinds import Facts
from ortolan_server.request import CompletionRequest

SOURCE = """\
{%- for message in messages %}
{%- if message.role not in ("system", "user", "assistant") %}
{{- raise_exception("no role " + message.role) }}
{%- endif %}
{{- "<" + message.role + ">" + message.content + eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<assistant>" }}{% endif %}"""

USER = {"role": "user", "content": "Hi"}


@pytest.fixture
def chatty(facts: Facts) -> Facts:
    """Give facts of a model with a template."""
    template = ChatTemplate(SOURCE, bos_token="", eos_token="</s>")
    return msgspec.structs.replace(facts, chat_template=template)


def made(facts: Facts, messages: Any, **fields: Any) -> CompletionRequest:
    """Return the canonical request of a chat."""
    body = {"model": "m", "messages": messages, **fields}
    values = read_values(body, CHAT.table(is_strict=False), facts)
    return CHAT.make_request(values, CHAT, facts)


def test_messages_become_the_prompt_that_the_template_makes(chatty: Facts) -> None:
    """Parts of text are joined, and no second BOS is put in front."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    request = made(chatty, [{"role": "system", "content": parts}, USER])
    assert request.prompts == ("<system>ab</s><user>Hi</s><assistant>",)
    assert request.add_special_tokens is False
    assert request.max_tokens is None


def test_both_names_of_max_tokens_are_taken(chatty: Facts) -> None:
    """The newer one too."""
    assert made(chatty, [USER], max_completion_tokens=5).max_tokens == 5
    assert made(chatty, [USER], max_tokens=5).max_tokens == 5


def test_logprobs_are_a_flag_with_a_count(chatty: Facts) -> None:
    """The count alone makes no sense."""
    assert made(chatty, [USER]).logprobs is None
    assert made(chatty, [USER], logprobs=True).logprobs == 0
    assert made(chatty, [USER], logprobs=True, top_logprobs=3).logprobs == 3
    with pytest.raises(ApiError, match="`top_logprobs` needs `logprobs`"):
        made(chatty, [USER], top_logprobs=3)


@pytest.mark.parametrize(
    "messages",
    [
        [],
        "Hi",
        ["Hi"],
        [{}],
        [{"role": "user"}],
        [{"role": 5, "content": "x"}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        [{"role": "tool", "content": "x"}],
    ],
)
def test_messages_that_are_none_are_refused(chatty: Facts, messages: Any) -> None:
    """By the check or by the template's own words."""
    with pytest.raises(ApiError) as caught:
        made(chatty, messages)
    assert caught.value.param == "messages"


def test_tools_are_refused_by_name(chatty: Facts) -> None:
    """What is accepted and ignored misleads."""
    with pytest.raises(ApiError, match="`tools` is not supported"):
        made(chatty, [USER], tools=[{"type": "function"}])
    assert made(chatty, [USER], tools=None, response_format={"type": "text"})


def test_a_model_without_a_template_says_so(facts: Facts) -> None:
    """And what to do instead."""
    with pytest.raises(ApiError, match="has no chat template; use /v1/completions"):
        made(facts, [USER])


def test_what_transformers_gives_to_templates_is_there() -> None:
    """Tags and filters of templates that many models come with."""
    source = (
        "{% for message in messages %}{% generation %}{{ message.content }}{% endgeneration %}"
        "{{ message | tojson(ensure_ascii=False, indent=None, sort_keys=True) }}"
        "{% break %}{% endfor %}"
    )
    template = ChatTemplate(source, bos_token="", eos_token="")
    user = {"role": "user", "content": "é"}
    assert template.render([user, user]) == 'é{"content": "é", "role": "user"}'


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{% set _ = messages.append(1) %}",
        "{{ 1 / 0 }}",
        "{{ messages[9].content }}{{ undefined.attribute }}",
    ],
)
def test_a_template_cannot_reach_out_of_its_sandbox(source: str) -> None:
    """It comes with the model, and a model comes from anywhere."""
    template = ChatTemplate(source, bos_token="", eos_token="")
    with pytest.raises(InvalidParameter, match="chat template"):
        template.render([USER])


def test_a_template_that_is_none_is_refused_when_it_is_loaded() -> None:
    """Not at the first request."""
    with pytest.raises(InvalidParameter, match="must be a Jinja template"):
        ChatTemplate("{% if %}", bos_token="", eos_token="")
