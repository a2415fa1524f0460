"""The `llm` command with a model of its own configuration."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from wire import API_KEY, BASE_URL, MODEL, PROMPT, text

folder = Path(tempfile.mkdtemp())
(folder / "extra-openai-models.yaml").write_text(
    f"- model_id: served\n  model_name: {MODEL}\n  api_base: {BASE_URL}\n"
    "  api_key_name: served\n  completion: true\n"
)


def llm(*arguments):
    """Return what the command prints and its exit code."""
    command = [Path(sys.executable).with_name("llm"), *arguments]
    environment = {**os.environ, "LLM_USER_PATH": str(folder)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr, done.returncode


llm("keys", "set", "served", "--value", API_KEY)
greedy = ("-m", "served", "-o", "max_tokens", "12", "-o", "temperature", "0")
want = text() + "\n"
assert llm(*greedy, "--no-stream", PROMPT) == (want, 0)
assert llm(*greedy, PROMPT) == (want, 0)
seeded = ("-m", "served", "-o", "max_tokens", "12", "-o", "seed", "5", PROMPT)
assert llm(*seeded) == llm(*seeded)
refused, code = llm("-m", "served", "--key", "sk-other", PROMPT)
assert code != 0
assert "API key" in refused
