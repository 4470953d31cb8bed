"""The show: three processes, six people who ask at once under one system prompt, and what it took."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

import grpc.aio
from rich.box import SIMPLE
from rich.columns import Columns
from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Table

from octavo.client import AsyncClient, OctavoError
from octavo.v1 import kvmanager_pb2, kvmanager_pb2_grpc
from services.launcher import Stack, octavo_command
from services.model_store import SMOLLM2, resolve_model
from services.progress import progress_bar

SYSTEM_PROMPT = """You are a helpful AI assistant for curious people of every age. You explain things about nature, \
science, language, history and everyday life. You write clear and simple English and use short sentences. You begin \
with the answer to the question and then give the most important reason for it. You use an example from everyday life \
when it helps. You do not repeat yourself. You do not use difficult words when there are easy ones, and when a \
difficult word is needed, you explain it. You are friendly and patient, and you enjoy good questions. You never make \
fun of a question, because every question is a good start. You are honest: when you do not know something, you say so. \
You answer the question that was asked and nothing else. Your answer is a short paragraph of three or four sentences, \
without lists and without headings, and it can be read aloud in less than half a minute."""

QUESTIONS = (
    "Why is the sky blue?",
    "Why is the sea salty?",
    "What do bees do all day?",
    "What is a haiku?",
    "How does a sailboat move?",
    "Why do leaves fall in autumn?",
)
MAX_TOKENS = 96
_LINE_LENGTH = 60

# Told of every new piece of text: the question's number, the text, whether it was the last.
_Show = Callable[[int, str, bool], None]


@dataclass
class Answer:
    """What one question got.

    Attributes:
        question: As asked.
        text: As far as it has come.
        tokens: How many there are.
        prompt_tokens: Tokens of system prompt and question together.
        cached_tokens: Prompt tokens that the prefix cache gave.
        seconds_to_first_token: From request to first token.
        seconds: From request to last token.
        error: Why it failed, or "".
    """

    question: str
    text: str = ""
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    seconds_to_first_token: float = 0.0
    seconds: float = 0.0
    error: str = ""

    @property
    def complete(self) -> bool:
        """Whether it came to its end and says something."""
        return not self.error and self.prompt_tokens > 0 and bool(self.text.strip())


def run() -> int:
    """Runs the demo and returns its exit code: 0 only where every question got an answer.

    Raises:
        ConfigError: The model cannot be fetched.
        StackError: The processes cannot be started.
    """
    return asyncio.run(_run(Console(highlight=False, markup=False, emoji=False, soft_wrap=True)))


async def _run(console: Console) -> int:
    settings = {"model": resolve_model(SMOLLM2.name), "model_name": SMOLLM2.name}
    answers = [Answer(question) for question in QUESTIONS]
    started = time.monotonic()
    async with _running(settings, console) as stack:
        processes = ", ".join(f"{name} {pid}" for name, pid in stack.pids.items())
        console.print(f"Three processes ({processes}) serve after {time.monotonic() - started:.1f} s.")
        console.print(f"{len(answers)} requests at once under one system prompt:\n")
        async with AsyncClient(stack.addresses.gateway) as client:
            with _screen(answers, console) as show:
                asked = time.monotonic()
                await asyncio.gather(*(_ask(client, number, each, show) for number, each in enumerate(answers, 1)))
                seconds = time.monotonic() - asked
        memory = await _memory(stack.addresses.kvmanagers[0])
    console.print()
    console.print(_per_request(answers), soft_wrap=False)
    console.print(_totals(answers, seconds, memory))
    console.print("All processes have stopped.")
    return 0 if all(answer.complete for answer in answers) else 1


@asynccontextmanager
async def _running(settings: dict[str, str], console: Console) -> AsyncIterator[Stack]:
    """The running stack. What its processes said is shown only where something goes wrong."""
    log_lines: list[str] = []
    stack = Stack(octavo_command(settings), port=0, http_port=0, log=log_lines.append)
    try:
        with progress_bar("Starting gateway, KV manager and executor", console) as show:
            await stack.start(show)
        try:
            yield stack
        finally:
            await stack.stop()
    except Exception:
        print(*log_lines, sep="\n", file=sys.stderr)
        raise


async def _ask(client: AsyncClient, number: int, answer: Answer, show: _Show) -> None:
    messages = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": answer.question}]
    started = time.monotonic()
    try:
        async for response in client.generate(messages, max_tokens=MAX_TOKENS, temperature=0.4, seed=number):
            if response.token_ids and not answer.tokens:
                answer.seconds_to_first_token = time.monotonic() - started
            answer.tokens += len(response.token_ids)
            answer.text += response.text
            answer.prompt_tokens += response.usage.prompt_tokens
            answer.cached_tokens += response.usage.cached_tokens
            show(number, response.text, False)
    except OctavoError as error:
        answer.error = str(error)
    answer.seconds = time.monotonic() - started
    show(number, f" {answer.error}", True)


@contextmanager
def _screen(answers: Sequence[Answer], console: Console) -> Iterator[_Show]:
    """Shows answers as they grow: side by side on a terminal, interleaved lines in a log."""
    if console.is_terminal:
        with Live(console=console, get_renderable=lambda: _side_by_side(answers, console.width)):
            yield lambda number, text, last: None
        return
    waiting = dict.fromkeys(range(1, len(answers) + 1), "")

    def show(number: int, text: str, last: bool) -> None:
        waiting[number] += text
        whole, space, rest = waiting[number].rpartition(" ")
        if last or len(whole) > _LINE_LENGTH:
            line, waiting[number] = (waiting[number], "") if last else (whole, space + rest)
            if line.strip():
                console.print(f"[{number}] {' '.join(line.split())}")

    yield show


def _side_by_side(answers: Sequence[Answer], width: int) -> Columns:
    columns = max(1, min(3, width // 36))
    panels = [
        Panel(answer.error or answer.text.strip(), title=answer.question, width=width // columns - 1)
        for answer in answers
    ]
    return Columns(panels)


async def _memory(kvmanager: str) -> kvmanager_pb2.GetMemoryMapResponse:
    async with grpc.aio.insecure_channel(kvmanager, options=[("grpc.enable_http_proxy", 0)]) as channel:
        stub = kvmanager_pb2_grpc.KVManagerServiceStub(channel)
        memory: kvmanager_pb2.GetMemoryMapResponse = await stub.GetMemoryMap(
            kvmanager_pb2.GetMemoryMapRequest(), timeout=10.0
        )
        return memory


def _per_request(answers: Sequence[Answer]) -> Table:
    table = Table("question", box=SIMPLE)
    for column in ("first token", "tokens", "tokens/s", "prompt", "cached"):
        table.add_column(column, justify="right")
    for answer in answers:
        table.add_row(
            answer.question,
            f"{answer.seconds_to_first_token:.2f} s",
            str(answer.tokens),
            f"{answer.tokens / answer.seconds:.1f}",
            str(answer.prompt_tokens),
            str(answer.cached_tokens),
        )
    return table


def _totals(answers: Sequence[Answer], seconds: float, memory: kvmanager_pb2.GetMemoryMapResponse) -> str:
    tokens = sum(answer.tokens for answer in answers)
    prompt = sum(answer.prompt_tokens for answer in answers)
    cached = sum(answer.cached_tokens for answer in answers)
    counters = memory.counters
    wasted = counters.reserved_slot_steps + counters.internal_slot_steps
    return "\n".join(
        (
            f"Together: {tokens} tokens in {seconds:.1f} s, {tokens / seconds:.1f} tokens/s.",
            f"Prefix cache: {cached} of {prompt} prompt tokens ({_percent(cached, prompt)}) were not computed again.",
            f"Memory: at most {counters.peak_referenced_blocks} of {memory.num_blocks} blocks of {memory.block_size}"
            f" tokens in use; waste {_percent(wasted, counters.slot_steps)} (room in them that held no token).",
        )
    )


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "none"
