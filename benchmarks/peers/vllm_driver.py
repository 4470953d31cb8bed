"""vLLM's CPU engine as its own servers run it: the engine and its worker are processes beside the one that asks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.peers.driver import LONGEST, Request, drive


class VllmEngine:
    """Settings are arguments of vLLM's engine; those in capitals are in its environment already."""

    def __init__(self, model: str, settings: Mapping[str, str]) -> None:
        arguments: dict[str, Any] = {"dtype": "bfloat16", "max_model_len": LONGEST, "max_num_seqs": 64}
        asked = {name: value for name, value in settings.items() if not name.isupper()}
        arguments |= {name: int(value) if value.isdigit() else value for name, value in asked.items()}
        from vllm import SamplingParams, __version__
        from vllm.engine.arg_utils import EngineArgs
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.llm_engine import LLMEngine

        self._details = {"version": __version__} | arguments
        self._engine: Any = LLMEngine.from_engine_args(EngineArgs(model=model, **arguments))
        self._sampling: Any = SamplingParams
        self._only_new: Any = RequestOutputKind.DELTA
        self._sent = 0

    def details(self) -> Mapping[str, Any]:
        return self._details

    def run(self, requests: Sequence[Request]) -> None:
        under_way: dict[str, Request] = {}
        for request in requests:
            self._sent += 1
            sampling = self._sampling(
                temperature=0.0,
                ignore_eos=True,
                max_tokens=request.output_tokens,
                detokenize=False,
                output_kind=self._only_new,
            )
            under_way[str(self._sent)] = request
            self._engine.add_request(str(self._sent), {"prompt_token_ids": request.prompt}, sampling)
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                under_way[output.request_id].got(output.outputs[0].token_ids)


if __name__ == "__main__":
    # Not for another process of vLLM's, which imports this file too.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    drive(VllmEngine)
