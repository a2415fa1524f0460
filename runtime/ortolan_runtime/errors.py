"""What can go wrong in the runtime, as one tree.

    OrtolanError
    ├── BundleError              the bundle is missing, damaged, or of another format
    ├── ProviderError            the execution provider that was asked for is not there
    ├── MemoryRefused            the system gives no address space for the KV cache
    ├── InvalidParameter         a request's field is out of its range
    │   └── ContextLengthExceeded    prompt and completion do not fit into the context
    ├── EngineBusy               the queue is full; try again later
    └── EngineClosed             the engine is draining, closed, or its thread has died

Errors of onnxruntime and tokenizers are translated where they are called, never above.
"""

from __future__ import annotations


class OrtolanError(Exception):
    """Any failure that the runtime foresees; its message is one line fit for a user."""


class BundleError(OrtolanError):
    """The bundle cannot be trusted or read; the message says how to mend it."""


class ProviderError(OrtolanError):
    """The execution provider that was asked for is not available."""


class MemoryRefused(OrtolanError):
    """The system gives no address space for the KV cache."""


class InvalidParameter(OrtolanError):
    """A request's field is outside its range.

    ``field`` is the name that the caller used, ``requirement`` the accepted range in words,
    ``value`` what was given.
    """

    def __init__(self, field: str, requirement: str, value: object) -> None:
        self.field = field
        self.requirement = requirement
        self.value = value
        super().__init__(f"`{field}` {requirement}, got {_shortened(value)}")


class ContextLengthExceeded(InvalidParameter):
    """The prompt and the completion that was asked for do not fit into the context."""

    def __init__(self, *, context_length: int, prompt_tokens: int, max_tokens: int) -> None:
        self.context_length = context_length
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        super().__init__(
            "max_tokens",
            f"+ prompt must be <= {context_length} tokens",
            f"{prompt_tokens + max_tokens} (prompt {prompt_tokens}, `max_tokens` {max_tokens})",
        )


class EngineBusy(OrtolanError):
    """The engine's queue is full."""


class EngineClosed(OrtolanError):
    """The engine takes no more requests."""


def _shortened(value: object, limit: int = 80) -> str:
    """Return ``value`` as text of at most ``limit`` characters; no message repeats a prompt."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
