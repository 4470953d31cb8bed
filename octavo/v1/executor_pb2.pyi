from octavo.v1 import common_pb2 as _common_pb2
from octavo.v1 import inference_pb2 as _inference_pb2
from octavo.v1 import memory_pb2 as _memory_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("model", "bytes_per_block", "incarnation", "epoch", "device", "dtype", "attention_backend", "num_host_blocks", "speeds", "tensor_parallel_size", "max_batched_tokens", "max_sequences")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_BLOCK_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_BACKEND_FIELD_NUMBER: _ClassVar[int]
    NUM_HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SPEEDS_FIELD_NUMBER: _ClassVar[int]
    TENSOR_PARALLEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    model: _inference_pb2.Model
    bytes_per_block: int
    incarnation: str
    epoch: int
    device: str
    dtype: str
    attention_backend: str
    num_host_blocks: int
    speeds: _memory_pb2.Speeds
    tensor_parallel_size: int
    max_batched_tokens: int
    max_sequences: int
    def __init__(self, model: _Optional[_Union[_inference_pb2.Model, _Mapping]] = ..., bytes_per_block: _Optional[int] = ..., incarnation: _Optional[str] = ..., epoch: _Optional[int] = ..., device: _Optional[str] = ..., dtype: _Optional[str] = ..., attention_backend: _Optional[str] = ..., num_host_blocks: _Optional[int] = ..., speeds: _Optional[_Union[_memory_pb2.Speeds, _Mapping]] = ..., tensor_parallel_size: _Optional[int] = ..., max_batched_tokens: _Optional[int] = ..., max_sequences: _Optional[int] = ...) -> None: ...

