import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from octavo.v1 import kvmanager_pb2 as _kvmanager_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RequestRecord(_message.Message):
    __slots__ = ("submission", "model", "stop", "skip_special_tokens", "kept", "shows_logprobs", "response_interval_us", "deadline")
    SUBMISSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    SKIP_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    SHOWS_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_INTERVAL_US_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    submission: _kvmanager_pb2.Submission
    model: str
    stop: _containers.RepeatedScalarFieldContainer[str]
    skip_special_tokens: bool
    kept: int
    shows_logprobs: bool
    response_interval_us: int
    deadline: _timestamp_pb2.Timestamp
    def __init__(self, submission: _Optional[_Union[_kvmanager_pb2.Submission, _Mapping]] = ..., model: _Optional[str] = ..., stop: _Optional[_Iterable[str]] = ..., skip_special_tokens: _Optional[bool] = ..., kept: _Optional[int] = ..., shows_logprobs: _Optional[bool] = ..., response_interval_us: _Optional[int] = ..., deadline: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class TokensRecord(_message.Message):
    __slots__ = ("updates", "end")
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    updates: _containers.RepeatedCompositeFieldContainer[_kvmanager_pb2.SequenceUpdate]
    end: _kvmanager_pb2.RequestEnd
    def __init__(self, updates: _Optional[_Iterable[_Union[_kvmanager_pb2.SequenceUpdate, _Mapping]]] = ..., end: _Optional[_Union[_kvmanager_pb2.RequestEnd, _Mapping]] = ...) -> None: ...
