"""Client packages for Python, as their users call them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

RunProgram = Callable[..., None]


def test_langchain(run_python: RunProgram) -> None:
    """Its class for text completions: lists of one prompt, explicit nulls, streams, batches."""
    run_python("use_langchain.py", "langchain-openai>=1.1")


def test_litellm(run_python: RunProgram) -> None:
    """It turns statuses and the words of errors into its own exceptions."""
    run_python("use_litellm.py", "litellm>=1.80")


def test_llama_index(run_python: RunProgram) -> None:
    """OpenAILike with is_chat_model=False."""
    run_python("use_llama_index.py", "llama-index-llms-openai-like>=0.5")


def test_llm(run_python: RunProgram) -> None:
    """Simon Willison's command, with `completion: true`."""
    run_python("use_llm.py", "llm>=0.27")


def test_lm_eval(run_python: RunProgram) -> None:
    """`local-completions`: its own scores are those that single steps give."""
    run_python("use_lm_eval.py", "lm-eval[api]==0.4.13", "transformers>=4.50", timeout_s=600)


def test_schemathesis(run_python: RunProgram) -> None:
    """Every document that the server publishes, against the server."""
    run_python("use_schemathesis.py", "schemathesis>=4.5", timeout_s=900)


@pytest.mark.slow
def test_llama_benchy(run_python: RunProgram) -> None:
    """It knows only chat."""
    run_python("use_llama_benchy.py", "llama-benchy==0.4.0", timeout_s=600)


def test_kubernetes_schemas(run_python: RunProgram) -> None:
    """The manifests of deploy/, against Kubernetes' own schemas."""
    run_python("validate_manifests.py", "kubernetes-validate==1.37.0", timeout_s=600)
