"""What the decoder in torch computes with: number formats and attention backend, by device."""

from __future__ import annotations

import logging

import torch

from executor.attention import BACKENDS, AnyBackend
from executor.attention.triton.availability import triton_obstacle
from executor.description import DecoderDescription
from executor.errors import SettingsError
from executor.settings import ExecutorSettings

_log = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
ATTENTION_BACKENDS = ("auto", *BACKENDS)
FP8 = torch.float8_e4m3fn

_BFLOAT16_CAPABILITY = (8, 0)
_FP8_CAPABILITY = (8, 9)


def capability_of(device: torch.device) -> tuple[int, int] | None:
    """A GPU's compute capability, (8, 0) for sm_80; None of a CPU."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else None


def choose_dtype(
    settings: ExecutorSettings, model: DecoderDescription, device: torch.device, capability: tuple[int, int] | None
) -> str:
    """Name of the weights' and activations' number format.

    Raises:
        SettingsError: there is no such format, or not on this device.
    """
    dtype = settings.dtype
    if dtype == "auto":
        dtype = "float32" if device.type == "cpu" else model.dtype
    if dtype not in DTYPES:
        raise SettingsError(f"the checkpoint's dtype {dtype} is not supported; set dtype to one of {', '.join(DTYPES)}")
    if dtype == "bfloat16" and capability is not None and capability < _BFLOAT16_CAPABILITY:
        whose = "the checkpoint's dtype" if settings.dtype == "auto" else "dtype"
        raise SettingsError(
            f"{whose} bfloat16 needs a GPU of compute capability {_dotted(_BFLOAT16_CAPABILITY)} or newer; this one has"
            f" {_dotted(capability)}: set dtype to float16 or float32"
        )
    return dtype


def choose_attention(
    settings: ExecutorSettings,
    model: DecoderDescription,
    dtype: torch.dtype,
    device: torch.device,
    capability: tuple[int, int] | None,
) -> tuple[AnyBackend, torch.dtype]:
    """The attention backend, and how it stores keys and values. auto falls back to reference for a model or a block
    size that triton does not take.

    Args:
        dtype: the model's.

    Raises:
        SettingsError: what is wanted can't be had on this device.
    """
    name = choose_backend(settings, device, capability)
    kv_dtype = choose_kv_dtype(settings, dtype, name, capability)
    backend = BACKENDS[name]()
    if name == settings.attention_backend or name == "reference":
        return backend, kv_dtype
    try:
        backend.block_layout(model, settings.block_size, kv_dtype)
    except SettingsError as error:
        _warn_of_reference(str(error))
        return BACKENDS["reference"](), choose_kv_dtype(settings, dtype, "reference", capability)
    return backend, kv_dtype


def choose_backend(settings: ExecutorSettings, device: torch.device, capability: tuple[int, int] | None) -> str:
    """Name of the attention backend; auto is triton on a GPU where it can run, else reference.

    Raises:
        SettingsError: the one that is wanted can't run on this device.
    """
    wanted = settings.attention_backend
    if wanted == "cpu" and device.type != "cpu":
        raise SettingsError(f"attention_backend cpu: device must be cpu, not {device.type}")
    if wanted == "triton" or (wanted == "auto" and device.type == "cuda"):
        obstacle = triton_obstacle(device, capability)
        if obstacle is None:
            return "triton"
        if wanted == "triton":
            raise SettingsError(f"attention_backend triton: {obstacle}")
        _warn_of_reference(obstacle)
    return "reference" if wanted == "auto" else wanted


def choose_kv_dtype(
    settings: ExecutorSettings, dtype: torch.dtype, backend: str, capability: tuple[int, int] | None
) -> torch.dtype:
    """How keys and values are stored.

    Args:
        dtype: the model's.
        backend: the attention backend's name.

    Raises:
        SettingsError: this backend or this device can't store them so.
    """
    if settings.kv_dtype == "auto":
        return dtype
    if settings.kv_dtype != "fp8":
        raise SettingsError(f"kv_dtype {settings.kv_dtype} needs the native decoder on a CPU")
    if backend != "triton":
        raise SettingsError(f"kv_dtype fp8 needs attention_backend triton on a GPU, not {backend}")
    if capability is not None and capability < _FP8_CAPABILITY:
        raise SettingsError(
            f"kv_dtype fp8 needs a GPU of compute capability {_dotted(_FP8_CAPABILITY)} or newer; this one has"
            f" {_dotted(capability)}"
        )
    return FP8


def _warn_of_reference(reason: str) -> None:
    _log.warning("attention is computed in plain torch, many times slower", extra={"reason": reason})


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
