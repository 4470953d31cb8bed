"""Products with matrices of 4 and 8 bits: exact codes, and sums against float64 on every level that runs here."""

from __future__ import annotations

import math

import gguf
import numpy as np
import pytest

from executor.native import Crew
from executor.native.linear import Epilogue, PackedLinear, WeightKind, interleave, multiply, pack, unpack
from executor.native.quantized import pack_matrix, quantise
from executor.weights.gguf_blocks import quantised_matrix
from executor.weights.quantised import GROUP, QuantisedMatrix

_BITS = {WeightKind.INT4: 4, WeightKind.INT8: 8}
_GGUF = {
    gguf.GGMLQuantizationType.Q4_0: WeightKind.INT4,
    gguf.GGMLQuantizationType.Q4_1: WeightKind.INT4,
    gguf.GGMLQuantizationType.Q8_0: WeightKind.INT8,
}
# As the kernels' float32 sums may differ from float64: a few units in the last place for each group that is added.
_TOLERANCE = 2e-6


@pytest.fixture
def crew(library):
    return Crew(library, 2)


def _matrix(rng, kind, outputs, inputs):
    """Codes over their whole range, with scales and minimums of some size."""
    shape = (outputs, inputs // GROUP)
    codes = rng.integers(0, 2 ** _BITS[kind], (outputs, inputs), dtype=np.uint8)
    scales = rng.uniform(-0.1, 0.1, shape).astype(np.float16)
    minimums = rng.uniform(-1, 1, shape).astype(np.float16) if kind == WeightKind.INT4 else None
    return QuantisedMatrix(_BITS[kind], codes, scales, minimums)


def _linear(library, kind, matrix, bias=None):
    outputs, inputs = matrix.codes.shape
    return PackedLinear(kind, outputs, inputs, pack_matrix(library, kind, [matrix]), bias)


def _activations(rng, rows, inputs):
    """Activations, and what is left of them in 8 bits: multiples of a group's largest / 127, which none is far from."""
    codes = rng.integers(-126, 127, (rows, inputs // GROUP, GROUP)).astype(np.float64)
    codes[..., rng.integers(GROUP)] = rng.choice([-127, 127], codes.shape[:2])
    scales = rng.uniform(0.001, 0.1, (rows, inputs // GROUP, 1))
    near = np.where(np.abs(codes) == 127, 0, rng.uniform(-0.4, 0.4, codes.shape))
    exact = ((codes + near) * scales).astype(np.float32)
    steps = np.abs(exact).max(axis=-1, keepdims=True).astype(np.float64) / 127
    return exact.reshape(rows, inputs), (codes * steps).reshape(rows, inputs)


def _assert_close(result, x, weights, reference):
    """Within what float32 loses of the sum of all sizes."""
    allowed = _TOLERANCE * (np.abs(x) @ np.abs(weights).T + 1)
    assert (np.abs(result - reference) <= allowed).all()


@pytest.mark.parametrize("kind", _BITS)
@pytest.mark.parametrize(
    ("rows", "outputs", "inputs"),
    [(1, 16, 32), (1, 50, 96), (2, 33, 32), (3, 100, 1056), (7, 5, 160), (12, 48, 64), (13, 49, 96), (40, 31, 576)],
)
def test_a_product_is_that_of_the_rounded_activations(library, crew, rng, kind, rows, outputs, inputs):
    matrix = _matrix(rng, kind, outputs, inputs)
    weights = matrix.dequantised().astype(np.float64)
    if matrix.minimums is not None:
        # Where they cancel, sizes before are what is lost of.
        sizes = np.repeat(np.abs(matrix.scales.astype(np.float64)), GROUP, axis=1) * 15 + np.abs(weights)
    else:
        sizes = weights
    bias = rng.normal(size=outputs).astype(np.float32)
    x, rounded = _activations(rng, rows, inputs)
    y = np.full((rows, outputs), np.nan, np.float32)
    multiply(library, crew, _linear(library, kind, matrix, bias), x, y)
    _assert_close(y, rounded, sizes, rounded @ weights.T + bias)


@pytest.mark.parametrize("kind", _BITS)
def test_rounding_activations_loses_at_most_half_a_step_of_each(library, crew, rng, kind):
    matrix = _matrix(rng, kind, 64, 320)
    weights = matrix.dequantised().astype(np.float64)
    x = rng.standard_t(3, (9, 320)).astype(np.float32)
    y = np.empty((9, 64), np.float32)
    multiply(library, crew, _linear(library, kind, matrix), x, y)
    steps = np.abs(x).reshape(9, -1, GROUP).max(axis=-1) / 127
    sizes = np.abs(weights).reshape(64, -1, GROUP).sum(axis=-1)
    assert (np.abs(y - x @ weights.T) <= 0.5001 * steps @ sizes.T + 1e-3).all()


@pytest.mark.parametrize("kind", _BITS)
@pytest.mark.parametrize("sign", [-1, 1])
def test_the_largest_codes_do_not_overflow(library, crew, kind, sign):
    """All products of a group at their largest, at both ends of the codes."""
    largest = 2 ** _BITS[kind] - 1
    codes = np.array([[largest] * 64, [0] * 64, [largest, 0] * 32], np.uint8)
    scales = np.ones((3, 2), np.float16)
    minimums = np.zeros((3, 2), np.float16) if kind == WeightKind.INT4 else None
    matrix = QuantisedMatrix(_BITS[kind], codes, scales, minimums)
    x = np.full((5, 64), 127 * sign, np.float32)
    y = np.empty((5, 3), np.float32)
    multiply(library, crew, _linear(library, kind, matrix), x, y)
    np.testing.assert_array_equal(y, x.astype(np.float64) @ matrix.dequantised().T.astype(np.float64))


@pytest.mark.parametrize("kind", _BITS)
def test_a_row_depends_neither_on_others_nor_on_the_number_of_threads(library, crew, rng, kind):
    matrix = _matrix(rng, kind, 77, 416)
    linear = _linear(library, kind, matrix)
    x = rng.normal(size=(31, 416)).astype(np.float32)
    y = np.empty((31, 77), np.float32)
    multiply(library, crew, linear, x, y)
    alone = Crew(library, 1)
    for first, count in ((0, 1), (30, 1), (3, 2), (7, 12), (5, 13), (0, 25)):
        for threads in (alone, crew):
            part = np.empty((count, 77), np.float32)
            multiply(library, threads, linear, x[first : first + count], part)
            np.testing.assert_array_equal(part, y[first : first + count])


@pytest.mark.parametrize("kind", _BITS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_no_number_spoils_itself_alone(library, crew, rng, kind, bad):
    linear = _linear(library, kind, _matrix(rng, kind, 20, 96))
    x = rng.normal(size=(5, 96)).astype(np.float32)
    before, after = np.empty((5, 20), np.float32), np.empty((5, 20), np.float32)
    multiply(library, crew, linear, x, before)
    x[2, rng.integers(96)] = bad
    multiply(library, crew, linear, x, after)
    assert np.isnan(after[2]).all()
    np.testing.assert_array_equal(np.delete(after, 2, axis=0), np.delete(before, 2, axis=0))


@pytest.mark.parametrize("size", [0.0, 1e-39, 1e-30, 1e30])
def test_very_small_and_large_activations(library, crew, rng, size):
    matrix = _matrix(rng, WeightKind.INT4, 16, 64)
    x = (rng.choice([-1, 1], (2, 64)) * size).astype(np.float32)
    y = np.empty((2, 16), np.float32)
    multiply(library, crew, _linear(library, WeightKind.INT4, matrix), x, y)
    reference = x.astype(np.float64) @ matrix.dequantised().T.astype(np.float64)
    np.testing.assert_allclose(y, reference, rtol=1e-4, atol=1e-4 * size + 1e-28)


def _activation(epilogue, values):
    return {
        Epilogue.SILU: lambda v: v * (1 + np.tanh(v / 2)) / 2,
        Epilogue.GELU: lambda v: v * (1 + np.vectorize(math.erf)(v / math.sqrt(2))) / 2,
        Epilogue.GELU_TANH: lambda v: v * (1 + np.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))) / 2,
        Epilogue.RELU: lambda v: np.maximum(v, 0),
    }[epilogue](values)


_GATES = {
    Epilogue.GATE_SILU: Epilogue.SILU,
    Epilogue.GATE_GELU: Epilogue.GELU,
    Epilogue.GATE_GELU_TANH: Epilogue.GELU_TANH,
    Epilogue.GATE_RELU: Epilogue.RELU,
}


@pytest.mark.parametrize("kind", _BITS)
@pytest.mark.parametrize("epilogue", [Epilogue.ADD, *_GATES.values()])
def test_what_happens_to_a_product_before_it_is_stored(library, crew, rng, kind, epilogue):
    matrix = _matrix(rng, kind, 41, 64)
    bias = rng.normal(size=41).astype(np.float32)
    x, rounded = _activations(rng, 14, 64)
    y = rng.normal(size=(14, 41)).astype(np.float32)
    product = rounded @ matrix.dequantised().astype(np.float64).T + bias
    expected = y + product if epilogue is Epilogue.ADD else _activation(epilogue, product)
    multiply(library, crew, _linear(library, kind, matrix, bias), x, y, epilogue)
    np.testing.assert_allclose(y, expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("kind", _BITS)
@pytest.mark.parametrize("epilogue", _GATES)
@pytest.mark.parametrize("count", [16, 40])
def test_gated_matrices(library, crew, rng, kind, epilogue, count):
    halves = [_matrix(rng, kind, count, 96) for _ in range(2)]
    gate, up = (half.dequantised().astype(np.float64) for half in halves)
    biases = rng.normal(size=(2, count)).astype(np.float32)
    packed = pack_matrix(library, kind, halves, gated=True)
    width = -(-count // 16) * 16
    linear = PackedLinear(kind, 2 * width, 96, packed, interleave(*biases))
    x, rounded = _activations(rng, 5, 96)
    y = np.empty((5, width), np.float32)
    multiply(library, crew, linear, x, y, epilogue)
    expected = _activation(_GATES[epilogue], rounded @ gate.T + biases[0]) * (rounded @ up.T + biases[1])
    np.testing.assert_allclose(y[:, :count], expected, rtol=5e-4, atol=5e-4)
    assert (y[:, count:] == 0).all()
    # The same rows as where floats are interleaved before they are packed.
    floats = interleave(*(half.dequantised() for half in halves))
    np.testing.assert_array_equal(unpack(library, linear), floats)


@pytest.mark.parametrize("form", _GGUF)
def test_a_ggufs_codes_are_kept(library, rng, form):
    values = rng.normal(size=(37, 160)).astype(np.float32)
    data = gguf.quantize(values, form)
    matrix = quantised_matrix(data, form)
    assert matrix is not None
    expected = gguf.dequantize(data, form)
    np.testing.assert_array_equal(matrix.dequantised(), expected)
    linear = _linear(library, _GGUF[form], matrix)
    np.testing.assert_array_equal(unpack(library, linear), expected)


def test_other_formats_of_gguf_are_not_taken_apart(rng):
    values = rng.normal(size=(4, 64)).astype(np.float32)
    form = gguf.GGMLQuantizationType.Q5_0
    assert quantised_matrix(gguf.quantize(values, form), form) is None


@pytest.mark.parametrize("kind", _BITS)
def test_floats_get_the_nearest_codes(library, rng, kind):
    weights = (rng.standard_t(4, (45, 192)) * 0.05).astype(np.float32)
    weights[3, :32] = 0
    weights[4, 32:64] = 0.25
    weights[5, :32] = np.linspace(1, 2, 32)
    matrix = quantise(library, kind, weights)
    steps = np.repeat(np.abs(matrix.scales.astype(np.float64)), GROUP, axis=1)
    # Scale and minimum are float16, so the ends of a group may lie a little outside.
    outside = np.abs(weights).reshape(45, -1, GROUP).max(axis=-1, keepdims=True) * 2.0**-10
    allowed = steps / 2 + np.broadcast_to(outside, (45, 6, GROUP)).reshape(45, 192)
    assert (np.abs(matrix.dequantised() - weights) <= allowed).all()
    # A group's range is divided into as many codes as there are.
    groups = matrix.codes.astype(int).reshape(45, -1, GROUP)
    used = np.ptp(groups, axis=-1) if kind == WeightKind.INT4 else np.abs(groups - 128).max(axis=-1)
    constant = np.ptp(weights.reshape(45, -1, GROUP), axis=-1) == 0
    assert (used[~constant] >= {WeightKind.INT4: 14, WeightKind.INT8: 126}[kind]).all()
    np.testing.assert_array_equal(
        unpack(library, pack(library, kind, weights)), unpack(library, _linear(library, kind, matrix))
    )


@pytest.mark.parametrize("kind", _BITS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e6])
def test_weights_beyond_float16_are_refused(library, kind, bad):
    weights = np.zeros((2, 64), np.float32)
    weights[1, 40] = bad
    with pytest.raises(ValueError, match="beyond float16"):
        quantise(library, kind, weights)


def test_inputs_that_are_no_whole_groups_are_refused(library):
    with pytest.raises(ValueError, match="48 inputs"):
        pack_matrix(library, WeightKind.INT4, [np.zeros((2, 48), np.float32)])


def test_parts_of_other_kinds_are_rounded(library, rng):
    """A matrix of a GGUF's own 4 bits, one of its 8 bits, and one of floats: only the first keeps its codes."""
    four, eight = _matrix(rng, WeightKind.INT4, 10, 64), _matrix(rng, WeightKind.INT8, 20, 64)
    floats = rng.normal(size=(3, 64)).astype(np.float32)
    packed = pack_matrix(library, WeightKind.INT4, [four, eight, floats])
    values = unpack(library, PackedLinear(WeightKind.INT4, 33, 64, packed))
    np.testing.assert_array_equal(values[:10], four.dequantised())
    for rows, exact in ((values[10:30], eight.dequantised()), (values[30:], floats)):
        np.testing.assert_array_equal(rows, quantise(library, WeightKind.INT4, exact).dequantised())
