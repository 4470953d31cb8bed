from octavo.v1 import common_pb2 as _common_pb2
from octavo.v1 import inference_pb2 as _inference_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AttachRequest(_message.Message):
    __slots__ = ("submissions", "aborts")
    SUBMISSIONS_FIELD_NUMBER: _ClassVar[int]
    ABORTS_FIELD_NUMBER: _ClassVar[int]
    submissions: _containers.RepeatedCompositeFieldContainer[Submission]
    aborts: _containers.RepeatedCompositeFieldContainer[Abort]
    def __init__(self, submissions: _Optional[_Iterable[_Union[Submission, _Mapping]]] = ..., aborts: _Optional[_Iterable[_Union[Abort, _Mapping]]] = ...) -> None: ...

class Submission(_message.Message):
    __slots__ = ("handle", "request_id", "prompt_token_ids", "salt", "n", "max_tokens", "min_tokens", "stop_token_ids", "sampling", "timeout_us", "trace", "tenant")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_US_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    handle: int
    request_id: str
    prompt_token_ids: bytes
    salt: bytes
    n: int
    max_tokens: int
    min_tokens: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: _common_pb2.SamplingParams
    timeout_us: int
    trace: _common_pb2.TraceContext
    tenant: str
    def __init__(self, handle: _Optional[int] = ..., request_id: _Optional[str] = ..., prompt_token_ids: _Optional[bytes] = ..., salt: _Optional[bytes] = ..., n: _Optional[int] = ..., max_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ..., timeout_us: _Optional[int] = ..., trace: _Optional[_Union[_common_pb2.TraceContext, _Mapping]] = ..., tenant: _Optional[str] = ...) -> None: ...

class Abort(_message.Message):
    __slots__ = ("handle", "sequence_index")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_INDEX_FIELD_NUMBER: _ClassVar[int]
    handle: int
    sequence_index: int
    def __init__(self, handle: _Optional[int] = ..., sequence_index: _Optional[int] = ...) -> None: ...

class AttachResponse(_message.Message):
    __slots__ = ("backend", "updates", "ends")
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    backend: BackendState
    updates: _containers.RepeatedCompositeFieldContainer[SequenceUpdate]
    ends: _containers.RepeatedCompositeFieldContainer[RequestEnd]
    def __init__(self, backend: _Optional[_Union[BackendState, _Mapping]] = ..., updates: _Optional[_Iterable[_Union[SequenceUpdate, _Mapping]]] = ..., ends: _Optional[_Iterable[_Union[RequestEnd, _Mapping]]] = ...) -> None: ...

class BackendState(_message.Message):
    __slots__ = ("ready", "model", "epoch")
    READY_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ready: bool
    model: _inference_pb2.Model
    epoch: int
    def __init__(self, ready: _Optional[bool] = ..., model: _Optional[_Union[_inference_pb2.Model, _Mapping]] = ..., epoch: _Optional[int] = ...) -> None: ...

class SequenceUpdate(_message.Message):
    __slots__ = ("handle", "sequence_index", "position", "token_ids", "logprobs", "finish_reason")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_INDEX_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    handle: int
    sequence_index: int
    position: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[_common_pb2.TokenLogprobs]
    finish_reason: _common_pb2.FinishReason
    def __init__(self, handle: _Optional[int] = ..., sequence_index: _Optional[int] = ..., position: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[_common_pb2.TokenLogprobs, _Mapping]]] = ..., finish_reason: _Optional[_Union[_common_pb2.FinishReason, str]] = ...) -> None: ...

class RequestEnd(_message.Message):
    __slots__ = ("handle", "usage", "error")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    handle: int
    usage: _common_pb2.Usage
    error: RequestError
    def __init__(self, handle: _Optional[int] = ..., usage: _Optional[_Union[_common_pb2.Usage, _Mapping]] = ..., error: _Optional[_Union[RequestError, _Mapping]] = ...) -> None: ...

class RequestError(_message.Message):
    __slots__ = ("code", "message", "field", "reason", "retry_after_us")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_US_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    field: str
    reason: str
    retry_after_us: int
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., field: _Optional[str] = ..., reason: _Optional[str] = ..., retry_after_us: _Optional[int] = ...) -> None: ...

class GetMemoryMapRequest(_message.Message):
    __slots__ = ("include_blocks",)
    INCLUDE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    include_blocks: bool
    def __init__(self, include_blocks: _Optional[bool] = ...) -> None: ...

class GetMemoryMapResponse(_message.Message):
    __slots__ = ("block_size", "num_blocks", "free_blocks", "cached_blocks", "referenced_blocks", "bytes_per_block", "running_requests", "waiting_requests", "counters", "blocks")
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CACHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    REFERENCED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_BLOCK_FIELD_NUMBER: _ClassVar[int]
    RUNNING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    WAITING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    block_size: int
    num_blocks: int
    free_blocks: int
    cached_blocks: int
    referenced_blocks: int
    bytes_per_block: int
    running_requests: int
    waiting_requests: int
    counters: MemoryCounters
    blocks: _containers.RepeatedCompositeFieldContainer[Block]
    def __init__(self, block_size: _Optional[int] = ..., num_blocks: _Optional[int] = ..., free_blocks: _Optional[int] = ..., cached_blocks: _Optional[int] = ..., referenced_blocks: _Optional[int] = ..., bytes_per_block: _Optional[int] = ..., running_requests: _Optional[int] = ..., waiting_requests: _Optional[int] = ..., counters: _Optional[_Union[MemoryCounters, _Mapping]] = ..., blocks: _Optional[_Iterable[_Union[Block, _Mapping]]] = ...) -> None: ...

class MemoryCounters(_message.Message):
    __slots__ = ("steps", "prompt_tokens", "cached_prompt_tokens", "generated_tokens", "preemptions", "copied_blocks", "evicted_blocks", "peak_referenced_blocks", "slot_steps", "reserved_slot_steps", "internal_slot_steps")
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
    def __init__(self, steps: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., cached_prompt_tokens: _Optional[int] = ..., generated_tokens: _Optional[int] = ..., preemptions: _Optional[int] = ..., copied_blocks: _Optional[int] = ..., evicted_blocks: _Optional[int] = ..., peak_referenced_blocks: _Optional[int] = ..., slot_steps: _Optional[int] = ..., reserved_slot_steps: _Optional[int] = ..., internal_slot_steps: _Optional[int] = ...) -> None: ...

class Block(_message.Message):
    __slots__ = ("reference_count", "cached")
    REFERENCE_COUNT_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    reference_count: int
    cached: bool
    def __init__(self, reference_count: _Optional[int] = ..., cached: _Optional[bool] = ...) -> None: ...
