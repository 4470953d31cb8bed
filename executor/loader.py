"""From settings to an executor that is ready to run."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable

import torch

from executor.description import DecoderDescription
from executor.errors import SettingsError
from executor.executor import Executor, ExecutorInfo
from executor.families import Family, family_of
from executor.guides.guides import Guides
from executor.guides.vocabulary import ReadVocabulary, no_vocabulary
from executor.loaded_model import LoadedModel
from executor.memory.device_memory import CudaMemory
from executor.memory.free_memory import free_memory
from executor.memory.gpu_budget import profiled_blocks
from executor.memory.host_arena import HostArena
from executor.memory.memory_budget import AUTO, CPU_KV_MEMORY, GPU_MEMORY_UTILIZATION, blocks_in, parse_budget, readable
from executor.memory.out_of_memory import MemoryWarnings, refused_without_memory
from executor.memory.split_runner import SplitRunner
from executor.memory.worst_step import StepSize
from executor.model_choice import DECODERS, KV_DTYPES, QUANTIZATIONS, check_decoder, load_model
from executor.progress import Progress, tell_nobody
from executor.sampling.split_sampler import SplitSampler
from executor.settings import ExecutorSettings
from executor.tensor_parallel import ALONE, Ranks
from executor.tensor_parallel.samplers import rank_sampler
from executor.torch_decoder.torch_formats import ATTENTION_BACKENDS, DTYPES
from executor.weights import Checkpoint, open_checkpoint, shard

_log = logging.getLogger(__name__)


def load_executor(
    settings: ExecutorSettings,
    clock: Callable[[], float] = time.perf_counter,
    on_progress: Progress = tell_nobody,
    ranks: Ranks = ALONE,
    read_vocabulary: ReadVocabulary = no_vocabulary,
) -> Executor:
    """Reads the model, takes the memory for its blocks, puts them together and measures how fast that is.

    Args:
        ranks: joined on the device that `check_loadable` names, as many as the settings say; all are told the same.
        read_vocabulary: called when the first sequence with a guide starts.

    Raises:
        SettingsError: a setting is malformed, or impossible here.
        CheckpointError: the model's files are incomplete or contradict themselves.
        UnsupportedModel: the decoder can't run it.
    """
    assert ranks.size == settings.tensor_parallel_size
    _check_settings(settings)
    if settings.threads is not None or ranks.size > 1:
        torch.set_num_threads(max(1, (settings.threads or torch.get_num_threads()) // ranks.size))
    device = _device(settings, ranks.index)
    if device.type == "cuda":
        # What has no device of its own (events, streams, kernels in Triton) is then on this one.
        torch.cuda.set_device(device)
    _check_utilization(settings, device)
    checkpoint, family, model = _open(settings)
    max_model_len = _max_model_len(settings.max_model_len, model)

    with refused_without_memory("the weights do not fit into the memory that is free; a smaller dtype takes less"):
        loaded, dtype = load_model(settings, checkpoint, family, model, device, on_progress, ranks)
    block_bytes = loaded.layout.bytes_per_block
    num_blocks = ranks.smallest(_num_blocks(settings, loaded, device, max_model_len, ranks))
    with refused_without_memory(f"kv_memory: there is no memory for {num_blocks} blocks of {readable(block_bytes)}"):
        arena = loaded.arena(num_blocks)
    host = HostArena(arena, ranks.smallest(_num_host_blocks(settings.host_memory, block_bytes, ranks)))

    info = ExecutorInfo(
        model_name=settings.model_name or settings.model.name.removesuffix(".gguf"),
        max_model_len=_fitting(max_model_len, num_blocks * settings.block_size),
        vocab_size=model.vocab_size,
        block_size=settings.block_size,
        num_blocks=num_blocks,
        num_host_blocks=host.num_blocks,
        bytes_per_block=block_bytes * ranks.size,
        device=device.type,
        max_batched_tokens=settings.max_batched_tokens,
        max_sequences=settings.max_sequences,
        dtype=dtype,
        attention_backend=loaded.kernels,
        eos_token_ids=model.eos_token_ids,
        incarnation=uuid.uuid4().hex,
        tensor_parallel_size=ranks.size,
    )
    runner, warnings = loaded.runner(arena), MemoryWarnings(clock)
    with refused_without_memory(
        "cuda_graphs: there is no memory to record decode steps; lower max_sequences, kv_memory or"
        " gpu_memory_utilization, or turn cuda_graphs off"
    ):
        runner.prepare_decodes(info.max_sequences, info.max_model_len, on_progress)
    if ranks.size == 1:  # several would have to cut their steps alike, and only one of them knows
        runner = SplitRunner(runner, warnings)
    sampler = rank_sampler(SplitSampler(loaded.sampler(), warnings), ranks)
    guides = Guides(read_vocabulary, model.vocab_size) if ranks.is_first else None
    return Executor(runner, host, info, clock, sampler, ranks, guides)


def check_loadable(settings: ExecutorSettings, rank: int) -> torch.device:
    """Refuses what `load_executor` would before it reads any weight.

    Returns:
        Where a rank computes: each on a GPU of its own, or all on the CPU.

    Raises:
        SettingsError, CheckpointError, UnsupportedModel: as there.
    """
    _check_settings(settings)
    device = _device(settings, rank)
    _check_utilization(settings, device)
    check_decoder(settings, device)
    _, _, model = _open(settings)
    _max_model_len(settings.max_model_len, model)
    shard(model, rank, settings.tensor_parallel_size)
    return device


def _open(settings: ExecutorSettings) -> tuple[Checkpoint, Family, DecoderDescription]:
    checkpoint = open_checkpoint(settings.model)
    family = family_of(checkpoint.config)
    return checkpoint, family, family.describe(checkpoint.config)


def _num_blocks(
    settings: ExecutorSettings, loaded: LoadedModel, device: torch.device, max_model_len: int, ranks: Ranks
) -> int:
    if settings.kv_memory == AUTO and device.type == "cuda":
        size = StepSize(settings.max_batched_tokens, settings.max_sequences, max_model_len)
        utilization = settings.gpu_memory_utilization or GPU_MEMORY_UTILIZATION
        swaps = _host_budget(settings.host_memory, lambda: free_memory(torch.device("cpu"))) > 0
        return profiled_blocks(loaded, CudaMemory(device), size, utilization, samples=ranks.is_first, swaps=swaps)
    text = CPU_KV_MEMORY if settings.kv_memory == AUTO else settings.kv_memory
    budget = parse_budget(text, lambda: free_memory(device)) // _sharing(device, ranks)
    return blocks_in(budget, loaded.layout.bytes_per_block, text)


def _check_settings(settings: ExecutorSettings) -> None:
    counts = ("block_size", "max_batched_tokens", "max_sequences", "max_model_len", "threads", "tensor_parallel_size")
    for name in counts:
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise SettingsError(f"{name} must be at least 1, not {value}")
    if settings.max_sequences > settings.max_batched_tokens:
        raise SettingsError(
            f"max_sequences is {settings.max_sequences}; it must be at most max_batched_tokens,"
            f" {settings.max_batched_tokens}, or not every sequence could get its token in a step"
        )
    for name, allowed in (
        ("dtype", ("auto", *DTYPES)),
        ("device", ("auto", "cpu", "cuda")),
        ("decoder", DECODERS),
        ("attention_backend", ATTENTION_BACKENDS),
        ("quantize", tuple(QUANTIZATIONS)),
        ("kv_dtype", KV_DTYPES),
    ):
        if getattr(settings, name) not in allowed:
            raise SettingsError(f"{name} must be one of {', '.join(allowed)}, not {getattr(settings, name)!r}")
    # Malformed ones are refused before the model is read.
    if settings.kv_memory != AUTO:
        parse_budget(settings.kv_memory, lambda: 0)
    _host_budget(settings.host_memory, lambda: 0)


def _check_utilization(settings: ExecutorSettings, device: torch.device) -> None:
    """It shares out a GPU's memory, and is not ignored where that isn't asked for."""
    share = settings.gpu_memory_utilization
    if share is None:
        return
    if not 0 < share <= 1:
        raise SettingsError(f"gpu_memory_utilization must be above 0 and at most 1, not {share:g}")
    if device.type != "cuda":
        raise SettingsError(f"gpu_memory_utilization {share:g}: the device is {device.type}; kv_memory is for it")
    if settings.kv_memory != AUTO:
        raise SettingsError(f"gpu_memory_utilization {share:g} needs kv_memory auto, not {settings.kv_memory!r}")


def _device(settings: ExecutorSettings, rank: int) -> torch.device:
    name, size = settings.device, settings.tensor_parallel_size
    if name == "cuda" and not torch.cuda.is_available():
        why = "" if torch.version.cuda else ", and torch is a build for CPUs"
        raise SettingsError(f"device cuda: there is no usable GPU{why}")
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    if size > torch.cuda.device_count():
        raise SettingsError(f"tensor_parallel_size {size} needs {size} GPUs, there are {torch.cuda.device_count()}")
    return torch.device("cuda", rank) if size > 1 else torch.device("cuda")


def _max_model_len(wanted: int | None, model: DecoderDescription) -> int:
    if wanted is not None and wanted > model.max_model_len:
        raise SettingsError(f"max_model_len {wanted} is above the model's own limit of {model.max_model_len}")
    return wanted or model.max_model_len


def _host_budget(text: str, free_bytes: Callable[[], int]) -> int:
    return parse_budget(text, free_bytes, name="host_memory", may_be_nothing=True)


def _num_host_blocks(text: str, bytes_per_block: int, ranks: Ranks) -> int:
    cpu = torch.device("cpu")
    budget = _host_budget(text, lambda: free_memory(cpu)) // _sharing(cpu, ranks)
    return blocks_in(budget, bytes_per_block, text, name="host_memory") if budget else 0


def _sharing(device: torch.device, ranks: Ranks) -> int:
    """How many ranks share a device's memory: GPUs have their own."""
    return ranks.size if device.type == "cpu" else 1


def _fitting(max_model_len: int, num_slots: int) -> int:
    if max_model_len > num_slots:
        _log.warning("max_model_len lowered from %d to %d: all tokens that the blocks hold", max_model_len, num_slots)
        return num_slots
    return max_model_len
