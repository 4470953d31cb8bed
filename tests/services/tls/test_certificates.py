"""`octavo certs`: what it writes, and that it is good for what it is for."""

from __future__ import annotations

import stat
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from services.certificates import make_certificates, renew_certificates
from services.config import ConfigError
from services.rpc.certificate_check import BadCertificate, check_certificate
from services.rpc.roles import ROLES, role_name, roles_in
from services.tls_files import TlsFiles

DAY = 86400


def now() -> datetime:
    return datetime.now(timezone.utc)


@pytest.mark.parametrize("role", ROLES)
def test_each_role_has_a_certificate_that_the_authority_vouches_for(certificates: Path, role):
    facts = check_certificate(TlsFiles.of_role(certificates, role))
    assert roles_in(facts.names) == [role]
    assert {"localhost", "127.0.0.1", role} <= set(facts.names)
    assert facts.expires == pytest.approx(time.time() + 30 * DAY, abs=DAY)


def test_nobody_else_can_read_a_key(certificates: Path):
    keys = list(certificates.glob("*-key.pem"))
    assert len(keys) == len(ROLES) + 1
    assert {stat.S_IMODE(key.stat().st_mode) for key in keys} == {0o600}


def test_names_can_be_chosen(tmp_path: Path):
    make_certificates(tmp_path, ["chat.example", "10.1.2.3", "*.inner.example"], 1, now())
    names = check_certificate(TlsFiles.of_role(tmp_path, "gateway")).names
    assert set(names) == {role_name("gateway"), "gateway", "chat.example", "10.1.2.3", "*.inner.example"}


@pytest.mark.parametrize("name", ["", "two words", "-", "a..b", "http://x", "x:1", "größe"])
def test_what_is_no_name_is_refused_and_nothing_is_written(tmp_path: Path, name: str):
    with pytest.raises(ConfigError, match="name: neither a host name nor an IP address"):
        make_certificates(tmp_path / "new", [name], 1, now())
    assert not (tmp_path / "new").exists()


def test_renewing_keeps_authority_and_names(tmp_path: Path):
    make_certificates(tmp_path, ["chat.example"], 1, now())
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    names = check_certificate(TlsFiles.of_role(tmp_path, "executor")).names
    renew_certificates(tmp_path, (), 20, now())
    changed = {path.name for path in tmp_path.iterdir() if path.read_bytes() != before[path.name]}
    assert changed == {f"{role}{end}" for role in ROLES for end in (".pem", "-key.pem")}
    facts = check_certificate(TlsFiles.of_role(tmp_path, "executor"))
    assert facts.names == names
    assert facts.expires == pytest.approx(time.time() + 20 * DAY, abs=DAY)


def test_an_authority_is_not_overwritten(certificates: Path):
    with pytest.raises(ConfigError, match="holds an authority already; --renew"):
        make_certificates(certificates, (), 1, now())


def test_renewing_needs_an_authority_that_holds(tmp_path: Path):
    with pytest.raises(ConfigError, match="there is no authority to renew from"):
        renew_certificates(tmp_path, (), 1, now())
    make_certificates(tmp_path, (), 1, now() - timedelta(days=11 * 365))
    with pytest.raises(ConfigError, match=r"ca\.pem has expired"):
        renew_certificates(tmp_path, (), 1, now())


def test_what_is_wrong_with_a_certificate_is_said(make):
    ours, others, old = make("ours"), make("others"), make("old", days=1, made_days_ago=2)
    good = TlsFiles.of_role(ours, "gateway")

    def problem(cert: Path = good.cert, key: Path = good.key, ca: Path | None = good.ca) -> str:
        with pytest.raises(BadCertificate) as caught:
            check_certificate(TlsFiles(cert, key, ca))
        return str(caught.value)

    assert problem(key=ours / "executor-key.pem").startswith("tls_key: ")
    assert "is not the key of the certificate in" in problem(key=ours / "executor-key.pem")
    assert "not a PEM certificate and its key" in problem(cert=good.key)
    assert "tls_ca: " in problem(ca=good.key)
    assert f"its authorities are those in {others / 'ca.pem'}" in problem(ca=others / "ca.pem")
    expired = TlsFiles.of_role(old, "gateway")
    assert "tls_cert: " in problem(expired.cert, expired.key, expired.ca)
    assert "certificate has expired" in problem(expired.cert, expired.key, expired.ca)
    assert "certificate has expired" in problem(expired.cert, expired.key, None)
