"""From an executor's configuration to an executor that is ready to run."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import torch

from executor.errors import CheckpointError, SettingsError, UnsupportedModel, VocabularyError
from executor.executor import Executor
from executor.guides.vocabulary import Vocabulary
from executor.loader import check_loadable, load_executor
from executor.progress import tell_nobody
from executor.settings import ExecutorSettings
from executor.tensor_parallel import ALONE, Ranks
from gateway.errors import TokenizerError
from gateway.loading import load_tokenizer
from services.config import ConfigError, ExecutorConfig, cache_folder
from services.progress import ProgressLog

log = logging.getLogger(__name__)

_REFUSALS = (CheckpointError, SettingsError, UnsupportedModel)


def check(config: ExecutorConfig, rank: int) -> torch.device:
    """Refuses what can be refused before any weight is read.

    Returns:
        Where the rank computes.

    Raises:
        ConfigError: the model can't be loaded so.
    """
    try:
        return check_loadable(settings_of(config), rank)
    except _REFUSALS as error:
        raise ConfigError(str(error)) from error


def load(config: ExecutorConfig, ranks: Ranks = ALONE) -> Executor:
    """An executor as it is configured.

    Raises:
        ConfigError: the model can't be loaded.
    """
    start = time.perf_counter()
    on_progress = ProgressLog(log, time.monotonic) if ranks.is_first else tell_nobody
    try:
        executor = load_executor(
            settings_of(config), time.perf_counter, on_progress, ranks, lambda: read_vocabulary(config)
        )
    except _REFUSALS as error:
        raise ConfigError(str(error)) from error
    info = executor.info
    extra = {
        "model": info.model_name,
        "device": info.device,
        "dtype": info.dtype,
        "kernels": info.attention_backend,
        "tensor_parallel_size": info.tensor_parallel_size,
        "blocks": info.num_blocks,
        "block_size": info.block_size,
        "kv_bytes": info.num_blocks * info.bytes_per_block,
        "host_blocks": info.num_host_blocks,
        "prefill_tokens_per_s": round(executor.speeds.prefill_tokens_per_s),
        "seconds": round(time.perf_counter() - start, 2),
    }
    log.info("model loaded", extra=extra)
    return executor


def read_vocabulary(config: ExecutorConfig) -> Vocabulary:
    """What the model's tokens mean, from the tokenizer beside it.

    Raises:
        VocabularyError: there is none that can be used.
    """
    start = time.perf_counter()
    try:
        tokenizer = load_tokenizer(config.model)
    except TokenizerError as error:
        raise VocabularyError(str(error)) from error
    vocabulary = Vocabulary(tokenizer.backend.to_str(), tokenizer.eos_token_ids)
    log.info("tokenizer loaded", extra={"seconds": round(time.perf_counter() - start, 2)})
    return vocabulary


def settings_of(config: ExecutorConfig) -> ExecutorSettings:
    """What of a configuration is the executor's."""
    return ExecutorSettings(
        model=Path(config.model),
        model_name=config.model_name,
        dtype=config.dtype,
        device=config.device,
        block_size=config.block_size,
        kv_memory=config.kv_memory,
        gpu_memory_utilization=config.gpu_memory_utilization,
        host_memory=config.host_memory,
        max_batched_tokens=config.max_batched_tokens,
        max_sequences=config.max_sequences,
        max_model_len=config.max_model_len,
        threads=config.threads,
        decoder=config.decoder,
        attention_backend=config.attention_backend,
        quantize=config.quantize,
        kv_dtype=config.kv_dtype,
        cuda_graphs=config.cuda_graphs,
        cache=cache_folder() / "packed",
        tensor_parallel_size=config.tensor_parallel_size,
    )
