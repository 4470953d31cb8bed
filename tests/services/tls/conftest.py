"""Certificates for the tests, made once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from services.certificates import make_certificates

MakeCertificates = Callable[..., Path]


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nobody changes them."""
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder, (), 30, datetime.now(timezone.utc))
    return folder


@pytest.fixture
def make(tmp_path: Path) -> MakeCertificates:
    """Makes certificates that a test may replace, by an authority of their own."""

    def make(name: str = "certificates", days: int = 30, made_days_ago: int = 0) -> Path:
        folder = tmp_path / name
        make_certificates(folder, (), days, datetime.now(timezone.utc) - timedelta(days=made_days_ago))
        return folder

    return make
