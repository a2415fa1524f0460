"""What a container sees of itself, as JSON; run inside, with the key in the environment."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import urllib.request


def complete() -> str:
    """Return the text of a completion."""
    body = {"model": "glass", "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
    request = urllib.request.Request(
        "http://127.0.0.1:8000/v1/completions",
        json.dumps(body).encode(),
        {
            "content-type": "application/json",
            "authorization": f"Bearer {os.environ['ORTOLAN_API_KEY']}",
        },
    )
    with urllib.request.urlopen(request) as response:
        text: str = json.load(response)["choices"][0]["text"]
        return text


def can_write() -> bool:
    """Return whether the program's own folder can be changed."""
    try:
        with open("/opt/ortolan/new", "w"):
            return True
    except OSError:
        return False


json.dump(
    {
        "uid": os.getuid(),
        "text": complete(),
        "can_write": can_write(),
        "too_much": [
            name for name in ("pip", "torch", "transformers") if importlib.util.find_spec(name)
        ],
    },
    sys.stdout,
)
