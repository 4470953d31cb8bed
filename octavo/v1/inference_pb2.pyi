import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from octavo.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ChatMessage(_message.Message):
    __slots__ = ("role", "content")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ...) -> None: ...

class ChatPrompt(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ...) -> None: ...

class TokenPrompt(_message.Message):
    __slots__ = ("token_ids",)
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class CacheScope(_message.Message):
    __slots__ = ("request", "app", "tenant", "shared")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    APP_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    request: RequestScope
    app: AppScope
    tenant: TenantScope
    shared: str
    def __init__(self, request: _Optional[_Union[RequestScope, _Mapping]] = ..., app: _Optional[_Union[AppScope, _Mapping]] = ..., tenant: _Optional[_Union[TenantScope, _Mapping]] = ..., shared: _Optional[str] = ...) -> None: ...

class RequestScope(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AppScope(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TenantScope(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Segment(_message.Message):
    __slots__ = ("text", "message", "tokens", "cache_scope")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHE_SCOPE_FIELD_NUMBER: _ClassVar[int]
    text: str
    message: ChatMessage
    tokens: TokenPrompt
    cache_scope: CacheScope
    def __init__(self, text: _Optional[str] = ..., message: _Optional[_Union[ChatMessage, _Mapping]] = ..., tokens: _Optional[_Union[TokenPrompt, _Mapping]] = ..., cache_scope: _Optional[_Union[CacheScope, _Mapping]] = ...) -> None: ...

class SegmentedPrompt(_message.Message):
    __slots__ = ("segments",)
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    segments: _containers.RepeatedCompositeFieldContainer[Segment]
    def __init__(self, segments: _Optional[_Iterable[_Union[Segment, _Mapping]]] = ...) -> None: ...

class Prompt(_message.Message):
    __slots__ = ("text", "chat", "tokens", "segmented")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SEGMENTED_FIELD_NUMBER: _ClassVar[int]
    text: str
    chat: ChatPrompt
    tokens: TokenPrompt
    segmented: SegmentedPrompt
    def __init__(self, text: _Optional[str] = ..., chat: _Optional[_Union[ChatPrompt, _Mapping]] = ..., tokens: _Optional[_Union[TokenPrompt, _Mapping]] = ..., segmented: _Optional[_Union[SegmentedPrompt, _Mapping]] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("model", "prompt", "sampling", "timeout", "request_id", "priority", "cache_scope", "report_progress", "response_interval")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CACHE_SCOPE_FIELD_NUMBER: _ClassVar[int]
    REPORT_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    model: str
    prompt: Prompt
    sampling: _common_pb2.SamplingParams
    timeout: _duration_pb2.Duration
    request_id: str
    priority: int
    cache_scope: CacheScope
    report_progress: bool
    response_interval: _duration_pb2.Duration
    def __init__(self, model: _Optional[str] = ..., prompt: _Optional[_Union[Prompt, _Mapping]] = ..., sampling: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ..., timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., request_id: _Optional[str] = ..., priority: _Optional[int] = ..., cache_scope: _Optional[_Union[CacheScope, _Mapping]] = ..., report_progress: _Optional[bool] = ..., response_interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ResumeRequest(_message.Message):
    __slots__ = ("request_id", "from_token")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    FROM_TOKEN_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    from_token: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, request_id: _Optional[str] = ..., from_token: _Optional[_Iterable[int]] = ...) -> None: ...

class PrefillProgress(_message.Message):
    __slots__ = ("computed_tokens", "prompt_tokens")
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    computed_tokens: int
    prompt_tokens: int
    def __init__(self, computed_tokens: _Optional[int] = ..., prompt_tokens: _Optional[int] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("request_id", "sequence_index", "position", "token_ids", "text", "logprobs", "finish_reason", "usage", "score", "progress")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_INDEX_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    sequence_index: int
    position: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    text: str
    logprobs: _containers.RepeatedCompositeFieldContainer[_common_pb2.TokenLogprobs]
    finish_reason: _common_pb2.FinishReason
    usage: _common_pb2.Usage
    score: float
    progress: PrefillProgress
    def __init__(self, request_id: _Optional[str] = ..., sequence_index: _Optional[int] = ..., position: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., text: _Optional[str] = ..., logprobs: _Optional[_Iterable[_Union[_common_pb2.TokenLogprobs, _Mapping]]] = ..., finish_reason: _Optional[_Union[_common_pb2.FinishReason, str]] = ..., usage: _Optional[_Union[_common_pb2.Usage, _Mapping]] = ..., score: _Optional[float] = ..., progress: _Optional[_Union[PrefillProgress, _Mapping]] = ...) -> None: ...

class ResumeResponse(_message.Message):
    __slots__ = ("response",)
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    response: GenerateResponse
    def __init__(self, response: _Optional[_Union[GenerateResponse, _Mapping]] = ...) -> None: ...

class PinPrefixRequest(_message.Message):
    __slots__ = ("model", "prompt", "cache_scope", "ttl", "timeout")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    CACHE_SCOPE_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    model: str
    prompt: Prompt
    cache_scope: CacheScope
    ttl: _duration_pb2.Duration
    timeout: _duration_pb2.Duration
    def __init__(self, model: _Optional[str] = ..., prompt: _Optional[_Union[Prompt, _Mapping]] = ..., cache_scope: _Optional[_Union[CacheScope, _Mapping]] = ..., ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class PinPrefixResponse(_message.Message):
    __slots__ = ("pin", "usage")
    PIN_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    pin: Pin
    usage: _common_pb2.Usage
    def __init__(self, pin: _Optional[_Union[Pin, _Mapping]] = ..., usage: _Optional[_Union[_common_pb2.Usage, _Mapping]] = ...) -> None: ...

class Pin(_message.Message):
    __slots__ = ("pin_id", "pinned_tokens", "pinned_blocks", "remaining", "resident")
    PIN_ID_FIELD_NUMBER: _ClassVar[int]
    PINNED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PINNED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_FIELD_NUMBER: _ClassVar[int]
    pin_id: str
    pinned_tokens: int
    pinned_blocks: int
    remaining: _duration_pb2.Duration
    resident: bool
    def __init__(self, pin_id: _Optional[str] = ..., pinned_tokens: _Optional[int] = ..., pinned_blocks: _Optional[int] = ..., remaining: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., resident: _Optional[bool] = ...) -> None: ...

class UnpinPrefixRequest(_message.Message):
    __slots__ = ("pin_id",)
    PIN_ID_FIELD_NUMBER: _ClassVar[int]
    pin_id: str
    def __init__(self, pin_id: _Optional[str] = ...) -> None: ...

class UnpinPrefixResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListPinsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListPinsResponse(_message.Message):
    __slots__ = ("pins",)
    PINS_FIELD_NUMBER: _ClassVar[int]
    pins: _containers.RepeatedCompositeFieldContainer[Pin]
    def __init__(self, pins: _Optional[_Iterable[_Union[Pin, _Mapping]]] = ...) -> None: ...

class TokenizeRequest(_message.Message):
    __slots__ = ("model", "prompt")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    model: str
    prompt: Prompt
    def __init__(self, model: _Optional[str] = ..., prompt: _Optional[_Union[Prompt, _Mapping]] = ...) -> None: ...

class TokenizeResponse(_message.Message):
    __slots__ = ("token_ids", "max_model_len")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    max_model_len: int
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., max_model_len: _Optional[int] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "max_model_len", "vocab_size", "block_size", "num_blocks")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    name: str
    max_model_len: int
    vocab_size: int
    block_size: int
    num_blocks: int
    def __init__(self, name: _Optional[str] = ..., max_model_len: _Optional[int] = ..., vocab_size: _Optional[int] = ..., block_size: _Optional[int] = ..., num_blocks: _Optional[int] = ...) -> None: ...
