import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from octavo.v1 import common_pb2 as _common_pb2
from octavo.v1 import inference_pb2 as _inference_pb2
from octavo.v1 import memory_pb2 as _memory_pb2
from octavo.v1 import monitoring_pb2 as _monitoring_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AttachRequest(_message.Message):
    __slots__ = ("submissions", "aborts", "token_interval_us")
    SUBMISSIONS_FIELD_NUMBER: _ClassVar[int]
    ABORTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_INTERVAL_US_FIELD_NUMBER: _ClassVar[int]
    submissions: _containers.RepeatedCompositeFieldContainer[Submission]
    aborts: _containers.RepeatedCompositeFieldContainer[Abort]
    token_interval_us: int
    def __init__(self, submissions: _Optional[_Iterable[_Union[Submission, _Mapping]]] = ..., aborts: _Optional[_Iterable[_Union[Abort, _Mapping]]] = ..., token_interval_us: _Optional[int] = ...) -> None: ...

class Submission(_message.Message):
    __slots__ = ("handle", "request_id", "prompt_token_ids", "spans", "n", "max_tokens", "min_tokens", "stop_token_ids", "sampling", "timeout_us", "trace", "tenant", "priority", "best_of", "beam_search", "report_progress", "pin", "resumption")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_US_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    BEST_OF_FIELD_NUMBER: _ClassVar[int]
    BEAM_SEARCH_FIELD_NUMBER: _ClassVar[int]
    REPORT_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    PIN_FIELD_NUMBER: _ClassVar[int]
    RESUMPTION_FIELD_NUMBER: _ClassVar[int]
    handle: int
    request_id: str
    prompt_token_ids: bytes
    spans: _containers.RepeatedCompositeFieldContainer[ScopeSpan]
    n: int
    max_tokens: int
    min_tokens: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: _common_pb2.SamplingParams
    timeout_us: int
    trace: _common_pb2.TraceContext
    tenant: str
    priority: int
    best_of: int
    beam_search: BeamSearch
    report_progress: bool
    pin: PinOrder
    resumption: Resumption
    def __init__(self, handle: _Optional[int] = ..., request_id: _Optional[str] = ..., prompt_token_ids: _Optional[bytes] = ..., spans: _Optional[_Iterable[_Union[ScopeSpan, _Mapping]]] = ..., n: _Optional[int] = ..., max_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ..., timeout_us: _Optional[int] = ..., trace: _Optional[_Union[_common_pb2.TraceContext, _Mapping]] = ..., tenant: _Optional[str] = ..., priority: _Optional[int] = ..., best_of: _Optional[int] = ..., beam_search: _Optional[_Union[BeamSearch, _Mapping]] = ..., report_progress: _Optional[bool] = ..., pin: _Optional[_Union[PinOrder, _Mapping]] = ..., resumption: _Optional[_Union[Resumption, _Mapping]] = ...) -> None: ...

class Resumption(_message.Message):
    __slots__ = ("sequences",)
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    sequences: _containers.RepeatedCompositeFieldContainer[ResumedSequence]
    def __init__(self, sequences: _Optional[_Iterable[_Union[ResumedSequence, _Mapping]]] = ...) -> None: ...

class ResumedSequence(_message.Message):
    __slots__ = ("token_ids", "finish_reason")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    token_ids: bytes
    finish_reason: _common_pb2.FinishReason
    def __init__(self, token_ids: _Optional[bytes] = ..., finish_reason: _Optional[_Union[_common_pb2.FinishReason, str]] = ...) -> None: ...

class ScopeSpan(_message.Message):
    __slots__ = ("num_tokens", "salt", "narrowness", "owner")
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    NARROWNESS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    num_tokens: int
    salt: bytes
    narrowness: int
    owner: str
    def __init__(self, num_tokens: _Optional[int] = ..., salt: _Optional[bytes] = ..., narrowness: _Optional[int] = ..., owner: _Optional[str] = ...) -> None: ...

class BeamSearch(_message.Message):
    __slots__ = ("width", "length_penalty", "early_stopping")
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    LENGTH_PENALTY_FIELD_NUMBER: _ClassVar[int]
    EARLY_STOPPING_FIELD_NUMBER: _ClassVar[int]
    width: int
    length_penalty: float
    early_stopping: _common_pb2.EarlyStopping
    def __init__(self, width: _Optional[int] = ..., length_penalty: _Optional[float] = ..., early_stopping: _Optional[_Union[_common_pb2.EarlyStopping, str]] = ...) -> None: ...

