"""The engine without the split: KV manager and executor in one process, two steps under way, no messages in between.

    python -m benchmarks.in_process '{"model": ...}'

is asked for answers in JSON lines by `EngineProcess`, which runs it as a process of its own.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar, get_args, get_type_hints

from benchmarks.answers import Answer
from benchmarks.line_process import LineProcess
from benchmarks.request_sets import RequestSet, TokenRequest
from executor import step as executor_step
from executor.executor import Executor
from kvmanager.capacity import Capacity
from kvmanager.limits import Limits
from kvmanager.manager import KVManager
from kvmanager.spec import RequestSpec
from kvmanager.step import Outputs, Speeds, StepBatch, StepResult
from services.config import ExecutorConfig, KVManagerConfig, ServiceConfig
from services.executor.step_thread import StepThread
from services.model_store import resolve_model

C = TypeVar("C", bound=ServiceConfig)

_EXECUTOR = "executor"
_GREEDY = executor_step.SamplingParams(temperature=0.0)


class Engine:
    """KV manager and executor, joined by two queues. The executor has a thread of its own, as in its service."""

    def __init__(self, executor: Executor, config: KVManagerConfig) -> None:
        info, speeds = executor.info, executor.speeds
        limits = Limits(config.max_batched_tokens, config.max_sequences, config.max_waiting_requests)
        self._manager = KVManager(limits, policy=config.policy, prefix_caching=config.prefix_caching)
        capacity = Capacity(info.num_blocks, info.block_size, info.max_model_len, info.num_host_blocks)
        self._manager.attach_executor(_EXECUTOR, capacity, time.monotonic(), Speeds(**asdict(speeds)))
        self._epoch = executor.epoch + 1
        self._steps = StepThread(executor.launch)
        self._results: SimpleQueue[executor_step.StepResult | Exception | None] = SimpleQueue()
        self._num_under_way = 0

    def run(self, requests: RequestSet) -> list[Answer]:
        """All at once or one after the other, as the set says."""
        if requests.at_once:
            return self._answer(requests.requests)
        return [answer for request in requests.requests for answer in self._answer([request])]

    def _answer(self, requests: list[TokenRequest]) -> list[Answer]:
        sent = time.perf_counter()
        for handle, request in enumerate(requests):
            spec = RequestSpec(handle, request.prompt, max_tokens=request.output_tokens, sampling=_GREEDY)
            self._manager.submit(spec, time.monotonic())
        tokens: list[list[int]] = [[] for _ in requests]
        first, last = [0.0] * len(requests), [0.0] * len(requests)
        while not self._manager.idle or self._num_under_way:
            outputs = self._step()
            now = time.perf_counter()
            for handle, token_ids in _new_tokens(outputs):
                first[handle] = first[handle] or now
                last[handle] = now
                tokens[handle] += token_ids
        return [Answer(sent, *each) for each in zip(first, last, tokens, strict=True)]

    def _step(self) -> Outputs:
        """Keeps steps under way, and takes in the result of the oldest."""
        while (batch := self._manager.schedule(_EXECUTOR, time.monotonic())) is not None:
            self._steps.submit(_executor_batch(batch, self._epoch), self._results.put)
            self._num_under_way += 1
        result = self._results.get()
        if isinstance(result, Exception):
            raise result
        assert result is not None  # no stream ends here
        self._num_under_way -= 1
        return self._manager.apply(_EXECUTOR, _manager_result(result), time.monotonic())


def _new_tokens(outputs: Outputs) -> list[tuple[int, list[int]]]:
    plain = [(sequence.handle, [sequence.token_ids[-1]]) for sequence in outputs.tokens]
    others = [(update.handle, update.token_ids) for update in outputs.updates]
    return [(int(str(handle)), token_ids) for handle, token_ids in (*plain, *others)]


def _executor_batch(batch: StepBatch, epoch: int) -> executor_step.StepBatch:
    """The same fields under the same names, but for what is kept for those who lead later: nobody does."""
    known = {each.name for each in fields(executor_step.StepBatch)}
    given = {each.name: getattr(batch, each.name) for each in fields(batch) if each.name in known}
    given["new_sequences"] = [
        executor_step.NewSequence(**{each.name: getattr(new, each.name) for each in fields(new)})
        for new in batch.new_sequences
    ]
    given["removed_blocks"] = given["stored_blocks"] = []
    return executor_step.StepBatch(epoch=epoch, **given)


def _manager_result(result: executor_step.StepResult) -> StepResult:
    speeds = Speeds(**asdict(result.speeds)) if result.speeds else None
    return StepResult(result.step, result.sequence_ids, result.token_ids, speeds=speeds)


class EngineProcess:
    """A running engine; a context manager that stops it.

    Attributes:
        name: of the system.
        start_s: seconds from starting the process until it could take a request.
        pid: of the process.
    """

    name = "in one process"

    def __init__(self, model: str | Path, options: Mapping[str, Any]) -> None:
        """Starts it.

        Args:
            model: as `octavo serve` takes it.
            options: flags of `octavo serve`, by name without the dashes; None leaves a flag out.

        Raises:
            ChildFailed: it ended.
        """
        given = {name.replace("-", "_"): str(value) for name, value in options.items() if value is not None}
        command = [sys.executable, "-m", "benchmarks.in_process", json.dumps(given | {"model": str(model)})]
        began = time.perf_counter()
        self._process = LineProcess(command, os.environ)
        self.pid = self._process.pid
        try:
            self._details = self._process.answer()
        except BaseException:
            self._process.stop()
            raise
        self.start_s = time.perf_counter() - began

    def run(self, requests: RequestSet) -> list[Answer]:
        """Has the requests answered there."""
        answers = self._process.ask(asdict(requests))["answers"]
        return [Answer(*each) for each in answers]

    def details(self) -> dict[str, Any]:
        """Which kernels run."""
        return self._details

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.stop()


def _config(kind: type[C], values: Mapping[str, str], **places: Any) -> C:
    """A service's configuration from those settings that it knows."""
    hints = get_type_hints(kind)
    known = {each.name for each in fields(kind)}
    return kind(**{name: _read(text, hints[name]) for name, text in values.items() if name in known}, **places)


def _read(text: str, kind: Any) -> Any:
    """A setting's value as its type."""
    kinds = get_args(kind) or (kind,)
    for number in (int, float):
        if number in kinds:
            return number(text)
    return text.lower() == "true" if bool in kinds else text


def main() -> None:
    """Answers one set of requests a line until there are no more."""
    from services.executor.loading import load  # takes seconds

    values = json.loads(sys.argv[1])
    values["model"] = resolve_model(values["model"])
    executor = load(_config(ExecutorConfig, values))
    engine = Engine(executor, _config(KVManagerConfig, values))
    # As in the services: what lives as long as the process is not looked through for garbage.
    gc.collect()
    gc.freeze()
    print(json.dumps({"kernels": executor.info.attention_backend, "dtype": executor.info.dtype}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        asked["requests"] = [TokenRequest(**each) for each in asked["requests"]]
        answers = engine.run(RequestSet(**asked))
        rows = [[each.sent, each.first, each.last, each.token_ids] for each in answers]
        print(json.dumps({"answers": rows}), flush=True)


if __name__ == "__main__":
    main()