class DescribeBlocksRequest(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class DescribeBlocksResponse(_message.Message):
    __slots__ = ("blocks",)
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    blocks: _containers.RepeatedCompositeFieldContainer[StoredBlock]
    def __init__(self, blocks: _Optional[_Iterable[_Union[StoredBlock, _Mapping]]] = ...) -> None: ...

class StoredBlock(_message.Message):
    __slots__ = ("block_id", "tier", "identity", "parent_identity", "token_ids", "salt", "owner", "narrowness")
    BLOCK_ID_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    PARENT_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    NARROWNESS_FIELD_NUMBER: _ClassVar[int]
    block_id: int
    tier: _common_pb2.Tier
    identity: bytes
    parent_identity: bytes
    token_ids: bytes
    salt: bytes
    owner: str
    narrowness: int
    def __init__(self, block_id: _Optional[int] = ..., tier: _Optional[_Union[_common_pb2.Tier, str]] = ..., identity: _Optional[bytes] = ..., parent_identity: _Optional[bytes] = ..., token_ids: _Optional[bytes] = ..., salt: _Optional[bytes] = ..., owner: _Optional[str] = ..., narrowness: _Optional[int] = ...) -> None: ...

class ExecuteRequest(_message.Message):
    __slots__ = ("batch",)
    BATCH_FIELD_NUMBER: _ClassVar[int]
    batch: StepBatch
    def __init__(self, batch: _Optional[_Union[StepBatch, _Mapping]] = ...) -> None: ...

class ExecuteResponse(_message.Message):
    __slots__ = ("result",)
    RESULT_FIELD_NUMBER: _ClassVar[int]
    result: StepResult
    def __init__(self, result: _Optional[_Union[StepResult, _Mapping]] = ...) -> None: ...

class StepBatch(_message.Message):
    __slots__ = ("epoch", "step", "forget", "new_sequences", "table_edits", "block_copies", "row_sequence_ids", "row_num_tokens", "forks", "traces", "branches", "chosen_tokens", "swaps_out", "swaps_in", "removed_blocks", "stored_blocks")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    NEW_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    TABLE_EDITS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_COPIES_FIELD_NUMBER: _ClassVar[int]
    ROW_SEQUENCE_IDS_FIELD_NUMBER: _ClassVar[int]
    ROW_NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FORKS_FIELD_NUMBER: _ClassVar[int]
    TRACES_FIELD_NUMBER: _ClassVar[int]
    BRANCHES_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SWAPS_OUT_FIELD_NUMBER: _ClassVar[int]
    SWAPS_IN_FIELD_NUMBER: _ClassVar[int]
    REMOVED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    STORED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    step: int
    forget: bytes
    new_sequences: _containers.RepeatedCompositeFieldContainer[NewSequence]
    table_edits: bytes
    block_copies: bytes
    row_sequence_ids: bytes
    row_num_tokens: bytes
    forks: _containers.RepeatedCompositeFieldContainer[Fork]
    traces: _containers.RepeatedCompositeFieldContainer[_common_pb2.TraceContext]
    branches: bytes
    chosen_tokens: bytes
    swaps_out: bytes
    swaps_in: bytes
    removed_blocks: bytes
    stored_blocks: _containers.RepeatedCompositeFieldContainer[StoredBlock]
    def __init__(self, epoch: _Optional[int] = ..., step: _Optional[int] = ..., forget: _Optional[bytes] = ..., new_sequences: _Optional[_Iterable[_Union[NewSequence, _Mapping]]] = ..., table_edits: _Optional[bytes] = ..., block_copies: _Optional[bytes] = ..., row_sequence_ids: _Optional[bytes] = ..., row_num_tokens: _Optional[bytes] = ..., forks: _Optional[_Iterable[_Union[Fork, _Mapping]]] = ..., traces: _Optional[_Iterable[_Union[_common_pb2.TraceContext, _Mapping]]] = ..., branches: _Optional[bytes] = ..., chosen_tokens: _Optional[bytes] = ..., swaps_out: _Optional[bytes] = ..., swaps_in: _Optional[bytes] = ..., removed_blocks: _Optional[bytes] = ..., stored_blocks: _Optional[_Iterable[_Union[StoredBlock, _Mapping]]] = ...) -> None: ...

class NewSequence(_message.Message):
    __slots__ = ("sequence_id", "token_ids", "prompt_length", "num_computed", "block_table", "sampling", "sample_index", "num_candidates", "ranked")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    NUM_COMPUTED_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TABLE_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    NUM_CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    RANKED_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    token_ids: bytes
    prompt_length: int
    num_computed: int
    block_table: bytes
    sampling: _common_pb2.SamplingParams
    sample_index: int
    num_candidates: int
    ranked: bool
    def __init__(self, sequence_id: _Optional[int] = ..., token_ids: _Optional[bytes] = ..., prompt_length: _Optional[int] = ..., num_computed: _Optional[int] = ..., block_table: _Optional[bytes] = ..., sampling: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ..., sample_index: _Optional[int] = ..., num_candidates: _Optional[int] = ..., ranked: _Optional[bool] = ...) -> None: ...

class Fork(_message.Message):
    __slots__ = ("parent_sequence_id", "child_sequence_ids")
    PARENT_SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    CHILD_SEQUENCE_IDS_FIELD_NUMBER: _ClassVar[int]
    parent_sequence_id: int
    child_sequence_ids: bytes
    def __init__(self, parent_sequence_id: _Optional[int] = ..., child_sequence_ids: _Optional[bytes] = ...) -> None: ...

class StepResult(_message.Message):
    __slots__ = ("epoch", "step", "sequence_ids", "token_ids", "logprobs", "duration_us", "scores", "candidates", "speeds", "failures")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_IDS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    DURATION_US_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    SPEEDS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    step: int
    sequence_ids: bytes
    token_ids: bytes
    logprobs: _containers.RepeatedCompositeFieldContainer[_common_pb2.TokenLogprobs]
    duration_us: int
    scores: bytes
    candidates: _containers.RepeatedCompositeFieldContainer[Candidates]
    speeds: _memory_pb2.Speeds
    failures: _containers.RepeatedCompositeFieldContainer[SequenceFailure]
    def __init__(self, epoch: _Optional[int] = ..., step: _Optional[int] = ..., sequence_ids: _Optional[bytes] = ..., token_ids: _Optional[bytes] = ..., logprobs: _Optional[_Iterable[_Union[_common_pb2.TokenLogprobs, _Mapping]]] = ..., duration_us: _Optional[int] = ..., scores: _Optional[bytes] = ..., candidates: _Optional[_Iterable[_Union[Candidates, _Mapping]]] = ..., speeds: _Optional[_Union[_memory_pb2.Speeds, _Mapping]] = ..., failures: _Optional[_Iterable[_Union[SequenceFailure, _Mapping]]] = ...) -> None: ...

class SequenceFailure(_message.Message):
    __slots__ = ("sequence_id", "reason")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    reason: str
    def __init__(self, sequence_id: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Candidates(_message.Message):
    __slots__ = ("sequence_id", "token_ids", "logprobs")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    token_ids: bytes
    logprobs: bytes
    def __init__(self, sequence_id: _Optional[int] = ..., token_ids: _Optional[bytes] = ..., logprobs: _Optional[bytes] = ...) -> None: ...
