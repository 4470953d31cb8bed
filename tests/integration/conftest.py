"""The models, made or loaded once."""

from __future__ import annotations

import pytest

from tests.integration.models import FAMILIES, Model, load_demo_model, make_tiny


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    """One of each family."""
    return {family: make_tiny(family, tmp_path_factory.mktemp(family)) for family in FAMILIES}


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest, tiny_models: dict[str, Model]) -> Model:
    """A tiny model of each family."""
    return tiny_models[request.param]


@pytest.fixture
def tiny(tiny_models: dict[str, Model]) -> Model:
    return tiny_models["llama"]


@pytest.fixture(scope="session")
def smollm2() -> Model:
    return load_demo_model()


@pytest.fixture(params=["tiny", pytest.param("smollm2", marks=pytest.mark.demo_model)])
def model(request: pytest.FixtureRequest) -> Model:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Model)
    return found
