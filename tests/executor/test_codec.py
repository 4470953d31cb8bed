"""Step batches and results on the wire, as executor.proto lays them out."""

from __future__ import annotations

import struct

import pytest

from executor.executor import ExecutorInfo
from executor.step import (
    Candidates,
    NewSequence,
    Penalties,
    SamplingParams,
    Speeds,
    StepBatch,
    StepResult,
    TokenLogprobs,
)
from octavo.v1 import common_pb2, executor_pb2, memory_pb2
from services.executor.codec import decode_batch, encode_description, encode_result

_LARGE = 1 << 40


def _int64(*values):
    return struct.pack(f"<{len(values)}q", *values)


def _int32(*values):
    return struct.pack(f"<{len(values)}i", *values)


def test_every_field_of_a_batch():
    message = executor_pb2.StepBatch(
        epoch=3,
        step=7,
        forget=_int64(1, _LARGE),
        branches=_int64(2, _LARGE + 1, 2, 5),
        chosen_tokens=_int64(_LARGE + 1, 49151, 5, 0),
        new_sequences=[
            executor_pb2.NewSequence(
                sequence_id=_LARGE,
                token_ids=_int32(5, 6, 7),
                prompt_length=2,
                num_computed=1,
                block_table=_int32(9),
                sampling=common_pb2.SamplingParams(temperature=0.5, top_k=3),
                sample_index=4,
                num_candidates=8,
                ranked=True,
            )
        ],
        table_edits=_int64(_LARGE, 1, 70, 2, 0, 71),
        swaps_out=_int32(1, 2, 3, 4),
        swaps_in=_int32(5, 6),
        block_copies=_int32(7, 8),
        row_sequence_ids=_int64(_LARGE, 2),
        row_num_tokens=_int32(2, 1),
        forks=[executor_pb2.Fork(parent_sequence_id=2, child_sequence_ids=_int64(_LARGE + 7))],
    )
    assert decode_batch(message) == StepBatch(
        epoch=3,
        step=7,
        forget=[1, _LARGE],
        branches=[(2, _LARGE + 1), (2, 5)],
        chosen_tokens=[(_LARGE + 1, 49151), (5, 0)],
        new_sequences=[
            NewSequence(
                sequence_id=_LARGE,
                token_ids=[5, 6, 7],
                prompt_length=2,
                num_computed=1,
                block_table=[9],
                sampling=SamplingParams(temperature=0.5, top_k=3),
                sample_index=4,
                num_candidates=8,
                ranked=True,
            )
        ],
        table_edits=[(_LARGE, 1, 70), (2, 0, 71)],
        swaps_out=[(1, 2), (3, 4)],
        swaps_in=[(5, 6)],
        block_copies=[(7, 8)],
        row_sequence_ids=[_LARGE, 2],
        row_num_tokens=[2, 1],
        forks={2: [_LARGE + 7]},
    )
    assert decode_batch(executor_pb2.StepBatch()) == StepBatch(epoch=0, step=0)


@pytest.mark.parametrize(
    ("field", "column"),
    [
        ("table_edits", _int64(1, 2)),
        ("table_edits", _int32(1, 2, 3)),
        ("branches", _int64(1)),
        ("chosen_tokens", _int64(1, 2, 3)),
        ("swaps_out", _int32(1)),
        ("swaps_in", b"abc"),
        ("forget", _int32(1)),
    ],
)
def test_columns_of_an_impossible_length_are_refused(field, column):
    with pytest.raises(ValueError, match=r"tuples|multiple"):
        decode_batch(executor_pb2.StepBatch(**{field: column}))


def _sampling(**fields):
    new = executor_pb2.NewSequence(token_ids=_int32(1), sampling=common_pb2.SamplingParams(**fields))
    return decode_batch(executor_pb2.StepBatch(new_sequences=[new])).new_sequences[0].sampling