class PinOrder(_message.Message):
    __slots__ = ("pin_id", "ttl_us")
    PIN_ID_FIELD_NUMBER: _ClassVar[int]
    TTL_US_FIELD_NUMBER: _ClassVar[int]
    pin_id: str
    ttl_us: int
    def __init__(self, pin_id: _Optional[str] = ..., ttl_us: _Optional[int] = ...) -> None: ...

class Abort(_message.Message):
    __slots__ = ("handle", "sequence_index")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_INDEX_FIELD_NUMBER: _ClassVar[int]
    handle: int
    sequence_index: int
    def __init__(self, handle: _Optional[int] = ..., sequence_index: _Optional[int] = ...) -> None: ...

class AttachResponse(_message.Message):
    __slots__ = ("backend", "updates", "ends", "progress", "tokens")
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    backend: BackendState
    updates: _containers.RepeatedCompositeFieldContainer[SequenceUpdate]
    ends: _containers.RepeatedCompositeFieldContainer[RequestEnd]
    progress: _containers.RepeatedCompositeFieldContainer[Progress]
    tokens: TokenColumns
    def __init__(self, backend: _Optional[_Union[BackendState, _Mapping]] = ..., updates: _Optional[_Iterable[_Union[SequenceUpdate, _Mapping]]] = ..., ends: _Optional[_Iterable[_Union[RequestEnd, _Mapping]]] = ..., progress: _Optional[_Iterable[_Union[Progress, _Mapping]]] = ..., tokens: _Optional[_Union[TokenColumns, _Mapping]] = ...) -> None: ...

class TokenColumns(_message.Message):
    __slots__ = ("handles", "sequence_indices", "positions", "token_ids", "counts")
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_INDICES_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    handles: bytes
    sequence_indices: bytes
    positions: bytes
    token_ids: bytes
    counts: bytes
    def __init__(self, handles: _Optional[bytes] = ..., sequence_indices: _Optional[bytes] = ..., positions: _Optional[bytes] = ..., token_ids: _Optional[bytes] = ..., counts: _Optional[bytes] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("handle", "prefill")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    handle: int
    prefill: _inference_pb2.PrefillProgress
    def __init__(self, handle: _Optional[int] = ..., prefill: _Optional[_Union[_inference_pb2.PrefillProgress, _Mapping]] = ...) -> None: ...

class BackendState(_message.Message):
    __slots__ = ("ready", "model", "epoch", "group")
    READY_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ready: bool
    model: _inference_pb2.Model
    epoch: int
    group: str
    def __init__(self, ready: _Optional[bool] = ..., model: _Optional[_Union[_inference_pb2.Model, _Mapping]] = ..., epoch: _Optional[int] = ..., group: _Optional[str] = ...) -> None: ...

class SequenceUpdate(_message.Message):
    __slots__ = ("handle", "sequence_index", "position", "token_ids", "logprobs", "finish_reason", "score")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_INDEX_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    handle: int
    sequence_index: int
    position: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[_common_pb2.TokenLogprobs]
    finish_reason: _common_pb2.FinishReason
    score: float
    def __init__(self, handle: _Optional[int] = ..., sequence_index: _Optional[int] = ..., position: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[_common_pb2.TokenLogprobs, _Mapping]]] = ..., finish_reason: _Optional[_Union[_common_pb2.FinishReason, str]] = ..., score: _Optional[float] = ...) -> None: ...

class RequestEnd(_message.Message):
    __slots__ = ("handle", "usage", "error", "times")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    handle: int
    usage: _common_pb2.Usage
    error: RequestError
    times: RequestTimes
    def __init__(self, handle: _Optional[int] = ..., usage: _Optional[_Union[_common_pb2.Usage, _Mapping]] = ..., error: _Optional[_Union[RequestError, _Mapping]] = ..., times: _Optional[_Union[RequestTimes, _Mapping]] = ...) -> None: ...

