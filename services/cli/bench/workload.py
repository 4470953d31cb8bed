"""The requests of a load: what each asks for and when it is due. The seed alone decides them."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from services.cli.bench.lengths import Lengths
from services.cli.bench.prompts import Piece, Prompt, PromptMaker
from services.cli.bench.traces import TraceRow
from services.config import ConfigError


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Attributes:
        index: From 0.
        due: Seconds after the start when it is to be sent; None: as soon as there is room.
        max_tokens: Most tokens of the answer.
    """

    index: int
    due: float | None
    prompt: Prompt
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Shape:
    """What a request asks for.

    Attributes:
        pieces: Of the prompt; or the prompt itself.
    """

    pieces: tuple[Piece, ...] | str
    max_tokens: int


Shapes = Iterator[Shape]


@dataclass(frozen=True)
class Workload:
    """Requests in the order in which they are sent.

    Args:
        shapes: What they ask for; begins anew with each call.
        arrivals: When each is due; likewise.
        maker: Makes their prompts.
        count: How many there are; None: without end.
    """

    shapes: Callable[[], Shapes]
    arrivals: Callable[[], Iterator[float | None]]
    maker: PromptMaker
    count: int | None

    def requests(self) -> Iterator[Request]:
        """All of them, each made when it is asked for."""
        both = zip(self.shapes(), self.arrivals(), strict=False)
        for index, (shape, due) in enumerate(itertools.islice(both, self.count)):
            yield Request(index, due, self._prompt(shape.pieces), shape.max_tokens)

    def warm_up(self, count: int) -> Iterator[Request]:
        """Others of the same lengths, whose prompts share nothing with those."""
        for index, shape in enumerate(itertools.islice(itertools.cycle(self.shapes()), count)):
            tokens = len(shape.pieces.split()) if isinstance(shape.pieces, str) else _total(shape.pieces)
            prompt = self.maker.prompt([Piece(f"warm-up {index}", max(tokens, 1))])
            yield Request(index, None, prompt, shape.max_tokens)

    def _prompt(self, pieces: tuple[Piece, ...] | str) -> Prompt:
        return pieces if isinstance(pieces, str) else self.maker.prompt(pieces)


# What requests ask for


def synthetic_shapes(
    seed: int, prompt: Lengths, output: Lengths, shared_prefix_tokens: int, prefix_groups: int
) -> Shapes:
    """Made-up requests without end; each belongs to a group at random, whose prefix it begins with."""
    for index in itertools.count():
        rng = random.Random(f"{seed} request {index}")
        group = rng.randrange(prefix_groups)
        pieces = [Piece(f"prefix {group}", shared_prefix_tokens)] if shared_prefix_tokens else []
        pieces.append(Piece(f"request {index}", prompt.draw(rng)))
        yield Shape(tuple(pieces), output.draw(rng))


def trace_shapes(rows: Sequence[TraceRow], scale: float, block_tokens: int) -> Shapes:
    """The requests of a trace; what has the same hash id has the same content.

    Args:
        scale: Multiplies all lengths.
        block_tokens: Tokens that one hash id stands for.
    """
    for index, row in enumerate(rows):
        pieces, left = [], max(1, round(row.prompt_tokens * scale))
        for hash_id in row.hash_ids:
            size = min(max(1, round(block_tokens * scale)), left)
            if size:
                pieces.append(Piece(f"block {hash_id}", size))
            left -= size
        if left:
            pieces.append(Piece(f"request {index}", left))
        yield Shape(tuple(pieces), max(1, round(row.output_tokens * scale)))


def read_prompts(path: Path) -> list[tuple[str, int | None]]:
    """The prompts of a file, and the length of the answer where it says one.

    Raises:
        ConfigError: The file cannot be read, or a line is no prompt.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"prompts: cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    prompts = [_read_prompt(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise ConfigError(f"prompts: {path} has none")
    return prompts


def prompt_shapes(seed: int, prompts: Sequence[tuple[str, int | None]], output: Lengths) -> Shapes:
    """These prompts, from the first again after the last."""
    for index, (text, max_tokens) in enumerate(itertools.cycle(prompts)):
        yield Shape(text, max_tokens or output.draw(random.Random(f"{seed} request {index}")))


def _read_prompt(path: Path, number: int, line: str) -> tuple[str, int | None]:
    if not line.lstrip().startswith("{"):
        return line, None
    try:
        row = json.loads(line)
        prompt, tokens = row["prompt"], row.get("output_tokens")
        if (
            not isinstance(prompt, str)
            or not prompt
            or not (tokens is None or (isinstance(tokens, int) and tokens > 0))
        ):
            raise ValueError(row)
    except (ValueError, KeyError) as error:
        raise ConfigError(
            f'prompts: {path}, line {number}: not JSON such as {{"prompt": "...", "output_tokens": 20}}'
        ) from error
    return prompt, tokens


# When they are due


def poisson_arrivals(seed: int, rate: float) -> Iterator[float]:
    """Times of a Poisson process without end.

    Args:
        rate: Requests a second; inf: all at 0.
    """
    rng, now = random.Random(f"{seed} arrivals"), 0.0
    while True:
        now += rng.expovariate(rate)
        yield now


def trace_arrivals(rows: Sequence[TraceRow], speedup: float) -> Iterator[float]:
    """Those of a trace, so many times as fast."""
    for row in rows:
        assert row.at is not None, "the trace has times"
        yield row.at / speedup


def _total(pieces: Sequence[Piece]) -> int:
    return sum(piece.tokens for piece in pieces)