def test_sampling_parameters():
    assert _sampling() == SamplingParams()
    assert _sampling(
        temperature=0.5,
        top_p=0.25,
        top_k=3,
        min_p=0.125,
        seed=2**64 - 1,
        logprobs=0,
        min_tokens=2,
        stop_token_ids=[7, 8],
        presence_penalty=0.5,
        frequency_penalty=-1.5,
        repetition_penalty=1.25,
        logit_bias={5: -100.0, 6: 2.5},
        guide=common_pb2.Guide(grammar='start: "a"'),
    ) == SamplingParams(
        temperature=0.5,
        top_p=0.25,
        top_k=3,
        min_p=0.125,
        seed=2**64 - 1,
        logprobs=0,
        min_tokens=2,
        stop_token_ids=(7, 8),
        penalties=Penalties(0.5, -1.5, 1.25, {5: -100.0, 6: 2.5}),
        guide='start: "a"',
    )


def test_penalties_that_change_nothing_are_none():
    assert _sampling(presence_penalty=0.0, frequency_penalty=0.0, repetition_penalty=1.0).penalties is None
    assert _sampling(logit_bias={5: 1.0}).penalties == Penalties(logit_bias={5: 1.0})
    assert _sampling(repetition_penalty=0.5).penalties == Penalties(repetition=0.5)


def test_every_field_of_a_result():
    result = StepResult(
        epoch=3,
        step=7,
        sequence_ids=[_LARGE, 2],
        token_ids=[5, 6],
        logprobs=[TokenLogprobs(-0.5, [5], [-0.5]), None],
        scores=[-0.5, 0.0],
        candidates=[Candidates(9, [1, 2], [-0.25, float("-inf")])],
        speeds=Speeds(1.0, 2.0, 3.0, 4.0),
        failures=[(2, "no way on")],
    )
    message = encode_result(result, duration_us=11).result
    assert message == executor_pb2.StepResult(
        epoch=3,
        step=7,
        sequence_ids=_int64(_LARGE, 2),
        token_ids=_int32(5, 6),
        logprobs=[
            common_pb2.TokenLogprobs(logprob=-0.5, top_token_ids=[5], top_logprobs=[-0.5]),
            common_pb2.TokenLogprobs(),
        ],
        duration_us=11,
        scores=struct.pack("<2f", -0.5, 0.0),
        candidates=[
            executor_pb2.Candidates(
                sequence_id=9, token_ids=_int32(1, 2), logprobs=struct.pack("<2f", -0.25, float("-inf"))
            )
        ],
        speeds=memory_pb2.Speeds(
            prefill_tokens_per_s=1.0, swap_out_blocks_per_s=2.0, swap_in_blocks_per_s=3.0, copy_blocks_per_s=4.0
        ),
        failures=[executor_pb2.SequenceFailure(sequence_id=2, reason="no way on")],
    )


def test_a_result_without_anything_is_small():
    message = encode_result(StepResult(epoch=1, step=2), duration_us=3).result
    assert not message.HasField("speeds")
    assert message == executor_pb2.StepResult(epoch=1, step=2, duration_us=3)


def test_a_description():
    info = ExecutorInfo(
        model_name="tiny",
        max_model_len=128,
        vocab_size=96,
        block_size=16,
        num_blocks=40,
        num_host_blocks=10,
        bytes_per_block=6144,
        max_batched_tokens=512,
        max_sequences=64,
        device="cpu",
        dtype="float32",
        attention_backend="reference",
        eos_token_ids=(2,),
        incarnation="abc",
        tensor_parallel_size=4,
    )
    message = encode_description(info, epoch=5, speeds=Speeds(prefill_tokens_per_s=99.0))
    assert (message.num_host_blocks, message.model.num_blocks, message.epoch) == (10, 40, 5)
    assert (message.max_batched_tokens, message.max_sequences) == (512, 64)
    assert message.tensor_parallel_size == 4
    assert message.speeds == memory_pb2.Speeds(prefill_tokens_per_s=99.0)
