"""What every program needs: where the server is, and its own words by plain HTTP."""

from __future__ import annotations

import json
import os
import urllib.request

SERVER_URL = os.environ["SERVER_URL"]
BASE_URL = os.environ["BASE_URL"]
API_KEY = os.environ["API_KEY"]
MODEL = os.environ["MODEL"]
TOKENIZER = os.environ["TOKENIZER"]
PROMPT = "Once upon a time"


def post(path, body):
    """Return the answer to a JSON body."""
    headers = {"content-type": "application/json", "authorization": f"Bearer {API_KEY}"}
    request = urllib.request.Request(
        SERVER_URL + path, json.dumps(body).encode(), headers, method="POST"
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def text(prompt=PROMPT, **fields):
    """Return a greedy completion."""
    body = {"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 12, **fields}
    return post("/v1/completions", body)["choices"][0]["text"]


def raises(exception, call):
    """Check that ``call`` raises exactly ``exception``."""
    raised = None
    try:
        call()
    except Exception as caught:
        raised = caught
    assert type(raised) is exception, raised
