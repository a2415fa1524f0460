"""llama-index's OpenAILike as a model that is not for chat."""

import asyncio

import openai
from llama_index.llms.openai_like import OpenAILike
from wire import API_KEY, BASE_URL, MODEL, PROMPT, raises, text


def model(**options):
    """Return a model that does not try again."""
    fixed = {"model": MODEL, "api_base": BASE_URL, "api_key": API_KEY, "is_chat_model": False}
    fixed |= {"temperature": 0, "max_tokens": 12, "max_retries": 0, "context_window": 128}
    return OpenAILike(**{**fixed, **options})


async def streamed():
    """Return the last of an asynchronous stream."""
    return [part async for part in await model().astream_complete(PROMPT)][-1].text


want = text()
answer = model().complete(PROMPT)
assert answer.text == want
assert answer.additional_kwargs["completion_tokens"] == 12
parts = list(model().stream_complete(PROMPT))
assert parts[-1].text == "".join(part.delta for part in parts) == want
assert asyncio.run(model().acomplete(PROMPT)).text == want
assert asyncio.run(streamed()) == want
assert model(logprobs=True, top_logprobs=2).complete(PROMPT).logprobs
seeded = {"temperature": 1, "additional_kwargs": {"seed": 3, "stop": ["\n\n"]}}
assert model(**seeded).complete(PROMPT).text == model(**seeded).complete(PROMPT).text

raises(openai.AuthenticationError, lambda: model(api_key="sk-other").complete(PROMPT))
raises(openai.NotFoundError, lambda: model(model="other").complete(PROMPT))
