"""The part of a soak that needs the stack: serves the workload and looks that nothing of it is left over."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from benchmarks.soak.client import Answer, SoakClient
from benchmarks.soak.memory import Growth, MemoryLog
from benchmarks.soak.report import Report
from benchmarks.soak.sequences import assemble
from benchmarks.soak.stack import Inspector, Place, check_idle
from benchmarks.soak.workload import Kind, Planned, Probe, draw, probe_requests
from octavo.client import AsyncClient
from octavo.v1 import inference_pb2, kvmanager_pb2

# Requests that ended leave the KV manager within a step; a step may be slow on a busy machine.
_IDLE_SECONDS = 60.0


@dataclass(frozen=True)
class Load:
    """What was served.

    Attributes:
        probes: Answers to the requests that came before the workload.
        answers: Of the workload, in the order in which they ended.
        reruns: Answers to some of its requests once more, each alone, by number.
        seconds: From the workload's first request to its last answer.
        before: The memory map before the workload.
        loaded: The memory map when the workload had been served.
        growth: Resident memory of each process during the workload.
    """

    probes: list[Answer]
    answers: list[Answer]
    reruns: list[Answer]
    seconds: float
    before: kvmanager_pb2.GetMemoryMapResponse
    loaded: kvmanager_pb2.GetMemoryMapResponse
    growth: dict[str, Growth] = field(default_factory=dict)


class Loader:
    """Serves one workload on a running stack.

    Args:
        place: The stack.
        seed: Decides every request.
        num_clients: Requests at once.
        report: Gets failures and progress.
    """

    def __init__(self, place: Place, seed: int, num_clients: int, report: Report) -> None:
        self._place = place
        self._seed = seed
        self._num_clients = num_clients
        self._report = report
        self.under_way: set[int] = set()

    async def serve(self, num_requests: int, num_reruns: int) -> Load:
        """Serves the workload, and a part of it once more."""
        inspector = Inspector(self._place)
        try:
            model = await self._model()
            probes = await self._probe(model)
            before = await self._idle("before the workload", inspector)
            planned = draw(self._seed, num_requests, model, [_as_probe(answer) for answer in probes])
            memory = MemoryLog(self._place.pids)
            watching = asyncio.create_task(memory.watch())
            started = time.monotonic()
            answers = await self._send(planned, self._num_clients, "requests")
            seconds = time.monotonic() - started
            loaded = await self._idle("after the workload", inspector)
            watching.cancel()
            reruns = await self._send(_worth_a_rerun(answers, num_reruns, self._seed), 1, "reruns")
            await self._idle("at the end", inspector)
            self._report.fail("health", await inspector.unhealthy())
        finally:
            await inspector.close()
        growth = memory.growth()
        self._report.fail("memory", [problem for name in growth if (problem := growth[name].problem(name))])
        return Load(probes, answers, reruns, seconds, before, loaded, growth)

    async def _model(self) -> inference_pb2.Model:
        async with AsyncClient(self._place.gateway) as client:
            return (await client.models(timeout=30.0))[0]

    async def _probe(self, model: inference_pb2.Model) -> list[Answer]:
        requests = probe_requests(self._seed, model.vocab_size)
        return await self._send([Planned(-1, Kind.COMPLETE, request) for request in requests], 1, "probes")

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
                    self.under_way.remove(each.number)
                    self._report.progress(phase, len(answers), len(planned))
            finally:
                await client.close()

        await asyncio.gather(*(work() for _ in range(num_clients)))
        return answers

    async def _idle(self, when: str, inspector: Inspector) -> kvmanager_pb2.GetMemoryMapResponse:
        memory = await inspector.idle_memory_map(_IDLE_SECONDS)
        self._report.fail(f"blocks {when}", check_idle(memory))
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
