"""What an executor is made from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MAX_BATCHED_TOKENS = 512
MAX_SEQUENCES = 256
"""Of one step, where nothing else was said."""


@dataclass(frozen=True, slots=True)
class ExecutorSettings:
    """What an executor is made from, as `executor.loader.load_executor` takes it.

    Attributes:
        model: folder with config.json and safetensors, or a .gguf file.
        model_name: how clients call it; the file's name where empty.
        dtype: auto, float32, bfloat16 or float16. auto is the checkpoint's own type, but on a CPU bfloat16 in place of
            float16, and float32 for whatever torch computes there. bfloat16 on a GPU needs compute capability 8.0.
        device: auto, cpu or cuda. auto is cuda where there is one.
        block_size: tokens a block.
        kv_memory: for keys and values: a size ("512MiB"), a share of what is free once the model is loaded ("40%"), or
            auto: on a GPU what `gpu_memory_utilization` leaves, on a CPU 512MiB.
        gpu_memory_utilization: with kv_memory auto on a GPU: share of its memory that may be in use, by whomever, above
            0 and at most 1; 0.9 where None. Blocks get what the weights and the largest step leave of it.
        host_memory: for blocks beside those of the device, in the same form, the share of the host's memory; "0": none.
        max_batched_tokens, max_sequences: most tokens of a step and rows in it that there is to be memory for.
        max_model_len: longest sequence; the model's own limit where None.
        threads: of one operation on the CPU; torch's choice where None.
        decoder: auto, native or torch. auto is native on a CPU, where the kernels were built.
        attention_backend: auto, triton, cpu or reference, of the decoder in torch; the native one has its own. auto is
            triton on a GPU where Triton can run, else reference.
        quantize: none, int8 or int4: how the native decoder stores matrices.
        kv_dtype: how keys and values are stored: auto, which is the model's; int8, by the native decoder; fp8, by
            triton on GPUs of compute capability 8.9 and newer.
        cuda_graphs: decode steps are recorded at start, where a GPU and its attention backend can do that.
        tensor_parallel_size: ranks that compute the model together, each with its part of it and its own device (GPU
            0, 1, ...); on a CPU they share its threads and the memory that is asked for.
        cache: folder where packed weights are kept for the next start; None keeps none.
    """

    model: Path
    kv_memory: str = "auto"
    gpu_memory_utilization: float | None = None
    host_memory: str = "0"
    model_name: str = ""
    dtype: str = "auto"
    device: str = "auto"
    block_size: int = 16
    max_batched_tokens: int = MAX_BATCHED_TOKENS
    max_sequences: int = MAX_SEQUENCES
    max_model_len: int | None = None
    threads: int | None = None
    decoder: str = "auto"
    attention_backend: str = "auto"
    quantize: str = "none"
    kv_dtype: str = "auto"
    cuda_graphs: bool = True
    tensor_parallel_size: int = 1
    cache: Path | None = None
