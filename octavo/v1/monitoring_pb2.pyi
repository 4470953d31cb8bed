import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from octavo.v1 import inference_pb2 as _inference_pb2
from octavo.v1 import memory_pb2 as _memory_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RequestState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REQUEST_STATE_UNSPECIFIED: _ClassVar[RequestState]
    REQUEST_STATE_WAITING: _ClassVar[RequestState]
    REQUEST_STATE_RUNNING: _ClassVar[RequestState]
    REQUEST_STATE_SWAPPED: _ClassVar[RequestState]
    REQUEST_STATE_ENDED: _ClassVar[RequestState]

class DecisionKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DECISION_KIND_UNSPECIFIED: _ClassVar[DecisionKind]
    DECISION_KIND_QUEUED: _ClassVar[DecisionKind]
    DECISION_KIND_WAITED: _ClassVar[DecisionKind]
    DECISION_KIND_ADMITTED: _ClassVar[DecisionKind]
    DECISION_KIND_PREFILL: _ClassVar[DecisionKind]
    DECISION_KIND_FIRST_TOKEN: _ClassVar[DecisionKind]
    DECISION_KIND_PREEMPTED: _ClassVar[DecisionKind]
    DECISION_KIND_FINISHED: _ClassVar[DecisionKind]
REQUEST_STATE_UNSPECIFIED: RequestState
REQUEST_STATE_WAITING: RequestState
REQUEST_STATE_RUNNING: RequestState
REQUEST_STATE_SWAPPED: RequestState
REQUEST_STATE_ENDED: RequestState
DECISION_KIND_UNSPECIFIED: DecisionKind
DECISION_KIND_QUEUED: DecisionKind
DECISION_KIND_WAITED: DecisionKind
DECISION_KIND_ADMITTED: DecisionKind
DECISION_KIND_PREFILL: DecisionKind
DECISION_KIND_FIRST_TOKEN: DecisionKind
DECISION_KIND_PREEMPTED: DecisionKind
DECISION_KIND_FINISHED: DecisionKind

