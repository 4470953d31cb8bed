"""Products with packed matrices, of each level, against float64."""

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from executor.native import Crew, Library, LibraryMissing, load_library
from executor.native.build import OUTPUT, compile_variant, levels, library_name
from executor.native.linear import (
    Epilogue,
    PackedLinear,
    WeightKind,
    aligned_bytes,
    interleave,
    multiply,
    pack,
    unpack,
    workspace_bytes,
)

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

# (outputs, inputs): whole panels and not, one k and several chunks of them, even and odd.
SHAPES = [(16, 1), (1, 2), (37, 13), (64, 96), (48, 31), (96, 257), (31, 515), (80, 700)]
_EPS = 2.0**-24


_CASES = [(level, kind) for level in levels() for kind in (WeightKind.FLOAT32, WeightKind.BFLOAT16)]


@dataclass(frozen=True)
class Case:
    """A level's products with a kind of matrix.

    Attributes:
        rounds_x: to bfloat16.
    """

    library: Library
    kind: WeightKind
    rounds_x: bool

    def product(self, linear: PackedLinear, x: Floats) -> tuple[Doubles, Doubles]:
        """What a product should be, and how far rounding may take it from there: each addition by half a unit in the
        last place of what is added up."""
        inputs = (_to_bf16(x) if self.rounds_x else x).astype(np.float64)
        weights = unpack(self.library, linear).astype(np.float64)
        bias = 0 if linear.bias is None else linear.bias.astype(np.float64)
        size = np.abs(inputs) @ np.abs(weights.T) + np.abs(bias)
        return inputs @ weights.T + bias, (linear.inputs + 3) * _EPS * size


@pytest.fixture(params=[*_CASES, None], ids=[*(f"{level}-{kind.name.lower()}" for level, kind in _CASES), "emulated"])
def case(request: pytest.FixtureRequest, runnable: list[str]) -> Case:
    """Every kind at every level; None stands for tile registers in memory."""
    if request.param is None:
        return Case(request.getfixturevalue("emulated_amx"), WeightKind.BFLOAT16, True)
    level, kind = request.param
    if level not in runnable:
        pytest.skip(f"no {level} here")
    return Case(load_library(level), kind, level == "amx" and kind is WeightKind.BFLOAT16)


def test_unpacking_gives_the_rounded_weights(case: Case, rng: np.random.Generator) -> None:
    for outputs, inputs in SHAPES:
        weights = _normal(rng, outputs, inputs)
        packed = pack(case.library, case.kind, weights)
        expected = weights if case.kind is WeightKind.FLOAT32 else _to_bf16(weights)
        np.testing.assert_array_equal(unpack(case.library, packed), expected)


def test_products_are_those_of_float64(case: Case, rng: np.random.Generator) -> None:
    crew = Crew(case.library, 2)
    for outputs, inputs in SHAPES:
        linear = pack(case.library, case.kind, _normal(rng, outputs, inputs), _normal(rng, outputs))
        for rows in (1, 2, 15, 16, 33, int(rng.integers(3, 70))):
            x, y = _normal(rng, rows, inputs), np.full((rows, outputs), np.nan, np.float32)
            multiply(case.library, crew, linear, x, y)
            _check(y, *case.product(linear, x))


def test_a_row_has_the_same_bits_beside_any_others_on_any_threads(case: Case, rng: np.random.Generator) -> None:
    crews = [Crew(case.library, threads) for threads in (1, 2, 3)]
    for outputs, inputs in [(80, 300), (33, 67)]:
        linear = pack(case.library, case.kind, _normal(rng, outputs, inputs), _normal(rng, outputs))
        x = _normal(rng, 300, inputs)
        alone = np.empty((len(x), outputs), np.float32)
        for row in range(len(x)):
            multiply(case.library, crews[0], linear, x[row : row + 1], alone[row : row + 1])
        for rows in [*range(2, 71), len(x)]:
            y = np.empty((rows, outputs), np.float32)
            first = int(rng.integers(0, len(x) - rows + 1))
            multiply(case.library, crews[rows % 3], linear, x[first : first + rows], y)
            np.testing.assert_array_equal(y, alone[first : first + rows], err_msg=f"{rows} rows")


