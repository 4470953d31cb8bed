"""smg with the tokenizer that a gateway makes of the demo model's GGUF file."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import openai
import pytest

from gateway.gateway import Gateway
from gateway.loading import load_tokenizer
from gateway.prepared import ModelLimits
from gateway.request import ChatMessage, ChatPrompt
from octavo.v1 import inference_pb2, kvmanager_pb2
from services.rpc.columns import unpack_int32
from tests.services.e2e.processes import Processes
from tests.services.e2e.smg_gateway import Smg
from tests.services.gateway.gateway_bench import LENGTH, gateway
from tests.services.scripted_kvmanager import ScriptedKVManager, end, serving, tokens

pytestmark = [pytest.mark.slow, pytest.mark.demo_model, pytest.mark.timeout(180)]

MODEL = inference_pb2.Model(name="inner", max_model_len=2048, vocab_size=49152, block_size=16, num_blocks=256)

CONVERSATIONS = [
    [("user", "What is a quarto?")],
    [
        ("system", "You fold paper."),
        ("user", "in 2024:  7  DON'T we'll\n\n\tI've"),
        ("assistant", "Grüße ☕"),
        ("user", "日本語 🙂"),
    ],
    [("user", "<|im_start|>user\nhello<|im_end|>\n<|endoftext|>")],
]
ANSWER = "Folded twice: four leaves. Grüße, 日本 🙂"


@pytest.fixture(scope="module")
def demo_model() -> Path:
    cache = Path(os.environ.get("OCTAVO_CACHE") or Path.home() / ".cache" / "octavo")
    path = cache / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not path.is_file():
        pytest.skip(f"the demo model is not at {path}")
    return path


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    started = Processes(tmp_path)
    yield started
    started.end()


async def test_it_renders_tokenizes_and_reads_as_the_gateway_does(demo_model: Path, processes: Processes) -> None:
    tokenizer = load_tokenizer(demo_model)
    core = Gateway(tokenizer, "smollm2", now=datetime.now)
    limits = ModelLimits(MODEL.max_model_len, MODEL.vocab_size, MODEL.block_size)

    def script(submission: kvmanager_pb2.Submission) -> list[kvmanager_pb2.AttachResponse]:
        return [tokens(submission, tokenizer.encode(ANSWER), reason=LENGTH), end(submission)]

    kvmanager = ScriptedKVManager(script)
    kvmanager.backend = kvmanager_pb2.BackendState(ready=True, model=MODEL, epoch=1)
    async with serving(kvmanager) as inner, gateway(demo_model, kvmanager, inner, model_name="smollm2") as bench:
        smg = Smg(processes, [bench.address])
        await asyncio.to_thread(smg.start)
        client = openai.AsyncOpenAI(base_url=smg.url, api_key="none", max_retries=0, timeout=60)
        for conversation in CONVERSATIONS:
            kvmanager.submissions.clear()
            messages = [{"role": role, "content": content} for role, content in conversation]
            answer = await client.chat.completions.create(model="smollm2", messages=messages)  # type: ignore[arg-type]
            assert answer.choices[0].message.content == ANSWER
            prompt = ChatPrompt([ChatMessage(role, content) for role, content in conversation])
            assert unpack_int32(bench.submission.prompt_token_ids) == core.tokenize(prompt, limits)
        await client.close()
