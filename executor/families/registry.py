"""The families the decoder can run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from executor.errors import UnsupportedModel
from executor.families.family import Family
from executor.families.gpt2 import GPT2
from executor.families.llama import LLAMA
from executor.families.opt import OPT

FAMILIES: tuple[Family, ...] = (LLAMA, OPT, GPT2)


def family_of(config: Mapping[str, Any]) -> Family:
    """The family of a parsed `config.json`, by `architectures`, or by `model_type` where that is absent.

    Raises:
        UnsupportedModel: for any other, or a quantised checkpoint; says what is supported.
    """
    if config.get("quantization_config"):
        method = config["quantization_config"].get("quant_method", "unknown")
        raise UnsupportedModel(f"quantised safetensors (quant_method {method!r}) are not supported; GGUF is")
    architectures = config.get("architectures") or []
    for family in FAMILIES:
        if any(name in family.architectures for name in architectures):
            return family
        if not architectures and config.get("model_type") == family.model_type:
            return family
    name = ", ".join(architectures) or config.get("model_type") or "unnamed"
    supported = ", ".join(name for family in FAMILIES for name in family.architectures)
    raise UnsupportedModel(f"architecture {name} is not supported; supported: {supported}")
