"""Which number formats and which attention the decoder in torch takes, on devices that are not here too."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from executor.attention import BACKENDS
from executor.attention.triton.availability import triton_obstacle
from executor.errors import SettingsError
from executor.settings import ExecutorSettings
from executor.torch_decoder.torch_formats import choose_attention, choose_backend, choose_dtype, choose_kv_dtype

CPU, GPU = torch.device("cpu"), torch.device("cuda")
PASCAL, TURING, AMPERE, ADA, HOPPER = (6, 1), (7, 5), (8, 0), (8, 9), (9, 0)


def settings(**changes):
    return ExecutorSettings(model=Path("m"), kv_memory="1MiB", **changes)


@pytest.fixture
def triton(monkeypatch):
    """A Triton that is there, whether or not one is, and its settings."""
    module = SimpleNamespace(
        __version__="3.6.0",
        knobs=SimpleNamespace(runtime=SimpleNamespace(interpret=False)),
        runtime=SimpleNamespace(driver=SimpleNamespace(active=SimpleNamespace(utils="built"))),
    )
    monkeypatch.setitem(sys.modules, "triton", module)
    return module


@pytest.fixture
def no_triton(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)


@pytest.mark.parametrize(
    ("wanted", "checkpoint", "device", "capability", "expected"),
    [
        ("auto", "bfloat16", CPU, None, "float32"),
        ("bfloat16", "float32", CPU, None, "bfloat16"),
        ("auto", "bfloat16", GPU, AMPERE, "bfloat16"),
        ("auto", "float16", GPU, TURING, "float16"),
        ("auto", "float32", GPU, HOPPER, "float32"),
        ("float16", "bfloat16", GPU, TURING, "float16"),
    ],
)
def test_dtype(wanted, checkpoint, device, capability, expected):
    assert choose_dtype(settings(dtype=wanted), SimpleNamespace(dtype=checkpoint), device, capability) == expected


@pytest.mark.parametrize(
    ("wanted", "checkpoint", "message"),
    [
        ("bfloat16", "float16", r"^dtype bfloat16 needs .* 8\.0 or newer; this one has 7\.5: set dtype to float16"),
        ("auto", "bfloat16", r"^the checkpoint's dtype bfloat16 needs .* set dtype to float16 or float32"),
        ("auto", "float64", r"^the checkpoint's dtype float64 is not supported"),
    ],
)
def test_a_dtype_that_the_gpu_lacks_is_refused(wanted, checkpoint, message):
    with pytest.raises(SettingsError, match=message):
        choose_dtype(settings(dtype=wanted), SimpleNamespace(dtype=checkpoint), GPU, TURING)


def test_a_gpu_attends_with_triton(triton, caplog):
    for wanted in ("auto", "triton"):
        assert choose_backend(settings(attention_backend=wanted), GPU, AMPERE) == "triton"
    assert choose_backend(settings(attention_backend="reference"), GPU, AMPERE) == "reference"
    assert choose_backend(settings(), CPU, None) == "reference"
    assert caplog.text == ""


def test_without_triton_a_gpu_attends_slowly_and_says_how_to_get_it(no_triton, caplog):
    assert choose_backend(settings(), GPU, HOPPER) == "reference"
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "pip install triton" in record.reason
    assert choose_backend(settings(), CPU, None) == "reference"
    assert len(caplog.records) == 1, "a CPU is no reason to warn"
    with pytest.raises(SettingsError, match=r"^attention_backend triton: Triton can't be imported .*pip install"):
        choose_backend(settings(attention_backend="triton"), GPU, HOPPER)


def test_what_triton_does_not_take_is_attended_slowly_where_it_is_not_asked_for(triton, monkeypatch, caplog):
    def refuse(*args):
        raise SettingsError("attention_backend triton: block_size must be one of 8, 16, 32, 64, 128, not 4")

    monkeypatch.setitem(BACKENDS, "triton", lambda: SimpleNamespace(name="triton", block_layout=refuse))
    attention, kv_dtype = choose_attention(settings(block_size=4), None, torch.float16, GPU, HOPPER)
    assert (attention.name, kv_dtype) == ("reference", torch.float16)
    (record,) = caplog.records
    assert "block_size must be one of 8, 16" in record.reason
    with pytest.raises(SettingsError, match="kv_dtype fp8 needs attention_backend triton"):
        choose_attention(settings(block_size=4, kv_dtype="fp8"), None, torch.float16, GPU, HOPPER)

    asked = settings(block_size=4, attention_backend="triton")
    assert choose_attention(asked, None, torch.float16, GPU, HOPPER)[0].name == "triton", "refused when it lays out"


def test_triton_on_a_cpu_needs_its_interpreter(triton):
    with pytest.raises(SettingsError, match=r"attention_backend triton: on a CPU .*TRITON_INTERPRET=1"):
        choose_backend(settings(attention_backend="triton"), CPU, None)
    triton.knobs.runtime.interpret = True
    assert choose_backend(settings(attention_backend="triton"), CPU, None) == "triton"


def test_without_a_compiler_it_is_said_what_triton_needs(triton, caplog):
    class Active:
        @property
        def utils(self):
            raise RuntimeError("Failed to find C compiler.")

    triton.runtime = SimpleNamespace(driver=SimpleNamespace(active=Active()))
    assert choose_backend(settings(), GPU, HOPPER) == "reference"
    (record,) = caplog.records
    assert "it needs gcc or clang and Python's headers (Failed to find C compiler.)" in record.reason


def test_old_ones_are_named(triton):
    assert "8.0 or newer; this one has 7.5" in triton_obstacle(GPU, TURING)
    triton.__version__ = "3.2.0"
    assert "Triton is 3.2.0; it must be 3.5 or newer" in triton_obstacle(GPU, HOPPER)


def test_attention_for_cpus_is_refused_on_a_gpu():
    with pytest.raises(SettingsError, match="attention_backend cpu: device must be cpu, not cuda"):
        choose_backend(settings(attention_backend="cpu"), GPU, HOPPER)


def test_kv_dtype():
    assert choose_kv_dtype(settings(), torch.float16, "reference", TURING) == torch.float16
    for capability in (ADA, HOPPER, None):
        assert choose_kv_dtype(settings(kv_dtype="fp8"), torch.float16, "triton", capability) == torch.float8_e4m3fn


@pytest.mark.parametrize(
    ("kv_dtype", "backend", "capability", "message"),
    [
        ("int8", "triton", HOPPER, "kv_dtype int8 needs the native decoder"),
        ("fp8", "reference", HOPPER, "kv_dtype fp8 needs attention_backend triton on a GPU, not reference"),
        ("fp8", "triton", AMPERE, r"kv_dtype fp8 needs .* 8\.9 or newer; this one has 8\.0"),
    ],
)
def test_a_kv_dtype_that_can_not_be_stored_is_refused(kv_dtype, backend, capability, message):
    with pytest.raises(SettingsError, match=message):
        choose_kv_dtype(settings(kv_dtype=kv_dtype), torch.float16, backend, capability)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_dtype": "fp8"}, "kv_dtype fp8 needs attention_backend triton on a GPU"),
        ({"kv_dtype": "fp8", "decoder": "native"}, r"decoder native: it stores keys and values .* not in fp8"),
        ({"kv_dtype": "int8", "decoder": "torch"}, "kv_dtype int8 needs the native decoder on a CPU"),
        ({"quantize": "int4", "decoder": "torch"}, "quantize int4 needs the native decoder on a CPU"),
        ({"attention_backend": "triton"}, "attention_backend triton: "),
        ({"attention_backend": "triton", "decoder": "native"}, "decoder native: it has attention of its own"),
    ],
)
def test_what_a_cpu_can_not_do_is_refused_when_the_model_is_loaded(llama, load, changes, message):
    with pytest.raises(SettingsError, match=message):
        load(llama[0], **{"decoder": "auto"} | changes)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_without_a_gpu_is_refused_and_auto_takes_the_cpu(llama, load):
    with pytest.raises(SettingsError, match="device cuda: there is no usable GPU"):
        load(llama[0], device="cuda")
    assert load(llama[0], device="auto").info.device == "cpu"
