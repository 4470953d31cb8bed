"""A real gRPC server whose answers are known: it says the last words that it was told."""

import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from octavo.v1 import common_pb2, inference_pb2, inference_pb2_grpc

SERVICE = "octavo.v1.GenerationService"


class ScriptedGeneration(inference_pb2_grpc.GenerationServiceServicer):
    """Answers each prompt word by word; some words have it refuse, go on forever or break."""

    def __init__(self) -> None:
        self.requests: list[inference_pb2.GenerateRequest] = []
        self.pin_requests: list[inference_pb2.PinPrefixRequest] = []
        self.pins: dict[str, inference_pb2.Pin] = {}
        self.metadata: dict[str, str | bytes] = {}
        self.client_left = threading.Event()

    def Generate(
        self, request: inference_pb2.GenerateRequest, context: grpc.ServicerContext
    ) -> Iterator[inference_pb2.GenerateResponse]:
        self.requests.append(request)
        self.metadata = dict(context.invocation_metadata())
        words = last_words(request.prompt).split()
        if "refuse" in words:
            violation = error_details_pb2.BadRequest.FieldViolation(
                field="sampling.temperature", description="must not be negative"
            )
            bad_request = error_details_pb2.BadRequest(field_violations=[violation])
            refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "must not be negative", bad_request)
        if "full" in words:
            retry = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=1, nanos=500_000_000))
            info = error_details_pb2.ErrorInfo(reason="QUEUE_FULL", domain="octavo")
            refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "1024 requests wait", info, retry)
        if "draining" in words:
            info = error_details_pb2.ErrorInfo(reason="DRAINING", domain="octavo")
            refuse(context, grpc.StatusCode.UNAVAILABLE, "the server is stopping", info)
        if "forever" in words:
            context.add_callback(self.client_left.set)
            yield inference_pb2.GenerateResponse(token_ids=[0], text="on")
            self.client_left.wait(30)
            return
        if request.report_progress:
            progress = inference_pb2.PrefillProgress(computed_tokens=1, prompt_tokens=len(words))
            yield inference_pb2.GenerateResponse(progress=progress)
        count = request.sampling.n or 1
        for position, word in enumerate(words):
            last = position == len(words) - 1
            for index in range(count):
                yield inference_pb2.GenerateResponse(
                    sequence_index=index,
                    position=position,
                    token_ids=[100 + position],
                    text=f"{word} ",
                    logprobs=[
                        common_pb2.TokenLogprobs(logprob=-0.5, top_token_ids=[100 + position], top_logprobs=[-0.5])
                    ]
                    if request.sampling.HasField("logprobs")
                    else [],
                    finish_reason=common_pb2.FINISH_REASON_STOP if last else None,
                    score=-0.25 - index if request.sampling.HasField("beam_width") and last else None,
                    usage=common_pb2.Usage(
                        prompt_tokens=len(words),
                        completion_tokens=len(words) * count,
                        cached_tokens=1,
                        prefix_match_end=common_pb2.PREFIX_MATCH_END_OTHER_SCOPE,
                    )
                    if last and index == count - 1
                    else None,
                )

    def Tokenize(
        self, request: inference_pb2.TokenizeRequest, context: grpc.ServicerContext
    ) -> inference_pb2.TokenizeResponse:
        return inference_pb2.TokenizeResponse(
            token_ids=range(len(last_words(request.prompt).split())), max_model_len=64
        )

    def ListModels(
        self, request: inference_pb2.ListModelsRequest, context: grpc.ServicerContext
    ) -> inference_pb2.ListModelsResponse:
        model = inference_pb2.Model(name="parrot", max_model_len=64, vocab_size=1000, block_size=16, num_blocks=8)
        return inference_pb2.ListModelsResponse(models=[model])

    def PinPrefix(
        self, request: inference_pb2.PinPrefixRequest, context: grpc.ServicerContext
    ) -> inference_pb2.PinPrefixResponse:
        self.pin_requests.append(request)
        words = last_words(request.prompt).split()
        if "refuse" in words:
            violation = error_details_pb2.BadRequest.FieldViolation(field="ttl", description="too long")
            bad_request = error_details_pb2.BadRequest(field_violations=[violation])
            refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "too long", bad_request)
        if "forever" in words:
            context.add_callback(self.client_left.set)
            self.client_left.wait(30)
        pin = inference_pb2.Pin(
            pin_id=f"pin{len(self.pins)}",
            pinned_tokens=len(words),
            pinned_blocks=1,
            resident=True,
            remaining=request.ttl,
        )
        self.pins[pin.pin_id] = pin
        return inference_pb2.PinPrefixResponse(pin=pin, usage=common_pb2.Usage(prompt_tokens=len(words)))

    def UnpinPrefix(
        self, request: inference_pb2.UnpinPrefixRequest, context: grpc.ServicerContext
    ) -> inference_pb2.UnpinPrefixResponse:
        if self.pins.pop(request.pin_id, None) is None:
            refuse(context, grpc.StatusCode.NOT_FOUND, "pin_id: there is no such pin")
        return inference_pb2.UnpinPrefixResponse()

    def ListPins(
        self, request: inference_pb2.ListPinsRequest, context: grpc.ServicerContext
    ) -> inference_pb2.ListPinsResponse:
        self.metadata = dict(context.invocation_metadata())
        return inference_pb2.ListPinsResponse(pins=self.pins.values())


def last_words(prompt: inference_pb2.Prompt) -> str:
    """The text, the last message or segment, or the token ids as words."""
    if prompt.WhichOneof("content") == "chat":
        return prompt.chat.messages[-1].content
    if prompt.WhichOneof("content") == "segmented":
        return prompt.segmented.segments[-1].text
    return prompt.text or " ".join(map(str, prompt.tokens.token_ids))


def refuse(context: grpc.ServicerContext, code: grpc.StatusCode, message: str, *details: object) -> None:
    """Ends the call as Octavo's servers do."""
    packed = []
    for detail in details:
        packed.append(any_pb2.Any())
        packed[-1].Pack(detail)
    context.abort_with_status(
        rpc_status.to_status(status_pb2.Status(code=code.value[0], message=message, details=packed))
    )


@contextmanager
def running(
    servicer: ScriptedGeneration, status: "health_pb2.HealthCheckResponse.ServingStatus" = 1, **more: int
) -> Iterator[str]:
    """Serves on loopback, with health, and gives the address.

    Args:
        status: Of the service.
        more: Of ``octavo.NAME``, by that.
    """
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=8))
    inference_pb2_grpc.add_GenerationServiceServicer_to_server(servicer, server)
    checks = health.HealthServicer()
    checks.set("", health_pb2.HealthCheckResponse.SERVING)
    checks.set(SERVICE, status)
    for name, each in more.items():
        checks.set(f"octavo.{name}", each)
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        servicer.client_left.set()
        server.stop(0).wait()
