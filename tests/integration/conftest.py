"""The models, made or loaded once."""

from __future__ import annotations

import pytest

from tests.integration.models import FAMILIES, Model, load_demo_model, make_tiny


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    """One of each family."""
    return {family: make_tiny(config, tmp_path_factory.mktemp(family)) for family, config in FAMILIES.items()}


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest, tiny_models: dict[str, Model]) -> Model:
    """A tiny model of each family."""
    return tiny_models[request.param]


@pytest.fixture(
    params=[family if family == "llama" else pytest.param(family, marks=pytest.mark.slow) for family in FAMILIES]
)
def each_family(request: pytest.FixtureRequest, tiny_models: dict[str, Model]) -> Model:
    """The same for tests of many cases: only the first family's are always run."""
    return tiny_models[request.param]


@pytest.fixture
def tiny(tiny_models: dict[str, Model]) -> Model:
    return tiny_models["llama"]


@pytest.fixture(scope="session")
def smollm2() -> Model:
    return load_demo_model()
