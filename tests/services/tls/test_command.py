"""`octavo certs` as a person meets it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.services.e2e.processes import ROOT


def certs(*arguments: str, path: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "services.cli.app", "certs", *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_it_says_what_it_made_and_does_not_make_it_twice(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "certificates"
    made = certs(str(folder), "--days=3", "--name=chat.example")
    assert made.returncode == 0, made
    assert made.stdout == f"{folder} holds certificates for 3 days\n"
    again = certs(str(folder))
    assert again.returncode == 2
    assert again.stderr == f"octavo: {folder} holds an authority already; --renew makes new certificates from it\n"


def test_without_its_library_it_says_how_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "cryptography").mkdir()
    absent = "raise ModuleNotFoundError(\"No module named 'cryptography'\", name='cryptography')\n"
    (tmp_path / "cryptography" / "__init__.py").write_text(absent)
    refused = certs(str(tmp_path / "certificates"), path=str(tmp_path))
    assert refused.returncode == 2
    assert refused.stderr == "octavo: octavo certs needs one more package: pip install 'octavo[certs]'\n"
