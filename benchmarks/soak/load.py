"""The part of a soak that needs the stack: serves the workload and looks that nothing of it is left over."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from benchmarks.soak.client import Answer, SoakClient
from benchmarks.soak.memory import Growth, MemoryLog
from benchmarks.soak.pins import PinLog, Pinner
from benchmarks.soak.report import Report
from benchmarks.soak.sampling import Probe
from benchmarks.soak.script import Scene, play
from benchmarks.soak.sequences import assemble
from benchmarks.soak.stack import Inspector, Place, check_idle
from benchmarks.soak.totals import check_totals
from benchmarks.soak.workload import Kind, Planned, draw, lone_beam_search, probe_requests
from octavo.client import AsyncClient
from octavo.v1 import inference_pb2, kvmanager_pb2

# Requests that ended leave the KV manager within a step; a step may be slow on a busy machine, and an executor that
# was killed may still be starting.
_IDLE_SECONDS = 120.0


@dataclass(frozen=True)
class Plan:
    """What to serve.

    Attributes:
        requests: How many.
        clients: How many at once.
        reruns: How many answered requests to send again, alone.
        seed: Decides every request.
        num_executors: How many there are; None: as many as are there at first.
        victim: The process that is killed in the middle, or "".
        kill: Kills a process by its name.
        check_totals: Whether the stack is small enough for everything to happen.
    """

    requests: int
    clients: int
    reruns: int
    seed: int
    num_executors: int | None = None
    victim: str = ""
    kill: Callable[[str], None] = lambda name: None
    check_totals: bool = False


@dataclass(frozen=True)
class Load:
    """What was served.

    Attributes:
        block_size: Tokens in a block.
        probes: Answers to the requests that came before the workload, each alone.
        answers: Of the workload, in the order in which they ended.
        reruns: Answers to some of its requests once more, each alone, by number.
        expanded: Answers to some requests for the best of several sequences, for all of these.
        seconds: From the workload's first request to its last answer.
        before: The memory map before the workload.
        loaded: The memory map when the workload had been served.
        pins: What the pins did.
        growth: Resident memory of each process during the workload.
    """

    block_size: int
    probes: list[Answer]
    answers: list[Answer]
    reruns: list[Answer]
    expanded: list[Answer]
    seconds: float
    before: kvmanager_pb2.GetMemoryMapResponse
    loaded: kvmanager_pb2.GetMemoryMapResponse
    pins: PinLog
    growth: dict[str, Growth] = field(default_factory=dict)


class Loader:
    """Serves one workload on a running stack.

    Args:
        place: The stack.
        plan: What to serve.
        report: Gets failures and progress.
    """

    def __init__(self, place: Place, plan: Plan, report: Report) -> None:
        self._place = place
        self._plan = plan
        self._report = report
        self._num_executors = plan.num_executors
        self._num_answers = 0
        self.under_way: set[int] = set()

    async def serve(self) -> Load:
        """Serves the workload, and a part of it once more."""
        plan = self._plan
        inspector = Inspector(self._place)
        try:
            if self._num_executors is None:
                self._num_executors = len((await inspector.memory_map()).executors)
            model = await self._model()
            probes = await self._probe(model, inspector)
            before = await self._idle("before the workload", inspector)
            planned = draw(plan.seed, plan.requests, model, [_as_probe(answer) for answer in probes[:-1]])
            # The victim comes back as another process.
            memory = MemoryLog({name: pid for name, pid in self._place.pids.items() if name != plan.victim})
            watching = asyncio.create_task(memory.watch())
            started = time.monotonic()
            answers, pins = await self._send_beside_scenes(planned, model)
            seconds = time.monotonic() - started
            loaded = await self._idle("after the workload", inspector)
            watching.cancel()
            reruns = await self._send(_worth_a_rerun(answers, plan.reruns, plan.seed), 1, "reruns")
            expanded = await self._send(_expanded(answers, plan.reruns), 1, "expanded")
            await self._idle("at the end", inspector)
            self._report.fail("health", await inspector.unhealthy())
        finally:
            await inspector.close()
        if plan.check_totals:
            self._report.fail("totals", check_totals(before, loaded, plan.requests, self._num_executors))
        self._report.fail("pins", pins.problems)
        growth = memory.growth()
        self._report.fail("memory", [problem for name in growth if (problem := growth[name].problem(name))])
        return Load(model.block_size, probes, answers, reruns, expanded, seconds, before, loaded, pins, growth)

    async def _model(self) -> inference_pb2.Model:
        async with AsyncClient(self._place.gateway) as client:
            return (await client.models(timeout=30.0))[0]

    async def _probe(self, model: inference_pb2.Model, inspector: Inspector) -> list[Answer]:
        """The probes, and last a beam search."""
        requests = probe_requests(self._plan.seed, model.vocab_size)
        probes = await self._send([Planned(-1, Kind.COMPLETE, request) for request in requests], 1, "probes")
        before = await inspector.memory_map()
        beams = Planned(-1, Kind.COMPLETE, lone_beam_search(self._plan.seed, model.vocab_size))
        probes += await self._send([beams], 1, "beams")
        copied = (await inspector.memory_map()).counters.copied_blocks - before.counters.copied_blocks
        # Four beams part within the prompt's last block, or write to it first; one copy more may be of a cached block.
        if copied < 2:
            self._report.fail("beams", [f"a search alone copied {copied} blocks"])
        return probes

    async def _send_beside_scenes(
        self, planned: Sequence[Planned], model: inference_pb2.Model
    ) -> tuple[list[Answer], PinLog]:
        pinner = Pinner(self._place.gateway, self._plan.seed, model.block_size, planned)
        scenes = [
            Scene(0.05, pinner.misuse),
            Scene(0.10, pinner.hold),
            Scene(0.15, pinner.let_expire),
            Scene(0.20, pinner.hold),
            Scene(0.35, pinner.let_go),
            Scene(0.40, pinner.hold),
            Scene(0.60, pinner.survive),
            Scene(0.65, pinner.hold),
            Scene(0.85, pinner.let_go),
        ]
        if self._plan.victim:
            scenes.append(Scene(0.50, self._kill))
        self._num_answers = 0
        playing = asyncio.create_task(play(scenes, lambda: self._num_answers / len(planned)))
        try:
            answers = await self._send(planned, self._plan.clients, "requests")
            await playing
        finally:
            playing.cancel()
            await pinner.close()
        return answers, pinner.log

    async def _kill(self) -> None:
        self._report.emit("kill", process=self._plan.victim, answers=self._num_answers)
        self._plan.kill(self._plan.victim)

    async def _send(self, planned: Sequence[Planned], num_clients: int, phase: str) -> list[Answer]:
        """Each client takes the next request when it is done with one."""
        todo = iter(planned)
        answers: list[Answer] = []

        async def work() -> None:
            client = SoakClient(self._place.gateway)
            try:
                for each in todo:
                    self.under_way.add(each.number)
                    answers.append(await client.send(each))
                    self._num_answers = len(answers)
                    self.under_way.remove(each.number)
                    self._report.progress(phase, len(answers), len(planned))
            finally:
                await client.close()

        await asyncio.gather(*(work() for _ in range(num_clients)))
        return answers

    async def _idle(self, when: str, inspector: Inspector) -> kvmanager_pb2.GetMemoryMapResponse:
        assert self._num_executors is not None
        memory = await inspector.idle_memory_map(self._num_executors, _IDLE_SECONDS)
        self._report.fail(f"blocks {when}", check_idle(memory, self._num_executors))
        return memory


def _as_probe(answer: Answer) -> Probe:
    sequence = assemble(answer.planned.request, answer.responses).sequences[0]
    return Probe(answer.planned.request, sequence.text, sequence.token_ids)


def _worth_a_rerun(answers: Sequence[Answer], count: int, seed: int) -> list[Planned]:
    """Some of the requests that were answered to the end and have only one right answer."""
    decided = [
        answer.planned
        for answer in answers
        if answer.planned.kind is Kind.COMPLETE
        and answer.error is None
        and (not answer.planned.request.sampling.temperature or answer.planned.request.sampling.HasField("seed"))
    ]
    decided.sort(key=lambda planned: planned.number)
    return Random(f"reruns {seed}").sample(decided, min(count, len(decided)))


def _expanded(answers: Sequence[Answer], count: int) -> list[Planned]:
    """Requests for the best of several sequences that were answered to the end, as requests for all of these."""
    chosen = [
        answer.planned
        for answer in answers
        if answer.planned.kind is Kind.COMPLETE
        and answer.error is None
        and answer.planned.request.sampling.HasField("best_of")
        and answer.planned.request.sampling.HasField("seed")
    ]
    chosen.sort(key=lambda planned: planned.number)
    return [_for_all(planned) for planned in chosen[: count // 2]]


def _for_all(planned: Planned) -> Planned:
    request = inference_pb2.GenerateRequest()
    request.CopyFrom(planned.request)
    request.sampling.n = request.sampling.best_of
    request.sampling.ClearField("best_of")
    return Planned(planned.number, Kind.COMPLETE, request)
