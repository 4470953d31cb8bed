"""What HTTP costs beside gRPC: the same streams through both fronts of one gateway, in turns.

    python -m benchmarks.fronts --model FOLDER

Token ids in, text out, greedy, end of sequence ignored; all streams at once, from this process, HTTP by aiohttp. Prints
a JSON line for each round, then the summary: tokens per second of both and their ratio (HTTP over gRPC, median over
rounds), the gateway's processor seconds for 1,000 tokens, and whether both gave the same texts. With a small model the
gateway is what counts; `--interval 0` has every token sent by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import uvloop

from benchmarks.processes import cpu_seconds
from benchmarks.serving import OctavoServe
from octavo.client import AsyncClient

_PROMPT_TOKENS = 32
_LOWEST_TOKEN, _HIGHEST_TOKEN = 100, 350
"""Ordinary tokens of any vocabulary."""


@dataclass(frozen=True)
class Load:
    """What each round sends.

    Attributes:
        tokens: of each answer.
        interval: seconds of which tokens are sent together; None: the gateway's own.
    """

    prompts: Sequence[Sequence[int]]
    tokens: int
    interval: float | None


async def over_grpc(stack: OctavoServe, load: Load) -> list[str]:
    """The answers' texts."""
    async with AsyncClient(stack.address, retry=None) as client:
        await client.models()  # connects

        async def ask(prompt: Sequence[int]) -> str:
            responses = client.generate(
                prompt, max_tokens=load.tokens, temperature=0.0, ignore_eos=True, response_interval=load.interval
            )
            return "".join([response.text async for response in responses])

        return list(await asyncio.gather(*map(ask, load.prompts)))


async def over_http(stack: OctavoServe, load: Load) -> list[str]:
    """The same by OpenAI's completions."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def ask(prompt: Sequence[int]) -> str:
            body = {"prompt": prompt, "max_tokens": load.tokens, "temperature": 0, "ignore_eos": True, "stream": True}
            body["response_interval"] = load.interval
            texts = []
            async with session.post(f"{stack.http_url}/v1/completions", json=body) as response:
                response.raise_for_status()
                async for line in response.content:
                    if line.startswith(b"data: {"):
                        texts.append(json.loads(line[6:])["choices"][0]["text"])
            return "".join(texts)

        return list(await asyncio.gather(*map(ask, load.prompts)))


Front = Callable[[OctavoServe, Load], Coroutine[Any, Any, list[str]]]
FRONTS: dict[str, Front] = {"grpc": over_grpc, "http": over_http}


def measure(stack: OctavoServe, load: Load, front: str) -> tuple[dict[str, Any], list[str]]:
    """One round."""
    pids = [stack.gateway_pid]
    before, began = cpu_seconds(pids), time.perf_counter()
    texts = uvloop.run(FRONTS[front](stack, load))
    seconds, num_tokens = time.perf_counter() - began, len(load.prompts) * load.tokens
    figures = {
        "front": front,
        "tokens_per_s": round(num_tokens / seconds, 1),
        "gateway_cpu_s_per_1k": round((cpu_seconds(pids) - before) / num_tokens * 1000, 4),
    }
    return figures, texts


def summary(rounds: Sequence[dict[str, Any]], same_texts: bool) -> dict[str, Any]:
    """Medians over rounds, and the ratio of each pair of rounds."""

    def of(front: str, name: str) -> list[float]:
        return [each[name] for each in rounds if each["front"] == front]

    ratios = [h / g for h, g in zip(of("http", "tokens_per_s"), of("grpc", "tokens_per_s"), strict=True)]
    told: dict[str, Any] = {"throughput_ratio": round(statistics.median(ratios), 3), "same_texts": same_texts}
    for name in ("tokens_per_s", "gateway_cpu_s_per_1k"):
        told[name] = {front: round(statistics.median(of(front, name)), 4) for front in FRONTS}
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="folder, file, or name that octavo serve knows")
    parser.add_argument("--streams", type=int, default=64, help="at once")
    parser.add_argument("--tokens", type=int, default=128, help="of each answer")
    parser.add_argument("--interval", type=float, help="seconds of which tokens are sent together")
    parser.add_argument("--rounds", type=int, default=5, help="times that each front gets them")
    parser.add_argument("--seed", type=int, default=0, help="decides the prompts")
    args = parser.parse_args()
    chance = random.Random(args.seed)
    rounds: list[dict[str, Any]] = []
    same_texts = True
    with OctavoServe(args.model) as stack:
        for number in range(args.rounds + 1):
            prompts = [
                [chance.randint(_LOWEST_TOKEN, _HIGHEST_TOKEN) for _ in range(_PROMPT_TOKENS)]
                for _ in range(args.streams)
            ]
            load = Load(prompts, args.tokens, args.interval)
            order = list(FRONTS) if number % 2 else list(FRONTS)[::-1]
            measured = {front: measure(stack, load, front) for front in order}
            if number == 0:
                continue  # connections, caches and kernels are warm from here on
            for figures, _ in measured.values():
                print(json.dumps({"round": number, **figures}), flush=True)
                rounds.append(figures)
            same_texts &= measured["grpc"][1] == measured["http"][1]
    print(json.dumps(summary(rounds, same_texts)))


if __name__ == "__main__":
    main()
