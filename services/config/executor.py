# ruff: noqa: RUF009 - setting() returns a dataclass field
"""What an executor can be told."""

from dataclasses import dataclass
from typing import Literal

from executor.errors import SettingsError
from executor.memory.memory_budget import AUTO, CPU_KV_MEMORY, GPU_MEMORY_UTILIZATION, parse_budget
from services.config.addresses import model_name_of
from services.config.service import ServiceConfig
from services.config.settings import MAX_PORT, ConfigError, max_batched_tokens, max_sequences, setting

Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Decoder = Literal["auto", "native", "torch"]
AttentionBackend = Literal["auto", "triton", "cpu", "reference"]
Quantize = Literal["none", "int8", "int4"]
KvDtype = Literal["auto", "int8", "fp8"]


@dataclass(frozen=True, kw_only=True)
class ExecutorConfig(ServiceConfig):
    """The model and its key/value memory."""

    port: int = setting(50053, "Port to listen on.", minimum=0, maximum=MAX_PORT)
    model: str = setting(help="Model folder or GGUF file, or smollm2 for the demo model.")
    model_name: str = setting("", "Name that clients call the model by; the folder's or file's name when absent.")
    device: Device = setting("auto", "Where the model runs; auto takes a GPU where there is one.")
    dtype: Dtype = setting("auto", "Number format of weights, keys and values; auto takes what the device does best.")
    block_size: int = setting(16, "Tokens in a block of key/value memory.", minimum=1)
    kv_memory: str = setting(
        AUTO,
        "Key/value memory: an amount such as 512MiB, a share of what is free, 40%, or auto: on a GPU what"
        f" gpu_memory_utilization leaves, on a CPU {CPU_KV_MEMORY}.",
    )
    gpu_memory_utilization: float | None = setting(
        None,
        "Share of a GPU's memory that may be in use, by other processes too; key/value memory (auto) is what weights"
        f" and the largest step leave of it. {GPU_MEMORY_UTILIZATION:g} when absent; refused on a CPU.",
        minimum=0.01,
        maximum=1.0,
    )
    host_memory: str = setting(
        "256MiB",
        "Host memory that key/value blocks move to and back: an amount, a share of what is free, or 0 for none.",
    )
    max_batched_tokens: int = max_batched_tokens()
    max_sequences: int = max_sequences()
    max_model_len: int | None = setting(
        None, "Most tokens of a prompt and its answer together; the model's own limit when absent.", minimum=1
    )
    threads: int | None = setting(None, "CPU threads of the model; as many as there are cores when absent.", minimum=1)
    tensor_parallel_size: int = setting(
        1,
        "Processes that compute the model together, each with its part of the weights and of the key/value heads: one"
        " for each GPU, from the first on. On a CPU they share threads and memory.",
        minimum=1,
    )
    quantize: Quantize = setting("none", "Keep the weights in int8 or int4 on a CPU: faster, a little less exact.")
    kv_dtype: KvDtype = setting(
        "auto",
        "Number format of keys and values; auto is the model's. int8 (native decoder on a CPU) and fp8 (GPUs of compute"
        " capability 8.9 and newer) take half of bfloat16.",
    )
    decoder: Decoder = setting("auto", "What computes the model; auto is native code on a CPU, and torch elsewhere.")
    attention_backend: AttentionBackend = setting(
        "auto",
        "Attention over block tables of the decoder in torch; auto is triton on a GPU where Triton can run, else"
        " reference, which is slow.",
    )
    cuda_graphs: bool = setting(
        True,
        "Record decode steps of some sizes of batch at start, so that a GPU computes them without being told of each"
        " kernel; takes some memory and some seconds.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("kv_memory", "host_memory"):
            if getattr(self, name).strip().isdigit():  # a bare number is bytes; the executor wants a unit
                object.__setattr__(self, name, f"{getattr(self, name)}B")
        if self.kv_memory != AUTO:
            self.kv_memory_bytes(0)
        self._bytes("host_memory", 0, may_be_nothing=True)
        object.__setattr__(self, "model_name", self.model_name or model_name_of(self.model))

    def kv_memory_bytes(self, free_bytes: int) -> int:
        """Bytes for keys and values.

        Args:
            free_bytes: What is free on the device; only a share (``40%``) depends on it.
        """
        return self._bytes("kv_memory", free_bytes)

    def _bytes(self, name: str, free_bytes: int, *, may_be_nothing: bool = False) -> int:
        text = getattr(self, name)
        try:
            return parse_budget(text, lambda: free_bytes, name=name, may_be_nothing=may_be_nothing)
        except SettingsError as error:
            message = f"{name}: neither an amount like 512MiB nor a share like 40%: {text!r}"
            raise ConfigError(message) from error
