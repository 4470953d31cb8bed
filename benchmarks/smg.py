"""What vLLM's engine protocol costs beside Octavo's own, and smg in front of it: the same streams, in turns.

    python -m benchmarks.smg --model FOLDER --smg .venv-clients/bin/smg

Texts in, greedy, end of sequence ignored; all streams at once, from this process. `grpc` is Octavo's own service,
`vllm` the engine protocol without a router, `smg` OpenAI's completions at smg, which speaks that protocol to the same
gateway. Prints a JSON line for each round, then the summary: medians of tokens per second, and of the gateway's and
smg's processor seconds for 1,000 tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import aiohttp
import grpc
import uvloop
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm
from smg_grpc_proto.generated import vllm_engine_pb2_grpc

from benchmarks.processes import cpu_seconds
from benchmarks.serving import OctavoServe, StackFailed
from octavo.client import AsyncClient

_WORDS = ("sheet", "fold", "leaf", "page", "quarto", "octavo", "folio", "sewn", "bound", "reader", "number", "book")
_PROMPT_WORDS = 24
_START_SECONDS = 60.0
_HAS_TOKENIZER = "Successfully registered tokenizer"
"""What smg logs."""


async def over_grpc(address: str, model: str, prompts: Sequence[str], tokens: int) -> None:
    """Octavo's own service."""
    async with AsyncClient(address, retry=None) as client:

        async def ask(prompt: str) -> None:
            async for _ in client.generate(prompt, max_tokens=tokens, temperature=0.0, ignore_eos=True):
                pass

        await asyncio.gather(*map(ask, prompts))


async def over_vllm(address: str, model: str, prompts: Sequence[str], tokens: int) -> None:
    """vLLM's engine protocol."""
    sampling = vllm.SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, skip_special_tokens=True)
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = vllm_engine_pb2_grpc.VllmEngineStub(channel)

        async def ask(prompt: str) -> None:
            name = f"{random.getrandbits(64):x}"
            request = vllm.GenerateRequest(request_id=name, text=prompt, sampling_params=sampling, stream=True)
            async for _ in stub.Generate(request):
                pass

        await asyncio.gather(*map(ask, prompts))


async def over_http(address: str, model: str, prompts: Sequence[str], tokens: int) -> None:
    """OpenAI's completions."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def ask(prompt: str) -> None:
            body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
            async with session.post(f"http://{address}/v1/completions", json=body | {"stream": True}) as response:
                response.raise_for_status()
                async for _ in response.content:
                    pass

        await asyncio.gather(*map(ask, prompts))


Side = Callable[[str, str, Sequence[str], int], Coroutine[Any, Any, None]]
SIDES: dict[str, Side] = {"grpc": over_grpc, "vllm": over_vllm, "smg": over_http}


@contextmanager
def running_smg(command: str, gateway: str) -> Iterator[tuple[str, int]]:
    """smg in front of a gateway: its address and process, once it has a tokenizer."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        port, metrics_port = one.getsockname()[1], two.getsockname()[1]
    arguments = ["--host=127.0.0.1", f"--port={port}", f"--prometheus-port={metrics_port}", "--log-level=info"]
    with tempfile.NamedTemporaryFile("r") as said:
        with open(said.name, "w") as log:
            worker = ["--worker-urls", f"grpc://{gateway}"]
            process = subprocess.Popen([command, "launch", *arguments, *worker], stdout=log, stderr=log)
        try:
            end = time.monotonic() + _START_SECONDS
            while _HAS_TOKENIZER not in said.read():
                if time.monotonic() > end or process.poll() is not None:
                    raise StackFailed("smg did not start")
                said.seek(0)
                time.sleep(0.1)
            yield f"127.0.0.1:{port}", process.pid
        finally:
            process.kill()
            process.wait()


def measure(side: str, address: str, pids: dict[str, int], prompts: Sequence[str], args: Any) -> dict[str, Any]:
    """One round."""
    before, began = {name: cpu_seconds([pid]) for name, pid in pids.items()}, time.perf_counter()
    uvloop.run(SIDES[side](address, args.model_name, prompts, args.tokens))
    seconds, num_tokens = time.perf_counter() - began, len(prompts) * args.tokens
    figures: dict[str, Any] = {"side": side, "tokens_per_s": round(num_tokens / seconds, 1)}
    for name, pid in pids.items():
        figures[f"{name}_cpu_s_per_1k"] = round((cpu_seconds([pid]) - before[name]) / num_tokens * 1000, 4)
    return figures


def summary(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the rounds of each side."""
    return {
        side: {
            name: round(statistics.median(each[name] for each in rounds if each["side"] == side), 4)
            for name in ("tokens_per_s", "gateway_cpu_s_per_1k", "smg_cpu_s_per_1k")
        }
        for side in SIDES
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="folder, file, or name that octavo serve knows")
    parser.add_argument("--smg", default=".venv-clients/bin/smg", help="the router's command (make clients)")
    parser.add_argument("--streams", type=int, default=64, help="at once")
    parser.add_argument("--tokens", type=int, default=128, help="of each answer")
    parser.add_argument("--rounds", type=int, default=5, help="times that each side gets them")
    parser.add_argument("--seed", type=int, default=0, help="decides the prompts")
    args = parser.parse_args()
    args.model_name = "measured"
    chance = random.Random(args.seed)
    rounds: list[dict[str, Any]] = []
    with (
        OctavoServe(args.model, {"model-name": args.model_name}) as stack,
        running_smg(args.smg, stack.address) as (router, pid),
    ):
        addresses = {"grpc": stack.address, "vllm": stack.address, "smg": router}
        pids = {"gateway": stack.gateway_pid, "smg": pid}
        for number in range(args.rounds + 1):
            prompts = [" ".join(chance.choices(_WORDS, k=_PROMPT_WORDS)) for _ in range(args.streams)]
            sides = list(SIDES) if number % 2 else list(SIDES)[::-1]
            measured = [measure(side, addresses[side], pids, prompts, args) for side in sides]
            if number == 0:
                continue  # connections, caches and kernels are warm from here on
            for figures in measured:
                print(json.dumps({"round": number, **figures}), flush=True)
            rounds += measured
    print(json.dumps(summary(rounds)))


if __name__ == "__main__":
    main()
