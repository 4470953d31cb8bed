"""The models, made or loaded once."""

from __future__ import annotations

import pytest

from tests.integration.models import FAMILIES, Model, load_demo_model, make_tiny


@pytest.fixture(scope="session", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A tiny model of each family."""
    return make_tiny(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return make_tiny("llama", tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def smollm2() -> Model:
    return load_demo_model()


@pytest.fixture(params=["tiny", pytest.param("smollm2", marks=pytest.mark.demo_model)])
def model(request: pytest.FixtureRequest) -> Model:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Model)
    return found