@pytest.mark.parametrize("epilogue", list(Epilogue), ids=lambda epilogue: epilogue.name.lower())
def test_epilogues(case: Case, epilogue: Epilogue, rng: np.random.Generator) -> None:
    crew = Crew(case.library, 2)
    inputs, width = 70, 64 if epilogue.is_gate else 45
    weights, bias = [_normal(rng, width, inputs) for _ in range(2)], [_normal(rng, width) for _ in range(2)]
    if epilogue.is_gate:
        linear = pack(case.library, case.kind, interleave(*weights), interleave(*bias))
    else:
        linear = pack(case.library, case.kind, weights[0], bias[0])
    for rows in (1, 17, 40):
        x, before = _normal(rng, rows, inputs), _normal(rng, rows, width)
        y = before.copy()
        multiply(case.library, crew, linear, x, y, epilogue)
        products, bound = case.product(linear, x)
        if epilogue.is_gate:
            (gate, up), (gate_bound, up_bound) = _halves(products), _halves(bound)
            activated = _ACTIVATIONS[epilogue](gate)
            # No activation is steeper than 1.13.
            slack = 1.13 * gate_bound * np.abs(up) + np.abs(activated) * up_bound + 1e-6 * np.abs(gate * up)
            _check(y, activated * up, slack)
        elif epilogue is Epilogue.ADD:
            _check(y, before + products, bound + _EPS * np.abs(before + products))
        else:
            _check(y, _ACTIVATIONS[epilogue](products), 1.13 * bound + 1e-6 * np.abs(products))


@pytest.mark.parametrize("epilogue", [Epilogue.SILU, Epilogue.GELU, Epilogue.GELU_TANH, Epilogue.RELU])
def test_activations_are_as_exact_as_floats(library: Library, epilogue: Epilogue) -> None:
    x = np.concatenate([np.linspace(-100, 100, 4001), np.linspace(-6, 6, 4001), [0.0, 1e-30, -1e-30, 3e38, -3e38]])
    column = x.astype(np.float32)[:, None]
    y = np.empty_like(column)
    multiply(library, Crew(library, 1), pack(library, WeightKind.FLOAT32, np.ones((1, 1))), column, y, epilogue)
    exact = _ACTIVATIONS[epilogue](column.astype(np.float64))
    # Relative where it matters; far below, where an activation fades to nothing, a 10^-9th of a usual value.
    _check(y, exact, 1e-6 * np.abs(exact) + 1e-9)


def test_memory_beside_the_matrices_is_neither_read_nor_written(case: Case, rng: np.random.Generator) -> None:
    crew = Crew(case.library, 2)
    for (outputs, inputs), rows in [((37, 13), 5), ((50, 61), 20), ((96, 33), 40)]:
        tight = pack(case.library, case.kind, _normal(rng, outputs, inputs))
        # The packed matrix, x, y and the workspace lie in memory that is full of NaN.
        around = aligned_bytes(len(tight.packed) + 4096)
        around.view(np.uint32)[:] = 0x7FC07FC0
        around[: len(tight.packed)] = tight.packed
        linear = PackedLinear(case.kind, outputs, inputs, around[: len(tight.packed)])
        wide_x = np.full((rows + 3, inputs + 5), np.nan, np.float32)
        wide_x[:rows, :inputs] = x = _normal(rng, rows, inputs)
        wide_y = np.full((rows + 3, outputs + 5), np.nan, np.float32)
        workspace = aligned_bytes(workspace_bytes(case.library, case.kind, rows, inputs) + 64)
        workspace[:] = 0xFF
        multiply(case.library, crew, linear, wide_x[:rows, :inputs], wide_y[:rows, :outputs], workspace=workspace)
        _check(wide_y[:rows, :outputs], *case.product(linear, x))
        assert np.isnan(wide_y[rows:]).all()
        assert np.isnan(wide_y[:, outputs:]).all()
        assert (workspace[-64:] == 0xFF).all()


