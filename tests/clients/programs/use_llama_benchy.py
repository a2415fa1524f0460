"""llama-benchy, which measures chat alone: a model without a template is told so."""

import subprocess
import sys
from pathlib import Path

from wire import API_KEY, BASE_URL, MODEL, TOKENIZER

command = [Path(sys.executable).with_name("llama-benchy"), "--base-url", BASE_URL]
command += ["--api-key", API_KEY, "--model", MODEL, "--tokenizer", TOKENIZER]
command += ["--pp", "16", "--tg", "8", "--runs", "1", "--skip-coherence", "--exit-on-first-fail"]
done = subprocess.run(command, capture_output=True, text=True, timeout=300)
assert done.returncode != 0
assert "chat template" in done.stdout + done.stderr
