"""OpenVINO GenAI's continuous batching."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import openvino
import openvino_genai

from benchmarks.peers.driver import Request, drive

# Of OpenVINO's CPU plugin; the other settings are the scheduler's.
_PROPERTIES = {
    "INFERENCE_PRECISION_HINT": "bf16",
    "KV_CACHE_PRECISION": "u8",
    "INFERENCE_NUM_THREADS": str(os.cpu_count()),
}


class OpenVinoEngine:
    """Settings in capitals are properties of the CPU plugin, others the scheduler's."""

    def __init__(self, model: str, settings: Mapping[str, str]) -> None:
        self._properties = _PROPERTIES | {name: value for name, value in settings.items() if name.isupper()}
        scheduling = {"cache_size": 1, "max_num_seqs": 64, "max_num_batched_tokens": 512, "enable_prefix_caching": 1}
        scheduling |= {name: int(value) for name, value in settings.items() if not name.isupper()}
        scheduler = openvino_genai.SchedulerConfig()
        for name, value in scheduling.items():
            setattr(scheduler, name, type(getattr(scheduler, name))(value))
        self._pipeline: Any = openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU", self._properties)
        self._details = {"version": openvino_genai.__version__} | scheduling | self._properties
        self._sent = 0

    def details(self) -> Mapping[str, Any]:
        return self._details

    def run(self, requests: Sequence[Request]) -> None:
        under_way = []
        for request in requests:
            self._sent += 1
            sampling = openvino_genai.GenerationConfig()
            sampling.max_new_tokens = request.output_tokens
            sampling.ignore_eos = True
            sampling.do_sample = False
            prompt = openvino.Tensor(np.array([request.prompt], dtype=np.int64))
            under_way.append((request, self._pipeline.add_request(self._sent, prompt, sampling)))
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            for request, handle in under_way:
                if handle.can_read():
                    for output in handle.read().values():
                        request.got(output.generated_ids)


if __name__ == "__main__":
    drive(OpenVinoEngine)