def test_a_row_of_nans_stays_its_own(case: Case, rng: np.random.Generator) -> None:
    crew = Crew(case.library, 1)
    linear = pack(case.library, case.kind, _normal(rng, 48, 40))
    x = _normal(rng, 30, 40)
    clean, y = np.empty((30, 48), np.float32), np.empty((30, 48), np.float32)
    multiply(case.library, crew, linear, x, clean)
    x[11] = np.nan
    multiply(case.library, crew, linear, x, y)
    assert np.isnan(y[11]).all()
    np.testing.assert_array_equal(np.delete(y, 11, axis=0), np.delete(clean, 11, axis=0))


def test_kernels_whose_products_are_wrong_here_are_passed_over(runnable: list[str], tmp_path: Path) -> None:
    if len(runnable) < 2:
        pytest.skip("one level only")
    wrong, right = runnable[-2:]
    for name in ("probe", right):
        (tmp_path / library_name(name)).write_bytes((OUTPUT / library_name(name)).read_bytes())
    source = tmp_path / "wrong.cpp"
    source.write_text('extern "C" __attribute__((visibility("default"))) int octavo_products_are_right() { return 0; }')
    compile_variant(tmp_path / library_name(wrong), wrong, [source])
    assert load_library(folder=tmp_path).level == right
    with pytest.raises(LibraryMissing, match=wrong):
        load_library(wrong, tmp_path)


def test_products_are_right_here(case: Case) -> None:
    assert case.library.function("octavo_products_are_right", ctypes.c_int32)() == 1


def _normal(rng: np.random.Generator, *shape: int) -> Floats:
    return rng.standard_normal(shape).astype(np.float32)


def _to_bf16(values: Floats) -> Floats:
    """The nearest bfloat16, ties to even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def _halves(columns: Doubles) -> tuple[Doubles, Doubles]:
    """Gate and up of what was packed as `interleave` does."""
    panels = columns.reshape(len(columns), -1, 2, 16)
    return panels[:, :, 0].reshape(len(columns), -1), panels[:, :, 1].reshape(len(columns), -1)


def _check(y: Floats, expected: Doubles, bound: Doubles) -> None:
    worst = np.max(np.abs(y - expected) / np.maximum(bound, 1e-300))
    assert worst <= 1, f"{worst:.3g} times as far away as rounding can take it"


_sigmoid = np.vectorize(lambda x: 1 / (1 + math.exp(-x)) if x > -700 else 0.0)
_share_below = np.vectorize(lambda x: math.erfc(-x / math.sqrt(2)) / 2)


def _silu(x: Doubles) -> Doubles:
    return np.asarray(x * _sigmoid(x))


def _gelu(x: Doubles) -> Doubles:
    return np.asarray(x * _share_below(x))


def _gelu_tanh(x: Doubles) -> Doubles:
    return np.asarray(x * _sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _relu(x: Doubles) -> Doubles:
    return np.maximum(x, 0)


_ACTIVATIONS: dict[Epilogue, Callable[[Doubles], Doubles]] = {
    Epilogue.STORE: lambda x: x,
    Epilogue.SILU: _silu,
    Epilogue.GELU: _gelu,
    Epilogue.GELU_TANH: _gelu_tanh,
    Epilogue.RELU: _relu,
    Epilogue.GATE_SILU: _silu,
    Epilogue.GATE_GELU: _gelu,
    Epilogue.GATE_GELU_TANH: _gelu_tanh,
    Epilogue.GATE_RELU: _relu,
}
