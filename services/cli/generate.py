"""``octavo generate``: one prompt, its answers on stdout."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from services.cli.errors import talking_to
from services.cli.options import SamplingOptions, ServerOptions, expand
from services.cli.output import streamed_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from octavo.v1 import common_pb2, inference_pb2


@expand
def generate(
    prompt: Annotated[str, typer.Option(help="Text to continue, taken as it is.")],
    server: ServerOptions,
    sampling: SamplingOptions,
    n: Annotated[int | None, typer.Option("--n", "-n", help="Answers to the one prompt.")] = None,
    logprobs: Annotated[
        int | None, typer.Option(help="Show the log probability of each token and of this many most likely ones.")
    ] = None,
    model: Annotated[str, typer.Option(help="Name of the model; the only one when absent.")] = "",
    timeout: Annotated[float | None, typer.Option(help="Seconds that the request may take.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print each response as a line of JSON.")] = False,
) -> None:
    """Continue a text. One answer is streamed; several are printed when all are there."""
    from octavo.client import Client

    with talking_to(server.address), Client(server.address) as client:
        responses = client.generate(prompt, model=model, timeout=timeout, n=n, logprobs=logprobs, **asdict(sampling))
        if json:
            _print_json(responses)
        elif n is not None and n > 1:
            _print_labelled(responses)
        else:
            _print_stream(responses)


def _print_json(responses: "Iterable[inference_pb2.GenerateResponse]") -> None:
    from google.protobuf.json_format import MessageToJson

    for response in responses:
        line = MessageToJson(
            response,
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
            indent=None,
            ensure_ascii=False,
        )
        print(line, flush=True)


def _print_stream(responses: "Iterable[inference_pb2.GenerateResponse]") -> None:
    tokens: list[tuple[int, common_pb2.TokenLogprobs]] = []
    with streamed_text() as write:
        for response in responses:
            write(response.text)
            tokens += zip(response.token_ids, response.logprobs, strict=False)
    _print_logprobs(tokens)


def _print_labelled(responses: "Iterable[inference_pb2.GenerateResponse]") -> None:
    texts: dict[int, str] = {}
    tokens: dict[int, list[tuple[int, common_pb2.TokenLogprobs]]] = {}
    for response in responses:
        index = response.sequence_index
        texts[index] = texts.get(index, "") + response.text
        tokens.setdefault(index, []).extend(zip(response.token_ids, response.logprobs, strict=False))
    for index in sorted(texts):
        print(f"[{index}] {texts[index]}", flush=True)
        _print_logprobs(tokens[index])


def _print_logprobs(tokens: "Iterable[tuple[int, common_pb2.TokenLogprobs]]") -> None:
    for token, logprob in tokens:
        likely = zip(logprob.top_token_ids, logprob.top_logprobs, strict=True)
        print(f"token {token:>7} {logprob.logprob:9.4f}", *(f" {other}:{value:.4f}" for other, value in likely))
