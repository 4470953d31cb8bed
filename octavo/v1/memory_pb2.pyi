from octavo.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ExecutorMemory(_message.Message):
    __slots__ = ("executor", "device", "host", "running_requests", "waiting_requests", "swapped_requests", "draining", "speeds", "blocks", "batch_sequences", "batch_prefill_tokens", "batch_decode_tokens")
    EXECUTOR_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    RUNNING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    WAITING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    SWAPPED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    SPEEDS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BATCH_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    BATCH_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BATCH_DECODE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    executor: str
    device: PoolState
    host: PoolState
    running_requests: int
    waiting_requests: int
    swapped_requests: int
    draining: bool
    speeds: Speeds
    blocks: _containers.RepeatedCompositeFieldContainer[Block]
    batch_sequences: int
    batch_prefill_tokens: int
    batch_decode_tokens: int
    def __init__(self, executor: _Optional[str] = ..., device: _Optional[_Union[PoolState, _Mapping]] = ..., host: _Optional[_Union[PoolState, _Mapping]] = ..., running_requests: _Optional[int] = ..., waiting_requests: _Optional[int] = ..., swapped_requests: _Optional[int] = ..., draining: _Optional[bool] = ..., speeds: _Optional[_Union[Speeds, _Mapping]] = ..., blocks: _Optional[_Iterable[_Union[Block, _Mapping]]] = ..., batch_sequences: _Optional[int] = ..., batch_prefill_tokens: _Optional[int] = ..., batch_decode_tokens: _Optional[int] = ...) -> None: ...

class PoolState(_message.Message):
    __slots__ = ("num_blocks", "free_blocks", "cached_blocks", "referenced_blocks")
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CACHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    REFERENCED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    num_blocks: int
    free_blocks: int
    cached_blocks: int
    referenced_blocks: int
    def __init__(self, num_blocks: _Optional[int] = ..., free_blocks: _Optional[int] = ..., cached_blocks: _Optional[int] = ..., referenced_blocks: _Optional[int] = ...) -> None: ...

class TenantMemory(_message.Message):
    __slots__ = ("owner", "charged_blocks", "cached_blocks", "pinned_blocks", "reserved_blocks", "max_blocks", "weight")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    CHARGED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CACHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PINNED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    RESERVED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MAX_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    owner: str
    charged_blocks: int
    cached_blocks: int
    pinned_blocks: int
    reserved_blocks: int
    max_blocks: int
    weight: float
    def __init__(self, owner: _Optional[str] = ..., charged_blocks: _Optional[int] = ..., cached_blocks: _Optional[int] = ..., pinned_blocks: _Optional[int] = ..., reserved_blocks: _Optional[int] = ..., max_blocks: _Optional[int] = ..., weight: _Optional[float] = ...) -> None: ...

class MemoryCounters(_message.Message):
    __slots__ = ("steps", "prompt_tokens", "cached_prompt_tokens", "generated_tokens", "preemptions", "copied_blocks", "evicted_blocks", "peak_referenced_blocks", "slot_steps", "reserved_slot_steps", "internal_slot_steps", "unshared_slot_steps", "preemptions_by_swap", "swapped_out_blocks", "swapped_in_blocks", "host_cached_prompt_tokens", "waiting_seconds", "running_seconds", "preempted_seconds")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    COPIED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    EVICTED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PEAK_REFERENCED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SLOT_STEPS_FIELD_NUMBER: _ClassVar[int]
    RESERVED_SLOT_STEPS_FIELD_NUMBER: _ClassVar[int]
    INTERNAL_SLOT_STEPS_FIELD_NUMBER: _ClassVar[int]
    UNSHARED_SLOT_STEPS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_BY_SWAP_FIELD_NUMBER: _ClassVar[int]
    SWAPPED_OUT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SWAPPED_IN_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    HOST_CACHED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WAITING_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    steps: int
    prompt_tokens: int
    cached_prompt_tokens: int
    generated_tokens: int
    preemptions: int
    copied_blocks: int
    evicted_blocks: int
    peak_referenced_blocks: int
    slot_steps: int
    reserved_slot_steps: int
    internal_slot_steps: int
    unshared_slot_steps: int
    preemptions_by_swap: int
    swapped_out_blocks: int
    swapped_in_blocks: int
    host_cached_prompt_tokens: int
    waiting_seconds: float
    running_seconds: float
    preempted_seconds: float
    def __init__(self, steps: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., cached_prompt_tokens: _Optional[int] = ..., generated_tokens: _Optional[int] = ..., preemptions: _Optional[int] = ..., copied_blocks: _Optional[int] = ..., evicted_blocks: _Optional[int] = ..., peak_referenced_blocks: _Optional[int] = ..., slot_steps: _Optional[int] = ..., reserved_slot_steps: _Optional[int] = ..., internal_slot_steps: _Optional[int] = ..., unshared_slot_steps: _Optional[int] = ..., preemptions_by_swap: _Optional[int] = ..., swapped_out_blocks: _Optional[int] = ..., swapped_in_blocks: _Optional[int] = ..., host_cached_prompt_tokens: _Optional[int] = ..., waiting_seconds: _Optional[float] = ..., running_seconds: _Optional[float] = ..., preempted_seconds: _Optional[float] = ...) -> None: ...

class Block(_message.Message):
    __slots__ = ("block_id", "tier", "reference_count", "cached", "owner", "fill", "identity_prefix")
    BLOCK_ID_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_COUNT_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    FILL_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_PREFIX_FIELD_NUMBER: _ClassVar[int]
    block_id: int
    tier: _common_pb2.Tier
    reference_count: int
    cached: bool
    owner: str
    fill: int
    identity_prefix: bytes
    def __init__(self, block_id: _Optional[int] = ..., tier: _Optional[_Union[_common_pb2.Tier, str]] = ..., reference_count: _Optional[int] = ..., cached: _Optional[bool] = ..., owner: _Optional[str] = ..., fill: _Optional[int] = ..., identity_prefix: _Optional[bytes] = ...) -> None: ...

class Speeds(_message.Message):
    __slots__ = ("prefill_tokens_per_s", "swap_out_blocks_per_s", "swap_in_blocks_per_s", "copy_blocks_per_s")
    PREFILL_TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    SWAP_OUT_BLOCKS_PER_S_FIELD_NUMBER: _ClassVar[int]
    SWAP_IN_BLOCKS_PER_S_FIELD_NUMBER: _ClassVar[int]
    COPY_BLOCKS_PER_S_FIELD_NUMBER: _ClassVar[int]
    prefill_tokens_per_s: float
    swap_out_blocks_per_s: float
    swap_in_blocks_per_s: float
    copy_blocks_per_s: float
    def __init__(self, prefill_tokens_per_s: _Optional[float] = ..., swap_out_blocks_per_s: _Optional[float] = ..., swap_in_blocks_per_s: _Optional[float] = ..., copy_blocks_per_s: _Optional[float] = ...) -> None: ...
