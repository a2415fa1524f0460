"""What is known of a model that an engine runs: what its requests are checked against, its name."""

from __future__ import annotations

import hashlib
import logging
from typing import Protocol

from ortolan_runtime.bundle import Bundle, Device, Manifest
from ortolan_runtime.errors import InvalidParameter
from ortolan_runtime.text import Tokenizer
from ortolan_runtime.version import __version__
from ortolan_server.chat_template import ChatTemplate
from ortolan_server.kinds import Facts

logger = logging.getLogger("ortolan.server")


class Loaded(Protocol):
    """What of an engine tells about its model."""

    bundle: Bundle
    tokenizer: Tokenizer
    context_length: int
    device: Device
    liberties: tuple[str, ...]


def facts_of(engine: Loaded, name: str | None = None) -> Facts:
    """Return the facts of a model under ``name``, or under the bundle's own."""
    manifest, tokenizer = engine.bundle.manifest, engine.tokenizer
    return Facts(
        model=name or manifest.name,
        # Rows of the logits beyond the tokenizer's count are padding, and no tokens.
        vocab_size=min(manifest.vocab_size, tokenizer.vocab_size),
        context_length=engine.context_length,
        tokenizer=tokenizer,
        chat_template=_chat_template(engine.bundle, tokenizer),
    )


def _chat_template(bundle: Bundle, tokenizer: Tokenizer) -> ChatTemplate | None:
    """Return the bundle's template; without a usable one only chat is off."""
    source, manifest = bundle.chat_template, bundle.manifest
    if source is None:
        return None
    bos, eos = manifest.bos_token_id, manifest.eos_token_ids
    try:
        return ChatTemplate(
            source,
            bos_token="" if bos is None else tokenizer.token_text(bos),
            eos_token=tokenizer.token_text(eos[0]) if eos else "",
        )
    except InvalidParameter as exc:
        logger.warning("chat is off: %s", exc)
        return None


def fingerprint_of(manifest: Manifest, device: Device, liberties: tuple[str, ...]) -> str:
    """Return a name for what decides the output: weights, precision, device, version.

    It ends with what the engine was allowed that makes bits depend on company.
    """
    made = f"{manifest.source_digest} {manifest.precision} {manifest.target}"
    parts = f"{made} {device} {__version__}"
    digest = hashlib.sha256(parts.encode()).hexdigest()[:10]
    return "-".join((f"fp_{digest}", *liberties))
