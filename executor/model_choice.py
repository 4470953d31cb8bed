"""Which code computes a model: the native decoder or the one in torch, and with which number formats."""

from __future__ import annotations

import logging

import torch

from executor.description import DecoderDescription
from executor.errors import SettingsError
from executor.families import Family
from executor.loaded_model import LoadedModel
from executor.native import Library, LibraryMissing, load_library
from executor.native.linear import WeightKind
from executor.native.model import NativeFormat, NativeModel
from executor.native.structures import KvKind
from executor.progress import Progress
from executor.settings import ExecutorSettings
from executor.tensor_parallel import ALONE, Ranks
from executor.torch_decoder.torch_formats import DTYPES, capability_of, choose_attention, choose_dtype
from executor.torch_decoder.torch_model import TorchModel
from executor.weights import Checkpoint, Parameters, Shard, shard

_log = logging.getLogger(__name__)

DECODERS = ("auto", "native", "torch")
QUANTIZATIONS = {"none": None, "int8": WeightKind.INT8, "int4": WeightKind.INT4}
KV_DTYPES = ("auto", "int8", "fp8")

_WEIGHT_KINDS = {"float32": WeightKind.FLOAT32, "bfloat16": WeightKind.BFLOAT16}
_KV_KINDS = {"float32": KvKind.FLOAT32, "bfloat16": KvKind.BFLOAT16, "int8": KvKind.INT8}


def load_model(
    settings: ExecutorSettings,
    checkpoint: Checkpoint,
    family: Family,
    model: DecoderDescription,
    device: torch.device,
    on_progress: Progress,
    ranks: Ranks = ALONE,
) -> tuple[LoadedModel, str]:
    """Reads the weights of this rank's part.

    Returns:
        The model, and its dtype by name.

    Raises:
        SettingsError: they contradict one another, or what this machine has.
        CheckpointError: the weights are incomplete.
    """
    library = _library(settings, device)
    part = shard(model, ranks.index, ranks.size)
    parameters = Parameters(checkpoint.weights, family, family.weight_map(model), part, on_progress)
    if library is None:
        return _torch_model(settings, parameters, part, device, ranks)
    dtype = _native_dtype(settings.dtype, model)
    form = NativeFormat(
        weights=QUANTIZATIONS[settings.quantize] or _WEIGHT_KINDS[dtype],
        kv=_KV_KINDS[dtype if settings.kv_dtype == "auto" else settings.kv_dtype],
    )
    native = NativeModel(
        library,
        model,
        parameters,
        form,
        block_size=settings.block_size,
        threads=settings.threads or torch.get_num_threads(),
        files=checkpoint.files,
        cache=settings.cache,
        on_progress=on_progress,
    )
    return native, dtype


def check_decoder(settings: ExecutorSettings, device: torch.device) -> None:
    """Raises SettingsError where the decoder that is wanted can't compute the model."""
    _library(settings, device)


def _library(settings: ExecutorSettings, device: torch.device) -> Library | None:
    """The native kernels, where they are to compute the whole model."""
    obstacle = _obstacle(settings, device)
    library: Library | None = None
    if obstacle is None:
        try:
            library = load_library()
        except LibraryMissing as error:
            obstacle = str(error)
            if settings.decoder == "auto":
                _log.warning("torch computes the model, several times slower", extra={"reason": obstacle})
    if library is None and settings.decoder == "native":
        raise SettingsError(f"decoder native: {obstacle}")
    return library


def _obstacle(settings: ExecutorSettings, device: torch.device) -> str | None:
    """Why the native decoder isn't even looked for."""
    if device.type != "cpu":
        return f"it computes on a CPU, not on {device.type}"
    if settings.tensor_parallel_size > 1:
        return f"it computes in one process, and tensor_parallel_size is {settings.tensor_parallel_size}"
    if settings.decoder == "torch":
        return "decoder is torch"
    if settings.attention_backend not in ("auto", "cpu"):
        return f"it has attention of its own, not {settings.attention_backend}"
    if settings.kv_dtype == "fp8":
        return "it stores keys and values in its dtype or in int8, not in fp8"
    if settings.dtype == "float16":
        return "dtype must be float32 or bfloat16, not float16"
    return None


def _native_dtype(name: str, model: DecoderDescription) -> str:
    """Half precision is stored as bfloat16, which has a float's range."""
    if name != "auto":
        return name
    return "float32" if model.dtype == "float32" else "bfloat16"


def _torch_model(
    settings: ExecutorSettings, parameters: Parameters, part: Shard, device: torch.device, ranks: Ranks
) -> tuple[LoadedModel, str]:
    if settings.quantize != "none":
        raise SettingsError(f"quantize {settings.quantize} needs the native decoder on a CPU")
    capability = capability_of(device)
    dtype = choose_dtype(settings, part.model, device, capability)
    attention, kv_dtype = choose_attention(settings, part.model, DTYPES[dtype], device, capability)
    torch_model = TorchModel(
        part,
        parameters,
        attention,
        block_size=settings.block_size,
        dtype=DTYPES[dtype],
        kv_dtype=kv_dtype,
        device=device,
        ranks=ranks,
        cuda_graphs=settings.cuda_graphs,
    )
    return torch_model, dtype