class WatchStatusRequest(_message.Message):
    __slots__ = ("interval",)
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    interval: _duration_pb2.Duration
    def __init__(self, interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class WatchStatusResponse(_message.Message):
    __slots__ = ("history", "status")
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    history: _containers.RepeatedCompositeFieldContainer[Status]
    status: Status
    def __init__(self, history: _Optional[_Iterable[_Union[Status, _Mapping]]] = ..., status: _Optional[_Union[Status, _Mapping]] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ("time", "ready", "model", "running_requests", "waiting_requests", "swapped_requests", "batch_sequences", "batch_prefill_tokens", "batch_decode_tokens", "counters", "executors", "tenants", "bytes_per_block", "state_available")
    TIME_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    RUNNING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    WAITING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    SWAPPED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    BATCH_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    BATCH_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BATCH_DECODE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    EXECUTORS_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_BLOCK_FIELD_NUMBER: _ClassVar[int]
    STATE_AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    time: _timestamp_pb2.Timestamp
    ready: bool
    model: _inference_pb2.Model
    running_requests: int
    waiting_requests: int
    swapped_requests: int
    batch_sequences: int
    batch_prefill_tokens: int
    batch_decode_tokens: int
    counters: _memory_pb2.MemoryCounters
    executors: _containers.RepeatedCompositeFieldContainer[_memory_pb2.ExecutorMemory]
    tenants: _containers.RepeatedCompositeFieldContainer[TenantStatus]
    bytes_per_block: int
    state_available: bool
    def __init__(self, time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ready: _Optional[bool] = ..., model: _Optional[_Union[_inference_pb2.Model, _Mapping]] = ..., running_requests: _Optional[int] = ..., waiting_requests: _Optional[int] = ..., swapped_requests: _Optional[int] = ..., batch_sequences: _Optional[int] = ..., batch_prefill_tokens: _Optional[int] = ..., batch_decode_tokens: _Optional[int] = ..., counters: _Optional[_Union[_memory_pb2.MemoryCounters, _Mapping]] = ..., executors: _Optional[_Iterable[_Union[_memory_pb2.ExecutorMemory, _Mapping]]] = ..., tenants: _Optional[_Iterable[_Union[TenantStatus, _Mapping]]] = ..., bytes_per_block: _Optional[int] = ..., state_available: _Optional[bool] = ...) -> None: ...

class TenantStatus(_message.Message):
    __slots__ = ("memory", "running_requests", "waiting_requests", "swapped_requests")
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    RUNNING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    WAITING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    SWAPPED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    memory: _memory_pb2.TenantMemory
    running_requests: int
    waiting_requests: int
    swapped_requests: int
    def __init__(self, memory: _Optional[_Union[_memory_pb2.TenantMemory, _Mapping]] = ..., running_requests: _Optional[int] = ..., waiting_requests: _Optional[int] = ..., swapped_requests: _Optional[int] = ...) -> None: ...

class WatchBlocksRequest(_message.Message):
    __slots__ = ("interval",)
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    interval: _duration_pb2.Duration
    def __init__(self, interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class WatchBlocksResponse(_message.Message):
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

class ListRequestsRequest(_message.Message):
    __slots__ = ("num_ended", "include_blocks")
    NUM_ENDED_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    num_ended: int
    include_blocks: bool
    def __init__(self, num_ended: _Optional[int] = ..., include_blocks: _Optional[bool] = ...) -> None: ...

class ListRequestsResponse(_message.Message):
    __slots__ = ("requests",)
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[RequestView]
    def __init__(self, requests: _Optional[_Iterable[_Union[RequestView, _Mapping]]] = ...) -> None: ...

class RequestView(_message.Message):
    __slots__ = ("request_id", "tenant", "state", "reason", "executor", "arrived", "prompt_tokens", "cached_tokens", "computed_tokens", "output_tokens", "max_tokens", "priority", "preemptions", "sequences", "ended")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EXECUTOR_FIELD_NUMBER: _ClassVar[int]
    ARRIVED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    tenant: str
    state: RequestState
    reason: str
    executor: str
    arrived: _timestamp_pb2.Timestamp
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    output_tokens: int
    max_tokens: int
    priority: int
    preemptions: int
    sequences: _containers.RepeatedCompositeFieldContainer[SequenceView]
    ended: _timestamp_pb2.Timestamp
    def __init__(self, request_id: _Optional[str] = ..., tenant: _Optional[str] = ..., state: _Optional[_Union[RequestState, str]] = ..., reason: _Optional[str] = ..., executor: _Optional[str] = ..., arrived: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., computed_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., max_tokens: _Optional[int] = ..., priority: _Optional[int] = ..., preemptions: _Optional[int] = ..., sequences: _Optional[_Iterable[_Union[SequenceView, _Mapping]]] = ..., ended: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class SequenceView(_message.Message):
    __slots__ = ("num_tokens", "block_ids")
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    num_tokens: int
    block_ids: bytes
    def __init__(self, num_tokens: _Optional[int] = ..., block_ids: _Optional[bytes] = ...) -> None: ...

class ExplainRequestRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class ExplainRequestResponse(_message.Message):
    __slots__ = ("timeline",)
    TIMELINE_FIELD_NUMBER: _ClassVar[int]
    timeline: Timeline
    def __init__(self, timeline: _Optional[_Union[Timeline, _Mapping]] = ...) -> None: ...

class Timeline(_message.Message):
    __slots__ = ("request", "decisions", "decisions_left_out")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    request: RequestView
    decisions: _containers.RepeatedCompositeFieldContainer[Decision]
    decisions_left_out: int
    def __init__(self, request: _Optional[_Union[RequestView, _Mapping]] = ..., decisions: _Optional[_Iterable[_Union[Decision, _Mapping]]] = ..., decisions_left_out: _Optional[int] = ...) -> None: ...

class Decision(_message.Message):
    __slots__ = ("kind", "at", "until", "reason", "executor", "step", "tokens")
    KIND_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EXECUTOR_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    kind: DecisionKind
    at: _duration_pb2.Duration
    until: _duration_pb2.Duration
    reason: str
    executor: str
    step: int
    tokens: int
    def __init__(self, kind: _Optional[_Union[DecisionKind, str]] = ..., at: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., until: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., reason: _Optional[str] = ..., executor: _Optional[str] = ..., step: _Optional[int] = ..., tokens: _Optional[int] = ...) -> None: ...

class GetPrefixTreeRequest(_message.Message):
    __slots__ = ("max_nodes",)
    MAX_NODES_FIELD_NUMBER: _ClassVar[int]
    max_nodes: int
    def __init__(self, max_nodes: _Optional[int] = ...) -> None: ...

class GetPrefixTreeResponse(_message.Message):
    __slots__ = ("nodes", "nodes_left_out", "scopes")
    NODES_FIELD_NUMBER: _ClassVar[int]
    NODES_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    SCOPES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[PrefixNode]
    nodes_left_out: int
    scopes: _containers.RepeatedCompositeFieldContainer[ScopeUse]
    def __init__(self, nodes: _Optional[_Iterable[_Union[PrefixNode, _Mapping]]] = ..., nodes_left_out: _Optional[int] = ..., scopes: _Optional[_Iterable[_Union[ScopeUse, _Mapping]]] = ...) -> None: ...

class PrefixNode(_message.Message):
    __slots__ = ("identity_prefix", "parent_identity_prefix", "executor", "num_blocks", "referenced_blocks", "host_blocks", "owner", "scope", "hits", "text")
    IDENTITY_PREFIX_FIELD_NUMBER: _ClassVar[int]
    PARENT_IDENTITY_PREFIX_FIELD_NUMBER: _ClassVar[int]
    EXECUTOR_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    REFERENCED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    identity_prefix: bytes
    parent_identity_prefix: bytes
    executor: str
    num_blocks: int
    referenced_blocks: int
    host_blocks: int
    owner: str
    scope: str
    hits: int
    text: str
    def __init__(self, identity_prefix: _Optional[bytes] = ..., parent_identity_prefix: _Optional[bytes] = ..., executor: _Optional[str] = ..., num_blocks: _Optional[int] = ..., referenced_blocks: _Optional[int] = ..., host_blocks: _Optional[int] = ..., owner: _Optional[str] = ..., scope: _Optional[str] = ..., hits: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class ScopeUse(_message.Message):
    __slots__ = ("owner", "scope", "queried_tokens", "hit_tokens", "cached_blocks")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    QUERIED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    owner: str
    scope: str
    queried_tokens: int
    hit_tokens: int
    cached_blocks: int
    def __init__(self, owner: _Optional[str] = ..., scope: _Optional[str] = ..., queried_tokens: _Optional[int] = ..., hit_tokens: _Optional[int] = ..., cached_blocks: _Optional[int] = ...) -> None: ...
