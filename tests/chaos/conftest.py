"""What the tests of failures under load share: the tiny model, its answers, and processes whose logs are shown."""

from tests.services.e2e.conftest import model, processes, pytest_runtest_makereport, reference

__all__ = ["model", "processes", "pytest_runtest_makereport", "reference"]
