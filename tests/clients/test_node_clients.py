"""Client packages for Node, as their users call them."""

from __future__ import annotations

from collections.abc import Callable

RunProgram = Callable[..., None]


def test_openai_for_node(run_node: RunProgram) -> None:
    """Creating, streaming, errors, hanging up."""
    run_node("use_openai.mjs", "openai@6")


def test_the_ai_sdk(run_node: RunProgram) -> None:
    """Vercel's: it always sends a stop string and wants every index."""
    run_node("use_ai_sdk.mjs", "ai@5", "@ai-sdk/openai-compatible@1")


def test_hugging_faces_client(run_node: RunProgram) -> None:
    """It passes the parameters of another server through."""
    run_node("use_hugging_face.mjs", "@huggingface/inference@4")
