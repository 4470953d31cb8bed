"""A certificate that is rotated while it is in use: what fits is taken, what does not is not."""

from __future__ import annotations

import logging
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest

from services.certificates import renew_certificates
from services.config import ConfigError
from services.rpc.tls import Identity
from services.tls_files import TlsFiles


def renew(folder: Path) -> None:
    renew_certificates(folder, (), 30, datetime.now(timezone.utc))


def test_renewed_files_are_taken(make):
    folder = make()
    files = TlsFiles.of_role(folder, "gateway")
    identity = Identity(files)
    before = identity.refresh()
    assert identity.refresh() is before
    renew(folder)
    assert identity.refresh().certificate == files.cert.read_bytes() != before.certificate
    assert identity.refresh().key == files.key.read_bytes()


def test_a_key_that_came_before_its_certificate_waits_for_it(make, caplog):
    folder = make()
    files = TlsFiles.of_role(folder, "gateway")
    identity = Identity(files)
    before = identity.refresh()
    old_certificate = files.cert.read_bytes()
    renew(folder)
    new_certificate = files.cert.read_bytes()
    files.cert.write_bytes(old_certificate)
    assert identity.refresh() is before
    assert "is not the key of the certificate" in caplog.records[-1].reason
    files.cert.write_bytes(new_certificate)
    assert identity.refresh().certificate == new_certificate


@pytest.mark.parametrize("which", ["cert", "key", "ca"])
@pytest.mark.parametrize("how", ["half", "empty", "gone"])
def test_a_file_that_is_being_written_changes_nothing(make, caplog, which, how):
    files = TlsFiles.of_role(make(), "gateway")
    identity = Identity(files)
    before = identity.refresh()
    path: Path = getattr(files, which)
    whole = path.read_bytes()
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(whole[: len(whole) // 2] if how == "half" else b"")
    assert identity.refresh() is before
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    assert "the one before stays" in warning.getMessage()
    assert warning.reason.startswith("tls_")
    assert identity.refresh() is before
    assert len(caplog.records) == 1, "said once, not at each connection"
    path.write_bytes(whole)
    assert identity.refresh() == before


def test_expiry_is_said_once_until_there_is_a_new_one(make, caplog):
    folder = make()
    clock = [time.time()]
    identity = Identity(TlsFiles.of_role(folder, "kvmanager"), now=lambda: clock[0])
    identity.refresh()
    assert not caplog.records
    clock[0] += 31 * 86400
    identity.refresh()
    identity.refresh()
    (error,) = caplog.records
    assert error.levelno == logging.ERROR
    assert "expired" in error.getMessage()
    assert error.certificate == str(folder / "kvmanager.pem")


def test_one_that_can_not_be_used_ends_the_start(make):
    files = TlsFiles.of_role(make(days=1, made_days_ago=2), "gateway")
    with pytest.raises(ConfigError, match=r"tls_cert: .*gateway\.pem: certificate has expired"):
        Identity(files)
    absent = TlsFiles(Path("/absent.pem"), files.key, setting="public_tls")
    with pytest.raises(ConfigError, match=r"public_tls_cert: can't read /absent\.pem: No such file"):
        Identity(absent)


def test_a_key_that_everybody_can_read_is_warned_about(make, caplog):
    files = TlsFiles.of_role(make(), "gateway")
    files.key.chmod(0o644)
    Identity(files)
    (warning,) = caplog.records
    assert "private key" in warning.getMessage()
    assert (warning.file, warning.mode) == (str(files.key), "644")
