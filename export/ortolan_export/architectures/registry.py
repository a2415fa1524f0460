"""The list of known families: adding one is adding it here."""

from __future__ import annotations

from collections.abc import Mapping

from ortolan_export.architectures.cohere import COHERE, COHERE2
from ortolan_export.architectures.falcon import FALCON
from ortolan_export.architectures.family import Architecture
from ortolan_export.architectures.gemma import GEMMA, GEMMA2, GEMMA3
from ortolan_export.architectures.gpt2 import GPT2
from ortolan_export.architectures.gpt_neox import GPT_NEOX
from ortolan_export.architectures.gpt_oss import GPT_OSS
from ortolan_export.architectures.granite import GRANITE
from ortolan_export.architectures.llama import LLAMA
from ortolan_export.architectures.mistral import MISTRAL, MIXTRAL
from ortolan_export.architectures.olmo import OLMO2, OLMO3
from ortolan_export.architectures.opt import OPT
from ortolan_export.architectures.phi import PHI, PHI3
from ortolan_export.architectures.qwen import QWEN2, QWEN3, QWEN3_MOE
from ortolan_export.architectures.smollm3 import SMOLLM3
from ortolan_export.architectures.stablelm import STABLELM
from ortolan_export.config import Config
from ortolan_export.errors import UnsupportedModel

ARCHITECTURES: Mapping[str, Architecture] = {
    architecture.model_type: architecture
    for architecture in (
        COHERE,
        COHERE2,
        FALCON,
        GEMMA,
        GEMMA2,
        GEMMA3,
        GPT2,
        GPT_NEOX,
        GPT_OSS,
        GRANITE,
        LLAMA,
        MISTRAL,
        MIXTRAL,
        OLMO2,
        OLMO3,
        OPT,
        PHI,
        PHI3,
        QWEN2,
        QWEN3,
        QWEN3_MOE,
        SMOLLM3,
        STABLELM,
    )
}


def find_architecture(config: Config) -> Architecture:
    """Return the family that a config.json's ``model_type`` names.

    Raises UnsupportedModel, and SourceError for what is no name.
    """
    model_type = config.text("model_type")
    architecture = ARCHITECTURES.get(model_type)
    if architecture is None:
        known = ", ".join(sorted(ARCHITECTURES))
        raise UnsupportedModel(
            f"architecture {model_type!r} is not supported; it must be one of {known}"
        )
    return architecture