class RequestTimes(_message.Message):
    __slots__ = ("waiting_us", "prefill_us", "decode_us", "preempted_us", "preemptions")
    WAITING_US_FIELD_NUMBER: _ClassVar[int]
    PREFILL_US_FIELD_NUMBER: _ClassVar[int]
    DECODE_US_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_US_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    waiting_us: int
    prefill_us: int
    decode_us: int
    preempted_us: int
    preemptions: int
    def __init__(self, waiting_us: _Optional[int] = ..., prefill_us: _Optional[int] = ..., decode_us: _Optional[int] = ..., preempted_us: _Optional[int] = ..., preemptions: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("block_size", "num_blocks", "free_blocks", "cached_blocks", "referenced_blocks", "bytes_per_block", "running_requests", "waiting_requests", "counters", "swapped_requests", "executors", "tenants", "shares", "step_tokens", "tenant_counters")
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CACHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    REFERENCED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_BLOCK_FIELD_NUMBER: _ClassVar[int]
    RUNNING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    WAITING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    SWAPPED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    EXECUTORS_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    STEP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TENANT_COUNTERS_FIELD_NUMBER: _ClassVar[int]
    block_size: int
    num_blocks: int
    free_blocks: int
    cached_blocks: int
    referenced_blocks: int
    bytes_per_block: int
    running_requests: int
    waiting_requests: int
    counters: _memory_pb2.MemoryCounters
    swapped_requests: int
    executors: _containers.RepeatedCompositeFieldContainer[_memory_pb2.ExecutorMemory]
    tenants: _containers.RepeatedCompositeFieldContainer[_memory_pb2.TenantMemory]
    shares: _containers.RepeatedCompositeFieldContainer[TenantShare]
    step_tokens: StepTokens
    tenant_counters: _containers.RepeatedCompositeFieldContainer[TenantCounters]
    def __init__(self, block_size: _Optional[int] = ..., num_blocks: _Optional[int] = ..., free_blocks: _Optional[int] = ..., cached_blocks: _Optional[int] = ..., referenced_blocks: _Optional[int] = ..., bytes_per_block: _Optional[int] = ..., running_requests: _Optional[int] = ..., waiting_requests: _Optional[int] = ..., counters: _Optional[_Union[_memory_pb2.MemoryCounters, _Mapping]] = ..., swapped_requests: _Optional[int] = ..., executors: _Optional[_Iterable[_Union[_memory_pb2.ExecutorMemory, _Mapping]]] = ..., tenants: _Optional[_Iterable[_Union[_memory_pb2.TenantMemory, _Mapping]]] = ..., shares: _Optional[_Iterable[_Union[TenantShare, _Mapping]]] = ..., step_tokens: _Optional[_Union[StepTokens, _Mapping]] = ..., tenant_counters: _Optional[_Iterable[_Union[TenantCounters, _Mapping]]] = ...) -> None: ...

class TenantCounters(_message.Message):
    __slots__ = ("tenant", "counters")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    counters: _memory_pb2.MemoryCounters
    def __init__(self, tenant: _Optional[str] = ..., counters: _Optional[_Union[_memory_pb2.MemoryCounters, _Mapping]] = ...) -> None: ...

class TenantShare(_message.Message):
    __slots__ = ("tenant", "executor", "referenced_device_blocks", "cached_device_blocks", "referenced_host_blocks", "cached_host_blocks", "running_requests", "waiting_requests", "swapped_requests", "batch_sequences", "batch_prefill_tokens", "batch_decode_tokens")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    EXECUTOR_FIELD_NUMBER: _ClassVar[int]
    REFERENCED_DEVICE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CACHED_DEVICE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    REFERENCED_HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CACHED_HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    WAITING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    SWAPPED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    BATCH_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    BATCH_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BATCH_DECODE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    executor: str
    referenced_device_blocks: int
    cached_device_blocks: int
    referenced_host_blocks: int
    cached_host_blocks: int
    running_requests: int
    waiting_requests: int
    swapped_requests: int
    batch_sequences: int
    batch_prefill_tokens: int
    batch_decode_tokens: int
    def __init__(self, tenant: _Optional[str] = ..., executor: _Optional[str] = ..., referenced_device_blocks: _Optional[int] = ..., cached_device_blocks: _Optional[int] = ..., referenced_host_blocks: _Optional[int] = ..., cached_host_blocks: _Optional[int] = ..., running_requests: _Optional[int] = ..., waiting_requests: _Optional[int] = ..., swapped_requests: _Optional[int] = ..., batch_sequences: _Optional[int] = ..., batch_prefill_tokens: _Optional[int] = ..., batch_decode_tokens: _Optional[int] = ...) -> None: ...

class StepTokens(_message.Message):
    __slots__ = ("counts", "total")
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    counts: _containers.RepeatedScalarFieldContainer[int]
    total: int
    def __init__(self, counts: _Optional[_Iterable[int]] = ..., total: _Optional[int] = ...) -> None: ...

class WatchMemoryRequest(_message.Message):
    __slots__ = ("interval",)
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    interval: _duration_pb2.Duration
    def __init__(self, interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class WatchMemoryResponse(_message.Message):
    __slots__ = ("executor", "snapshot", "num_device_blocks", "num_host_blocks", "blocks", "removed")
    EXECUTOR_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    NUM_DEVICE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    executor: str
    snapshot: bool
    num_device_blocks: int
    num_host_blocks: int
    blocks: _containers.RepeatedCompositeFieldContainer[_memory_pb2.Block]
    removed: bool
    def __init__(self, executor: _Optional[str] = ..., snapshot: _Optional[bool] = ..., num_device_blocks: _Optional[int] = ..., num_host_blocks: _Optional[int] = ..., blocks: _Optional[_Iterable[_Union[_memory_pb2.Block, _Mapping]]] = ..., removed: _Optional[bool] = ...) -> None: ...

class SubscribeKvEventsRequest(_message.Message):
    __slots__ = ("from_sequence_number", "current_blocks_first")
    FROM_SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    CURRENT_BLOCKS_FIRST_FIELD_NUMBER: _ClassVar[int]
    from_sequence_number: int
    current_blocks_first: bool
    def __init__(self, from_sequence_number: _Optional[int] = ..., current_blocks_first: _Optional[bool] = ...) -> None: ...

class SubscribeKvEventsResponse(_message.Message):
    __slots__ = ("sequence_number", "executor", "events", "cached_before")
    SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    EXECUTOR_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    CACHED_BEFORE_FIELD_NUMBER: _ClassVar[int]
    sequence_number: int
    executor: str
    events: _containers.RepeatedCompositeFieldContainer[KvEvent]
    cached_before: bool
    def __init__(self, sequence_number: _Optional[int] = ..., executor: _Optional[str] = ..., events: _Optional[_Iterable[_Union[KvEvent, _Mapping]]] = ..., cached_before: _Optional[bool] = ...) -> None: ...

class KvEvent(_message.Message):
    __slots__ = ("stored", "removed", "cleared")
    STORED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    CLEARED_FIELD_NUMBER: _ClassVar[int]
    stored: BlockStored
    removed: BlockRemoved
    cleared: AllBlocksCleared
    def __init__(self, stored: _Optional[_Union[BlockStored, _Mapping]] = ..., removed: _Optional[_Union[BlockRemoved, _Mapping]] = ..., cleared: _Optional[_Union[AllBlocksCleared, _Mapping]] = ...) -> None: ...

class BlockStored(_message.Message):
    __slots__ = ("identity", "parent_identity", "token_ids", "tier")
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    PARENT_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    identity: bytes
    parent_identity: bytes
    token_ids: bytes
    tier: _common_pb2.Tier
    def __init__(self, identity: _Optional[bytes] = ..., parent_identity: _Optional[bytes] = ..., token_ids: _Optional[bytes] = ..., tier: _Optional[_Union[_common_pb2.Tier, str]] = ...) -> None: ...

class BlockRemoved(_message.Message):
    __slots__ = ("identity", "tier")
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    identity: bytes
    tier: _common_pb2.Tier
    def __init__(self, identity: _Optional[bytes] = ..., tier: _Optional[_Union[_common_pb2.Tier, str]] = ...) -> None: ...

class AllBlocksCleared(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AddExecutorRequest(_message.Message):
    __slots__ = ("address",)
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    address: str
    def __init__(self, address: _Optional[str] = ...) -> None: ...

class AddExecutorResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainExecutorRequest(_message.Message):
    __slots__ = ("address",)
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    address: str
    def __init__(self, address: _Optional[str] = ...) -> None: ...

class DrainExecutorResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UnpinRequest(_message.Message):
    __slots__ = ("tenant", "pin_id")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PIN_ID_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    pin_id: str
    def __init__(self, tenant: _Optional[str] = ..., pin_id: _Optional[str] = ...) -> None: ...

class UnpinResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTenantPinsRequest(_message.Message):
    __slots__ = ("tenant",)
    TENANT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    def __init__(self, tenant: _Optional[str] = ...) -> None: ...

class ListTenantPinsResponse(_message.Message):
    __slots__ = ("pins",)
    PINS_FIELD_NUMBER: _ClassVar[int]
    pins: _containers.RepeatedCompositeFieldContainer[_inference_pb2.Pin]
    def __init__(self, pins: _Optional[_Iterable[_Union[_inference_pb2.Pin, _Mapping]]] = ...) -> None: ...

class KVManagerServiceListRequestsRequest(_message.Message):
    __slots__ = ("tenant", "num_ended", "include_blocks")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    NUM_ENDED_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    num_ended: int
    include_blocks: bool
    def __init__(self, tenant: _Optional[str] = ..., num_ended: _Optional[int] = ..., include_blocks: _Optional[bool] = ...) -> None: ...

class KVManagerServiceListRequestsResponse(_message.Message):
    __slots__ = ("requests",)
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[_monitoring_pb2.RequestView]
    def __init__(self, requests: _Optional[_Iterable[_Union[_monitoring_pb2.RequestView, _Mapping]]] = ...) -> None: ...

class GetTimelineRequest(_message.Message):
    __slots__ = ("tenant", "request_id")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    request_id: str
    def __init__(self, tenant: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class GetTimelineResponse(_message.Message):
    __slots__ = ("timeline",)
    TIMELINE_FIELD_NUMBER: _ClassVar[int]
    timeline: _monitoring_pb2.Timeline
    def __init__(self, timeline: _Optional[_Union[_monitoring_pb2.Timeline, _Mapping]] = ...) -> None: ...

class KVManagerServiceGetPrefixTreeRequest(_message.Message):
    __slots__ = ("owners", "max_nodes")
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    MAX_NODES_FIELD_NUMBER: _ClassVar[int]
    owners: _containers.RepeatedScalarFieldContainer[str]
    max_nodes: int
    def __init__(self, owners: _Optional[_Iterable[str]] = ..., max_nodes: _Optional[int] = ...) -> None: ...

class KVManagerServiceGetPrefixTreeResponse(_message.Message):
    __slots__ = ("nodes", "nodes_left_out", "scopes")
    NODES_FIELD_NUMBER: _ClassVar[int]
    NODES_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    SCOPES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[CachedPrefix]
    nodes_left_out: int
    scopes: _containers.RepeatedCompositeFieldContainer[CachedScope]
    def __init__(self, nodes: _Optional[_Iterable[_Union[CachedPrefix, _Mapping]]] = ..., nodes_left_out: _Optional[int] = ..., scopes: _Optional[_Iterable[_Union[CachedScope, _Mapping]]] = ...) -> None: ...

class CachedPrefix(_message.Message):
    __slots__ = ("node", "narrowness", "token_ids", "blocks_below")
    NODE_FIELD_NUMBER: _ClassVar[int]
    NARROWNESS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_BELOW_FIELD_NUMBER: _ClassVar[int]
    node: _monitoring_pb2.PrefixNode
    narrowness: int
    token_ids: bytes
    blocks_below: int
    def __init__(self, node: _Optional[_Union[_monitoring_pb2.PrefixNode, _Mapping]] = ..., narrowness: _Optional[int] = ..., token_ids: _Optional[bytes] = ..., blocks_below: _Optional[int] = ...) -> None: ...

class CachedScope(_message.Message):
    __slots__ = ("use", "narrowness", "tenant")
    USE_FIELD_NUMBER: _ClassVar[int]
    NARROWNESS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    use: _monitoring_pb2.ScopeUse
    narrowness: int
    tenant: str
    def __init__(self, use: _Optional[_Union[_monitoring_pb2.ScopeUse, _Mapping]] = ..., narrowness: _Optional[int] = ..., tenant: _Optional[str] = ...) -> None: ...
