"""A whole executor that attends with Triton, interpreted, answers as one that attends in plain torch."""

from __future__ import annotations

import pytest

from executor.errors import SettingsError

LAYERS = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 1}
SETTINGS = {"decoder": "torch", "max_model_len": 32, "kv_memory": "256KiB"}


@pytest.fixture(scope="module")
def model(save_model, llama_config):
    return save_model(llama_config(**LAYERS))[0]


def test_it_answers_as_the_reference_does(model, load, drive, prompt):
    prompts = [prompt(length, seed=length) for length in (3, 18)]
    expected = drive(load(model, attention_backend="reference", **SETTINGS)).generate(prompts, 3)
    executor = load(model, attention_backend="triton", **SETTINGS)
    assert executor.info.attention_backend == "triton"
    assert drive(executor).generate(prompts, 3, chunk=10) == expected


def test_fp8_takes_a_quarter_of_float32(model, load, drive, prompt):
    whole, small = (load(model, attention_backend="triton", kv_dtype=kind, **SETTINGS) for kind in ("auto", "fp8"))
    assert whole.info.bytes_per_block == 4 * small.info.bytes_per_block
    (answer,) = drive(small).generate([prompt(9, seed=1)], 2)
    assert len(answer) == 2


def test_what_it_does_not_take_is_refused_where_it_is_asked_for(model, load):
    with pytest.raises(SettingsError, match=r"attention_backend triton: block_size must be one of 8"):
        load(model, attention_backend="triton", block_size=4, **SETTINGS)
