"""From settings to an executor that is ready to run."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from executor.arena import BlockArena
from executor.attention import BACKENDS
from executor.decoder import Decoder
from executor.description import DecoderDescription
from executor.errors import SettingsError
from executor.executor import Executor, ExecutorInfo
from executor.families import family_of
from executor.free_memory import free_memory
from executor.host_arena import HostArena
from executor.memory_budget import blocks_in, parse_budget
from executor.torch_runner import TorchRunner
from executor.weights import Parameters, open_checkpoint

_log = logging.getLogger(__name__)

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class ExecutorSettings:
    """What an executor is made from.

    Attributes:
        model: folder with config.json and safetensors, or a .gguf file.
        model_name: how clients call it; the file's name where empty.
        dtype: auto, float32, bfloat16 or float16. auto is float32 on a CPU and the checkpoint's own type on a GPU.
        device: auto, cpu or cuda. auto is cuda where there is one.
        block_size: tokens a block.
        kv_memory: for keys and values: a size ("512MiB") or a share of what is free once the model is loaded ("40%").
        host_memory: for blocks beside those of the device, in the same form, the share of the host's memory; "0": none.
        max_model_len: longest sequence; the model's own limit where None.
        threads: of one operation on the CPU; torch's choice where None.
        attention_backend: by name.
    """

    model: Path
    kv_memory: str
    host_memory: str = "0"
    model_name: str = ""
    dtype: str = "auto"
    device: str = "auto"
    block_size: int = 16
    max_model_len: int | None = None
    threads: int | None = None
    attention_backend: str = "reference"


def load_executor(settings: ExecutorSettings, clock: Callable[[], float] = time.perf_counter) -> Executor:
    """Reads the model, takes the memory for its blocks, puts them together and measures how fast that is.

    Raises:
        SettingsError: a setting is malformed, or impossible here.
        CheckpointError: the model's files are incomplete or contradict themselves.
        UnsupportedModel: the decoder can't run it.
    """
    _check_settings(settings)
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    device = _device(settings.device)
    checkpoint = open_checkpoint(settings.model)
    family = family_of(checkpoint.config)
    model = family.describe(checkpoint.config)
    dtype = _dtype(settings.dtype, model, device)
    max_model_len = _max_model_len(settings.max_model_len, model)

    decoder = Decoder(model)
    parameters = Parameters(checkpoint.weights, family, family.weight_map(model))
    decoder.load(parameters.read_all(dtype=dtype, device=device))

    attention = BACKENDS[settings.attention_backend]()
    blocks = attention.block_layout(model, settings.block_size, dtype)
    budget = parse_budget(settings.kv_memory, lambda: free_memory(device))
    num_blocks = blocks_in(budget, blocks.bytes_per_block, settings.kv_memory)
    arena = BlockArena(blocks, num_blocks=num_blocks, block_size=settings.block_size, device=device)
    host = HostArena(arena, _num_host_blocks(settings.host_memory, arena.bytes_per_block))

    info = ExecutorInfo(
        model_name=settings.model_name or settings.model.name.removesuffix(".gguf"),
        max_model_len=_fitting(max_model_len, num_blocks * settings.block_size),
        vocab_size=model.vocab_size,
        block_size=settings.block_size,
        num_blocks=num_blocks,
        num_host_blocks=host.num_blocks,
        bytes_per_block=arena.bytes_per_block,
        device=str(device),
        dtype=str(dtype).removeprefix("torch."),
        attention_backend=settings.attention_backend,
        eos_token_ids=model.eos_token_ids,
        incarnation=uuid.uuid4().hex,
    )
    runner = TorchRunner(decoder, arena, attention, device)
    return Executor(runner, host, info, clock)


def _check_settings(settings: ExecutorSettings) -> None:
    for name in ("block_size", "max_model_len", "threads"):
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise SettingsError(f"{name} must be at least 1, not {value}")
    for name, allowed in (
        ("dtype", ("auto", *_DTYPES)),
        ("device", ("auto", "cpu", "cuda")),
        ("attention_backend", tuple(BACKENDS)),
    ):
        if getattr(settings, name) not in allowed:
            raise SettingsError(f"{name} must be one of {', '.join(allowed)}, not {getattr(settings, name)!r}")
    # Malformed ones are refused before the model is read.
    parse_budget(settings.kv_memory, lambda: 0)
    _host_budget(settings.host_memory, lambda: 0)


def _device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise SettingsError("device cuda: there is no usable GPU")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def _dtype(name: str, model: DecoderDescription, device: torch.device) -> torch.dtype:
    if name == "auto":
        name = "float32" if device.type == "cpu" else model.dtype
    if name not in _DTYPES:
        raise SettingsError(f"the checkpoint's dtype {name} is not supported; set dtype to one of {', '.join(_DTYPES)}")
    return _DTYPES[name]


def _max_model_len(wanted: int | None, model: DecoderDescription) -> int:
    if wanted is not None and wanted > model.max_model_len:
        raise SettingsError(f"max_model_len {wanted} is above the model's own limit of {model.max_model_len}")
    return wanted or model.max_model_len


def _host_budget(text: str, free_bytes: Callable[[], int]) -> int:
    return parse_budget(text, free_bytes, name="host_memory", may_be_nothing=True)


def _num_host_blocks(text: str, bytes_per_block: int) -> int:
    budget = _host_budget(text, lambda: free_memory(torch.device("cpu")))
    return blocks_in(budget, bytes_per_block, text, name="host_memory") if budget else 0


def _fitting(max_model_len: int, num_slots: int) -> int:
    if max_model_len > num_slots:
        _log.warning("max_model_len lowered from %d to %d: all tokens that the blocks hold", max_model_len, num_slots)
        return num_slots
    return max_model_len
