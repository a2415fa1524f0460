"""Runs Ortolan on a Ray cluster of this machine until its stdin ends: `ray_cluster.py PORT ARGS`.

ARGS are the arguments of ``ortolan_server.ray.app`` as JSON. Prints a line when requests are taken.
"""

from __future__ import annotations

import json
import sys

import ray
from ray import serve

from ortolan_server.ray import app


def main(port: str, arguments: str) -> None:
    """Serve until told to stop."""
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=200 << 20)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": int(port)})
        serve.run(app(json.loads(arguments)), name="ortolan", route_prefix="/")
        print("ready", flush=True)
        sys.stdin.read()
        serve.shutdown()
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
