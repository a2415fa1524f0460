"""litellm's text_completion, which also is what its proxy forwards."""

import asyncio
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from wire import API_KEY, BASE_URL, MODEL, PROMPT, raises, text

litellm.telemetry = False


def complete(prompt=PROMPT, model=MODEL, **options):
    """Return a completion of the package's own type."""
    return litellm.text_completion(**arguments(prompt, model, **options))


def arguments(prompt, model, **options):
    """Return a call's arguments."""
    fixed = {"model": f"text-completion-openai/{model}", "prompt": prompt, "num_retries": 0}
    fixed |= {"api_base": BASE_URL, "api_key": API_KEY, "max_retries": 0}
    return {**fixed, "max_tokens": 12, "temperature": 0, **options}


want = text()
answer = complete()
assert answer.choices[0].text == want
assert answer.usage.completion_tokens == 12
chunks = list(complete(stream=True, stream_options={"include_usage": True}))
assert "".join(chunk.choices[0].text or "" for chunk in chunks if chunk.choices) == want
assert [c.usage for c in chunks if getattr(c, "usage", None)][-1].completion_tokens == 12
assert [choice.text for choice in complete([PROMPT, "Alice"]).choices] == [want, text("Alice")]
assert len(complete(n=2, temperature=1, seed=1).choices) == 2
assert complete(echo=True).choices[0].text == PROMPT + want
asynchronous = litellm.atext_completion(**arguments(PROMPT, MODEL))
assert asyncio.run(asynchronous).choices[0].text == want

raises(litellm.AuthenticationError, lambda: complete(api_key="sk-other"))
raises(litellm.BadRequestError, lambda: complete(temperature=9))
raises(litellm.NotFoundError, lambda: complete(model="other"))
raises(litellm.ContextWindowExceededError, lambda: complete("word " * 1000))
