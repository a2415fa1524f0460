"""schemathesis on each document that the server publishes.

Requests are kept small and within the rules that a JSON Schema cannot tell: the context, `n` and
`best_of`, streams with their options.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from wire import API_KEY, SERVER_URL

HOOKS = """
import schemathesis


@schemathesis.hook
def before_call(context, case, kwargs):
    body = case.body
    if not isinstance(body, dict):
        return
    lower(body, "max_tokens", 4)
    lower(body, "max_completion_tokens", 4)
    lower(body, "n", 2)
    if whole(body.get("best_of")):
        body["best_of"] = body["n"] if whole(body.get("n")) else 1
    if whole(body.get("min_tokens")) and body["min_tokens"] > 0:
        body["min_tokens"] = 0
    if warm(body.get("temperature")) and warm(body.get("tempature")):
        body["tempature"] = body["temperature"]
    if isinstance(body.get("logit_bias"), dict) and case.path == "/openai/completions":
        # Text that is one token is a key too, which no schema can tell from other text.
        numbers = {key: value for key, value in body["logit_bias"].items() if key.isdigit()}
        body["logit_bias"] = numbers
    if isinstance(body.get("prompt"), list):
        body["prompt"] = body["prompt"][:3]
    if body.get("stream_options") is not None and body.get("stream") in (None, False):
        body["stream_options"] = None
    if body.get("logprobs") in (None, False) and whole(body.get("top_logprobs")):
        body["top_logprobs"] = None


def lower(body, name, limit):
    if whole(body.get(name)) and 0 < body[name] < 2**63:
        body[name] = min(body[name], limit)


def warm(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 2


def whole(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == int(value)
"""
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_schema_conformance,unsupported_method,ignored_auth,"
    "negative_data_rejection,positive_data_acceptance"
)

work = Path(tempfile.mkdtemp())
(work / "hooks.py").write_text(HOOKS)
for dialect in ("openai", "tokensmind", "second", "together"):
    command = [Path(sys.executable).with_name("schemathesis"), "--no-color", "run"]
    command += [f"{SERVER_URL}/openapi/{dialect}.json", "--url", SERVER_URL]
    command += ["-H", f"Authorization: Bearer {API_KEY}", "--checks", CHECKS]
    command += ["--phases", "coverage,fuzzing", "--max-examples", "40", "--seed", "1"]
    command += ["--generation-database", "none", "--suppress-health-check", "all"]
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": str(work / "hooks.py")}
    done = subprocess.run(
        command, cwd=work, env=environment, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, (dialect, done.stdout[-4000:], done.stderr[-500:])
