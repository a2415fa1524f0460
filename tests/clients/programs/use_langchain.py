"""langchain-openai's class for text completions."""

import asyncio

import openai
from langchain_openai import OpenAI
from wire import API_KEY, BASE_URL, MODEL, PROMPT, raises, text


def model(**options):
    """Return a model that does not try again."""
    fixed = {"model": MODEL, "base_url": BASE_URL, "api_key": API_KEY, "max_retries": 0}
    return OpenAI(**{**fixed, "temperature": 0, "max_tokens": 12, **options})


want = text()
assert model().invoke(PROMPT) == want
assert "".join(model().stream(PROMPT)) == want
assert asyncio.run(model().ainvoke(PROMPT)) == want
assert model(streaming=True).invoke(PROMPT) == want

prompts = [PROMPT, "The table", "Alice"]
batch = model().generate(prompts)  # one request with three prompts
assert [choices[0].text for choices in batch.generations] == [text(p) for p in prompts]
assert batch.llm_output["token_usage"]["total_tokens"] > 0
assert model().batch(prompts) == [text(p) for p in prompts]

two = model(n=2, best_of=2, temperature=1, seed=5).generate(prompts[:2])
assert [len(choices) for choices in two.generations] == [2, 2]

stop = want[6:9]
assert model().invoke(PROMPT, stop=[stop]) == want[: want.index(stop)]
info = model(logprobs=2).generate([PROMPT]).generations[0][0].generation_info
assert info["logprobs"]["tokens"]

raises(openai.AuthenticationError, lambda: model(api_key="sk-other").invoke(PROMPT))
raises(openai.BadRequestError, lambda: model(temperature=9).invoke(PROMPT))
