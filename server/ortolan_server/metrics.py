"""Figures for Prometheus: what the engine counts, and what clients see."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ortolan_runtime.stepper import Statistics
from ortolan_runtime.version import __version__
from ortolan_server.observation import TokenTimes, UsageRecord

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Nobody is told this status: the client was gone. The number is what nginx logs for it.
CLIENT_LEFT = 499

_FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_NEXT_TOKEN_S = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1)
_REQUEST_S = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)

# Field of Statistics: the metric's name, what it says.
GAUGES = (
    ("slots", "slots", "Sequences that can run at once."),
    ("running", "running_sequences", "Sequences in slots."),
    ("waiting", "waiting_sequences", "Sequences in the queue."),
    ("kv_budget_tokens", "kv_budget_tokens", "Tokens that the KV cache may hold."),
    ("kv_used_tokens", "kv_used_tokens", "Tokens of running sequences in the KV cache."),
    ("kv_cached_tokens", "kv_cached_tokens", "Tokens kept in the KV cache for reuse."),
)
_COUNTERS = (
    ("prompt_tokens", "prompt_tokens", "Prompt tokens that were prefilled."),
    ("cached_prompt_tokens", "cached_prompt_tokens", "Prompt tokens taken from the prefix cache."),
    ("generated_tokens", "generated_tokens", "Tokens that were generated."),
    ("drafted_tokens", "drafted_tokens", "Tokens that speculation guessed."),
    ("accepted_tokens", "accepted_tokens", "Guessed tokens that were right."),
    ("preemptions", "preemptions", "Running sequences that went back to the queue."),
    ("evictions", "evictions", "Prefixes that were dropped from the KV cache."),
)


class Metrics:
    """The registry of one server; nothing of it is global."""

    def __init__(
        self, statistics: Callable[[], Mapping[str, Statistics]], in_flight: Callable[[], float]
    ) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "ortolan_requests", "HTTP requests.", ["route", "status"], registry=registry
        )
        self.request_s = Histogram(
            "ortolan_request_seconds",
            "Time from a request's header to the end of its response.",
            ["route"],
            buckets=_REQUEST_S,
            registry=registry,
        )
        self._endings = Counter(
            "ortolan_completions",
            "Completion requests by their ending.",
            ["model", "ending"],
            registry=registry,
        )
        self._delivered = Counter(
            "ortolan_delivered_tokens",
            "Generated tokens that were sent.",
            ["model"],
            registry=registry,
        )
        self._first = Histogram(
            "ortolan_time_to_first_token_seconds",
            "Time from a completion request to its first token.",
            ["model"],
            buckets=_FIRST_TOKEN_S,
            registry=registry,
        )
        self._next = Histogram(
            "ortolan_inter_token_seconds",
            "Time between two tokens of one sequence.",
            ["model"],
            buckets=_NEXT_TOKEN_S,
            registry=registry,
        )
        Gauge("ortolan_requests_in_flight", "HTTP requests now.", registry=registry).set_function(
            in_flight
        )
        Gauge("ortolan_info", "The version.", ["version"], registry=registry).labels(
            __version__
        ).set(1)
        self._registry.register(_EngineCollector(statistics))
        ProcessCollector(registry=self._registry)

    @property
    def token_times(self) -> TokenTimes:
        """Return who is told how long clients wait for tokens."""
        return TokenTimes(
            lambda model, seconds: self._first.labels(model).observe(seconds),
            lambda model, seconds: self._next.labels(model).observe(seconds),
        )

    def count(self, record: UsageRecord) -> None:
        """Count one completion request that is over."""
        self._endings.labels(record.model, record.ending).inc()
        self._delivered.labels(record.model).inc(record.delivered_tokens)

    def text(self) -> bytes:
        """Return all figures in Prometheus's text format."""
        return generate_latest(self._registry)


class MetricsRoute:
    """Answers a scrape."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        body = self._metrics.text()
        headers = [
            (b"content-type", CONTENT_TYPE.encode()),
            (b"content-length", str(len(body)).encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class Measured:
    """Counts and times every request by its route; paths that are none share one name."""

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: Collection[str]) -> None:
        self._app = app
        self._metrics = metrics
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        started = time.perf_counter()
        status = CLIENT_LEFT

        async def watched_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        finally:
            route = self._route(scope["path"])
            self._metrics.requests.labels(route, str(status)).inc()
            self._metrics.request_s.labels(route).observe(time.perf_counter() - started)

    def _route(self, path: str) -> str:
        """Return a name that no client can invent: each is a series that is kept for ever."""
        bare = path.rstrip("/") or "/"
        return bare if bare in self._paths else "other"


class _EngineCollector(Collector):
    """The engines' own counts by model, read when they are asked for."""

    def __init__(self, statistics: Callable[[], Mapping[str, Statistics]]) -> None:
        self._statistics = statistics

    def collect(self) -> Iterator[Metric]:
        """Yield every figure of the engines."""
        by_model = self._statistics()
        for field, name, meaning in GAUGES:
            gauge = GaugeMetricFamily(f"ortolan_{name}", meaning, labels=["model"])
            for model, now in by_model.items():
                gauge.add_metric([model], getattr(now, field))
            yield gauge
        for field, name, meaning in _COUNTERS:
            counter = CounterMetricFamily(f"ortolan_{name}", meaning, labels=["model"])
            for model, now in by_model.items():
                counter.add_metric([model], getattr(now, field))
            yield counter
        yield _steps(by_model)
        yield _step_times(by_model)


def _steps(by_model: Mapping[str, Statistics]) -> Metric:
    steps = CounterMetricFamily("ortolan_steps", "Steps of the engine.", labels=["model", "kind"])
    for model, now in by_model.items():
        steps.add_metric([model, "prefill"], now.prefill_steps)
        steps.add_metric([model, "decode"], now.decode_steps)
    return steps


def _step_times(by_model: Mapping[str, Statistics]) -> Metric:
    seconds = CounterMetricFamily(
        "ortolan_step_seconds",
        "Time in steps: in the model, and around it (scheduling, sampling, text).",
        labels=["model", "kind", "part"],
    )
    for model, now in by_model.items():
        seconds.add_metric([model, "prefill", "model"], now.prefill_model_s)
        seconds.add_metric([model, "prefill", "around"], now.prefill_s - now.prefill_model_s)
        seconds.add_metric([model, "decode", "model"], now.decode_model_s)
        seconds.add_metric([model, "decode", "around"], now.decode_s - now.decode_model_s)
    return seconds
