"""llama-benchy, which measures chat alone: a model without a template is told so.

The text of its prompts is a book that it fetches; here that comes from this machine.
"""

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from wire import API_KEY, BASE_URL, MODEL, TOKENIZER


class Book(BaseHTTPRequestHandler):
    """Gives a text, whatever is asked for."""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"There was a table set out under a tree in front of the house. " * 1000)


with ThreadingHTTPServer(("127.0.0.1", 0), Book) as shelf:
    threading.Thread(target=shelf.serve_forever, daemon=True).start()
    command = [Path(sys.executable).with_name("llama-benchy"), "--base-url", BASE_URL]
    command += ["--api-key", API_KEY, "--model", MODEL, "--tokenizer", TOKENIZER]
    command += ["--book-url", f"http://127.0.0.1:{shelf.server_port}/book.txt"]
    command += ["--pp", "16", "--tg", "8", "--runs", "1", "--skip-coherence"]
    command += ["--exit-on-first-fail"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    shelf.shutdown()
assert done.returncode != 0, done.stdout
assert "chat template" in done.stdout + done.stderr, done.stdout + done.stderr
