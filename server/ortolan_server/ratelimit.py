"""What each key may use in a minute and at once, and the headers that tell its client so.

The models that a key may use are checked where the model is chosen. Requests are counted as they
come. Tokens are counted when a request is over, since nobody knows before how many it takes: a key
whose tokens are used up waits until its allowance has grown back.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ortolan_server.auth import key_of
from ortolan_server.edge import request_id
from ortolan_server.errors import RATE_LIMIT, ApiError
from ortolan_server.keys import Key, KeyLimits
from ortolan_server.observation import Observer, UsageRecord

Timer = Callable[[], float]


class Allowance:
    """An amount that is used up and grows back within a minute."""

    def __init__(self, per_minute: int, now: float) -> None:
        self.per_minute = per_minute
        self._left = float(per_minute)
        self._as_of = now

    def left(self, now: float) -> float:
        """Return how much is left; below 0 when more was used than there was."""
        grown = (now - self._as_of) * self.per_minute / 60
        self._left = min(float(self.per_minute), self._left + grown)
        self._as_of = now
        return self._left

    def use(self, amount: float, now: float) -> None:
        """Use some, whether or not it is there."""
        self._left = self.left(now) - amount

    def wait_s(self, needed: float, now: float) -> float:
        """Return the seconds until ``needed`` is there."""
        return max(0.0, (needed - self.left(now)) * 60 / self.per_minute)


@dataclass(slots=True)
class _Account:
    """What one key has used."""

    limits: KeyLimits
    requests: Allowance | None
    tokens: Allowance | None
    running: int = 0


class RateLimits:
    """Passes completion requests within the limits of their key; others end with an ApiError.

    ``dialects`` are the names of the dialects by their paths.
    """

    def __init__(
        self,
        app: ASGIApp,
        dialects: Mapping[str, str],
        observer: Observer,
        timer: Timer = time.monotonic,
    ) -> None:
        self._app = app
        self._dialects = dialects
        self._observer = observer
        self._timer = timer
        self._accounts: dict[str, _Account] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on. Raises ApiError."""
        key = key_of(scope)
        dialect = self._dialects.get(scope["path"].rstrip("/"))
        if key is None or dialect is None or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        account = self._account(key)
        try:
            self._admit(account)
        except ApiError:
            # It never comes to where requests are observed, and has its record all the same.
            observation = self._observer.begin(
                request_id=request_id(scope), key_id=key.id, dialect=dialect
            )
            with observation.answering():
                raise

        async def send_with_limits(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self._headers(account))
            await send(message)

        account.running += 1
        try:
            await self._app(scope, receive, send_with_limits)
        except ApiError as error:
            error.headers = {**error.headers, **self._headers(account)}
            raise
        finally:
            account.running -= 1

    def charge(self, record: UsageRecord) -> None:
        """Count the tokens of a request that is over."""
        account = self._accounts.get(record.key_id or "")
        if account is not None and account.tokens is not None:
            used = record.prompt_tokens + record.generated_tokens
            account.tokens.use(used, self._timer())

    def _account(self, key: Key) -> _Account:
        """Return the account of ``key``, a new one when its limits were changed."""
        account = self._accounts.get(key.id)
        if account is None or account.limits != key.limits:
            now, limits = self._timer(), key.limits
            account = _Account(
                limits,
                _allowance(limits.requests_per_minute, now),
                _allowance(limits.tokens_per_minute, now),
            )
            self._accounts[key.id] = account
        return account

    def _admit(self, account: _Account) -> None:
        """Count a request, or refuse it. Raises ApiError."""
        now, limits = self._timer(), account.limits
        if limits.concurrency is not None and account.running >= limits.concurrency:
            raise self._refusal(account, "requests at once", limits.concurrency, 1.0)
        if account.tokens is not None and (wait_s := account.tokens.wait_s(1, now)) > 0:
            raise self._refusal(account, "tokens per minute", account.tokens.per_minute, wait_s)
        if account.requests is not None:
            if (wait_s := account.requests.wait_s(1, now)) > 0:
                limit = account.requests.per_minute
                raise self._refusal(account, "requests per minute", limit, wait_s)
            account.requests.use(1, now)

    def _refusal(self, account: _Account, what: str, limit: int, wait_s: float) -> ApiError:
        return ApiError(
            429,
            f"the key's limit of {limit} {what} is used up; try again in {wait_s:.1f} s",
            type=RATE_LIMIT,
            code="rate_limit_exceeded",
            headers={"retry-after": str(math.ceil(wait_s)), **self._headers(account)},
        )

    def _headers(self, account: _Account) -> dict[str, str]:
        headers = {}
        now = self._timer()
        for name, allowance in (("requests", account.requests), ("tokens", account.tokens)):
            if allowance is None:
                continue
            limit = allowance.per_minute
            headers[f"x-ratelimit-limit-{name}"] = str(limit)
            headers[f"x-ratelimit-remaining-{name}"] = str(max(0, math.floor(allowance.left(now))))
            headers[f"x-ratelimit-reset-{name}"] = f"{allowance.wait_s(limit, now):.3f}s"
        return headers


def _allowance(per_minute: int | None, now: float) -> Allowance | None:
    return None if per_minute is None else Allowance(per_minute, now)
