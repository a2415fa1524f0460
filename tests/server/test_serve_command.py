"""`ortolan serve` as it is typed: several bundles, options from everywhere, one end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx

from ortolan_server.keys import add_key
from scripted import write_babbling_bundle


def test_serve_takes_folders_and_options_from_everywhere(tmp_path: Path) -> None:
    """A folder of bundles and a named one, which share the memory; one is replaced, all end."""
    for name in ("a", "b"):
        write_babbling_bundle(tmp_path / "models" / name, name=name, context_length=128)
    long = write_babbling_bundle(tmp_path / "long", name="long", context_length=4096)
    keys = tmp_path / "keys.json"
    _, admin = add_key(keys, "admin", kind="admin")
    file = tmp_path / "ortolan.toml"
    file.write_text(f'[serve]\nport = 0\nslots = 2\nkeys = "{keys}"\n')
    command = [sys.executable, "-m", "ortolan_server", "serve", str(tmp_path / "models")]
    command += [f"big={long}", "--config", str(file)]
    environment = {
        **os.environ,
        "ORTOLAN_CACHE": str(tmp_path / "cache"),
        "ORTOLAN_API_KEY": "sk-environment",
        "ORTOLAN_KV_MEMORY": "64KiB",
        "ORTOLAN_THREADS": "1",
    }
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        log: list[str] = []
        for line in process.stderr:
            log.append(line)
            if match := re.search(r"listening on (\S+)", line):
                break
        assert match is not None, log
        bearer = {"authorization": "Bearer sk-environment"}
        with httpx.Client(base_url=match[1], headers=bearer, timeout=30) as client:
            assert client.get("/v1/models", headers={"authorization": ""}).status_code == 401
            cards = client.get("/v1/models").json()["data"]
            assert [card["id"] for card in cards] == ["a", "b", "big"]
            budgets = kv_budgets(client)
            answer = client.post(
                "/admin/models",
                json={"bundle": str(tmp_path / "models" / "a"), "model": "big"},
                headers={"authorization": f"Bearer {admin}"},
            )
            assert answer.json()["id"] == "big", answer.text  # a name that was given is kept
            assert client.get("/v1/models/big").json()["max_model_len"] == 128
            body = {"model": "big", "prompt": "x", "max_tokens": 3}
            assert client.post("/v1/completions", json=body).status_code == 200
        process.send_signal(signal.SIGTERM)
        log += process.stderr
        assert process.wait(20) == 0, "".join(log)
    assert [line.split(":")[1].split()[0] for line in log[:3]] == ["a", "b", "long"]
    # The small ones can use 2 slots x 128 tokens each; the rest is the long one's.
    assert budgets["a"] == budgets["b"] == 256
    assert budgets["big"] > 1000


def kv_budgets(client: httpx.Client) -> dict[str, int]:
    """Return the tokens that each model's KV cache may hold."""
    found = re.findall(
        r'^ortolan_kv_budget_tokens\{model="(\w+)"\} (\S+)$',
        client.get("/metrics").text,
        re.MULTILINE,
    )
    return {model: int(float(value)) for model, value in found}
