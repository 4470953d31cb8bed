"""``octavo generate``: one prompt, its answers on stdout."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from services.cli.connection import connected
from services.cli.guide_options import GuideOptions
from services.cli.options import ClientOptions, RequestOptions, SamplingOptions, expand
from services.cli.output import describe_usage, print_json, streamed_text
from services.config import setting

if TYPE_CHECKING:
    from octavo.v1 import common_pb2, inference_pb2


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How answers are found."""

    best_of: int | None = setting(None, "Sample so many answers and show the likeliest ones.")
    beam_width: int | None = setting(None, "Search with so many beams instead of sampling.")
    length_penalty: float | None = setting(
        None, "A beam's score is its log probability over its length to this power; 1 when absent."
    )
    early_stopping: Literal["heuristic", "first", "never"] | None = setting(
        None, "When the beams are good enough: at a guess, as soon as there are enough, or when no better are possible."
    )


@expand
def generate(
    prompt: Annotated[str, typer.Option(help="Text to continue, taken as it is.")],
    server: ClientOptions,
    search: SearchOptions,
    sampling: SamplingOptions,
    guide: GuideOptions,
    request: RequestOptions,
    n: Annotated[int | None, typer.Option("--n", "-n", help="Answers to the one prompt.")] = None,
    logprobs: Annotated[
        int | None, typer.Option(help="Show the log probability of each token and of this many most likely ones.")
    ] = None,
    model: Annotated[str, typer.Option(help="Name of the model; the only one when absent.")] = "",
    timeout: Annotated[float | None, typer.Option(help="Seconds that the request may take.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print each response as a line of JSON.")] = False,
    usage: Annotated[
        bool,
        typer.Option("--usage", help="Say on stderr how many tokens there were, and how many came from the cache."),
    ] = False,
    progress: Annotated[
        bool, typer.Option("--progress", help="Say on stderr how much of a long prompt has been computed.")
    ] = False,
) -> None:
    """Continue a text. One answer is streamed; several are printed when all are there."""
    with connected(server) as client:
        responses = client.generate(
            prompt,
            model=model,
            timeout=timeout,
            n=n,
            logprobs=logprobs,
            report_progress=progress,
            **asdict(request),
            **asdict(search),
            **sampling.values(),
            **guide.values(),
        )
        if usage:
            responses = _telling_usage(responses)
        if json:
            _print_json(responses)
        elif n is not None and n > 1:
            _print_labelled(_telling_progress(responses))
        else:
            _print_stream(_telling_progress(responses))


def _telling_usage(
    responses: "Iterable[inference_pb2.GenerateResponse]",
) -> "Iterator[inference_pb2.GenerateResponse]":
    """Passes all responses on, and at their end says on stderr how many tokens there were."""
    spent: common_pb2.Usage | None = None
    for response in responses:
        if response.HasField("usage"):
            spent = response.usage
        yield response
    if spent is not None:
        print(describe_usage(spent), file=sys.stderr)


def _telling_progress(
    responses: "Iterable[inference_pb2.GenerateResponse]",
) -> "Iterator[inference_pb2.GenerateResponse]":
    """Says on stderr how much of the prompt has been computed, and passes on what is part of an answer."""
    for response in responses:
        if not response.HasField("progress"):
            yield response
            continue
        done = response.progress
        print(f"prompt: {done.computed_tokens} of {done.prompt_tokens} tokens", file=sys.stderr, flush=True)


def _print_json(responses: "Iterable[inference_pb2.GenerateResponse]") -> None:
    for response in responses:
        print_json(response, indent=None)


def _print_stream(responses: "Iterable[inference_pb2.GenerateResponse]") -> None:
    tokens: list[tuple[int, common_pb2.TokenLogprobs]] = []
    with streamed_text() as write:
        for response in responses:
            write(response.text)
            tokens += zip(response.token_ids, response.logprobs, strict=False)
    _print_logprobs(tokens)


def _print_labelled(responses: "Iterable[inference_pb2.GenerateResponse]") -> None:
    texts: dict[int, str] = {}
    labels: dict[int, str] = {}
    tokens: dict[int, list[tuple[int, common_pb2.TokenLogprobs]]] = {}
    for response in responses:
        index = response.sequence_index
        texts[index] = texts.get(index, "") + response.text
        labels[index] = f"{index} {response.score:.4f}" if response.HasField("score") else str(index)
        tokens.setdefault(index, []).extend(zip(response.token_ids, response.logprobs, strict=False))
    for index in sorted(texts):
        print(f"[{labels[index]}] {texts[index]}", flush=True)
        _print_logprobs(tokens[index])


def _print_logprobs(tokens: "Iterable[tuple[int, common_pb2.TokenLogprobs]]") -> None:
    for token, logprob in tokens:
        likely = zip(logprob.top_token_ids, logprob.top_logprobs, strict=True)
        print(f"token {token:>7} {logprob.logprob:9.4f}", *(f" {other}:{value:.4f}" for other, value in likely))
