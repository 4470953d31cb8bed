"""What the benchmarks of the whole stack serve in their tests."""

from pathlib import Path

import pytest

from tests.services.e2e.tiny_model import save_tiny_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny_model(folder)
    return folder
