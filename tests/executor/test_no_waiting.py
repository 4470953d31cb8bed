"""Steps and the drawing of their tokens put work in a GPU's line and read nothing back before the end."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from executor.guides.guide import Guide
from executor.sampling.samplers import TorchSampler
from executor.sequences import SequenceState
from executor.step import NewSequence, Penalties, SamplingParams, StepBatch

_VOCAB = 3000
_PENALTIES = Penalties(presence=0.5, frequency=0.2, repetition=1.2, logit_bias={5: 2.0})
_KINDS = {
    "greedy": SamplingParams(temperature=0),
    "random": SamplingParams(seed=3),
    "top-p": SamplingParams(top_p=0.9, seed=4),
    "top-p of nearly all": SamplingParams(temperature=10.0, top_p=0.99, seed=5),
    "top-k, min-p": SamplingParams(top_k=7, top_p=0.9, min_p=0.05, seed=6),
    "penalties": SamplingParams(penalties=_PENALTIES, seed=7),
    "stop tokens": SamplingParams(min_tokens=100, stop_token_ids=(4, _VOCAB), seed=8),
    "logprobs": SamplingParams(temperature=0, logprobs=3),
    "guided": SamplingParams(top_p=0.9, seed=9, guide="of which the mask is all that the sampler sees"),
}
_ALLOWED = np.packbits(np.arange(3008) % 7 == 0, bitorder="little").view(np.int32)


def _sequence(params, *, num_candidates=0, ranked=False):
    tokens = array("q", range(30))
    guide = Guide(None, _ALLOWED) if params.guide and not num_candidates else None
    return SequenceState(0, tokens, 20, 30, array("q"), 0, params, num_candidates, ranked, guide=guide)


def _everything(params):
    return [_sequence(params), _sequence(params, ranked=True)]


@pytest.mark.parametrize("params", _KINDS.values(), ids=_KINDS.keys())
def test_no_number_is_read_to_decide_what_to_do(params):
    """A tensor without data stands in for a GPU's: it can't be read, and what has a size that data decides can't be."""
    logits = torch.empty(2, _VOCAB, device="meta")
    drawn = TorchSampler().sample(logits, [1, 0], _everything(params))
    assert drawn.tokens is not None
    assert drawn.tokens.shape == (2,)
    TorchSampler().candidates(logits, [1], [_sequence(params, num_candidates=4)])


@pytest.fixture
def strict() -> Iterator[None]:
    """Whatever makes the host wait for the GPU raises."""
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("kinds", [*([kind] for kind in _KINDS), [*_KINDS]], ids=lambda kinds: " and ".join(kinds))
def test_a_gpu_draws_the_same_and_the_host_goes_on(strict, kinds):
    logits = 3 * torch.randn(2, _VOCAB)
    on_gpu = logits.pin_memory().to("cuda", non_blocking=True)
    sequences = [each for kind in kinds for each in _everything(_KINDS[kind])]
    beams = [_sequence(_KINDS[kind], num_candidates=4) for kind in kinds]
    rows = [0, 1] * len(kinds)
    drawn = TorchSampler().sample(on_gpu, rows, sequences)
    lists = TorchSampler().candidates(on_gpu, rows[: len(beams)], beams)
    end = torch.cuda.Event()
    end.record()
    end.synchronize()
    expected = TorchSampler().sample(logits, rows, sequences).finish()
    found = drawn.finish()
    assert found.token_ids == expected.token_ids
    assert found.scores == pytest.approx(expected.scores, abs=1e-4)
    assert [report and report.top_token_ids for report in found.logprobs] == [
        report and report.top_token_ids for report in expected.logprobs
    ]
    for mine, other in zip(lists(), TorchSampler().candidates(logits, rows[: len(beams)], beams)(), strict=True):
        assert mine[0] == other[0]
        assert mine[1] == pytest.approx(other[1], abs=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("cuda_graphs", [True, False])
def test_a_decode_step_is_launched_while_the_gpu_is_at_the_one_before(load, save_model, llama_config, cuda_graphs):
    folder, _ = save_model(llama_config(hidden_size=64, num_attention_heads=2, num_key_value_heads=1))
    executor = load(folder, device="cuda", dtype="bfloat16", kv_memory="64MiB", cuda_graphs=cuda_graphs)
    new = [NewSequence(i, [5, 6, 7], 3, 0, [2 * i, 2 * i + 1], params) for i, params in enumerate(_KINDS.values())]
    ids = [each.sequence_id for each in new]
    executor.step(StepBatch(1, 1, new_sequences=new, row_sequence_ids=ids, row_num_tokens=[3] * len(ids)))
    # Once for what happens only once.
    under_way = [executor.launch(_decodes(step, ids)) for step in (2, 3)]
    assert all(len(each.result().token_ids) == len(ids) for each in under_way)

    # Penalties and guides look at tokens, so those wait.
    ids = [i for i, name in enumerate(_KINDS) if name not in ("penalties", "guided")]
    torch.cuda.set_sync_debug_mode("error")
    try:
        under_way = [executor.launch(_decodes(step, ids)) for step in (4, 5)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(len(each.result().token_ids) == len(ids) for each in under_way)


def _decodes(step, ids):
    return StepBatch(1, step, row_sequence_ids=ids, row_num_tokens=[1] * len(ids))
