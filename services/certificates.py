"""A development certificate authority in a folder, and a certificate for each role, signed by it.

A certificate is for its role's name (`services.rpc.roles`), the host name that its service has in docker-compose.yml,
and for whatever the services are called by besides.

    ca.pem, ca-key.pem              the authority
    gateway.pem, gateway-key.pem    of the gateway; likewise kvmanager, executor, operator

Needs the package cryptography, which nothing else does.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from services.config import ConfigError
from services.rpc.roles import ROLES, Role, role_name
from services.tls_files import TlsFiles

AUTHORITY_DAYS = 3650

DEFAULT_NAMES = ("localhost", "127.0.0.1", "::1")
"""What this machine calls itself."""

# A certificate holds from a little before it was made: clocks differ.
_CLOCK_SKEW = timedelta(minutes=5)
_PRIVATE = 0o600
_PUBLIC = 0o644


def make_certificates(folder: Path, names: Sequence[str], days: int, now: datetime) -> None:
    """Makes an authority and a certificate for each role.

    Args:
        folder: Where to; made where it is not there.
        names: Host names and IP addresses that the services are called by besides; the default ones where empty.
        days: How long the roles' certificates hold, from `now` on.

    Raises:
        ConfigError: There is an authority already, the folder can't be written, or a name is none.
    """
    certificate, key_file = _authority_files(folder)
    if certificate.exists():
        raise ConfigError(f"{folder} holds an authority already; --renew makes new certificates from it")
    alternative_names = _alternative_names(names or DEFAULT_NAMES)
    key = ec.generate_private_key(ec.SECP256R1())
    authority = _self_signed(key, now)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(key_file, _pem_of_key(key), _PRIVATE)
        _write(certificate, authority.public_bytes(serialization.Encoding.PEM), _PUBLIC)
    except OSError as error:
        raise ConfigError(f"can't write {folder}: {error.strerror}") from error
    _issue(folder, authority, key, alternative_names, days, now)


def renew_certificates(folder: Path, names: Sequence[str], days: int, now: datetime) -> None:
    """Makes new keys and certificates for all roles, from the authority in the folder.

    Args:
        folder: As of `make_certificates`.
        names: Names in the new certificates; those of the present ones where empty.
        days: As of `make_certificates`.
        now: As of `make_certificates`.

    Raises:
        ConfigError: There is no authority or it has expired, the folder can't be written, or a name is none.
    """
    authority, key = _read_authority(folder)
    if authority.not_valid_after_utc <= now:
        raise ConfigError(f"{_authority_files(folder)[0]} has expired: make new certificates in another folder")
    _issue(folder, authority, key, _alternative_names(names) or _present_names(folder), days, now)


def _authority_files(folder: Path) -> tuple[Path, Path]:
    return folder / "ca.pem", folder / "ca-key.pem"


def _read_authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    certificate, key_file = _authority_files(folder)
    try:
        key = serialization.load_pem_private_key(key_file.read_bytes(), None)
        authority = x509.load_pem_x509_certificate(certificate.read_bytes())
    except OSError as error:
        raise ConfigError(f"there is no authority to renew from: {error.filename}: {error.strerror}") from error
    except (ValueError, TypeError) as error:
        raise ConfigError(f"the authority in {folder} can't be read: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{key_file} is not a key that this command has made")
    return authority, key


def _present_names(folder: Path) -> list[x509.GeneralName]:
    """Of the gateway's certificate, without the role's."""
    path = TlsFiles.of_role(folder, "gateway").cert
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound) as error:
        raise ConfigError(f"{path} does not tell which names it is for; give them with --name") from error
    return [name for name in found if name not in _names_of_role("gateway")]


def _names_of_role(role: Role) -> list[x509.GeneralName]:
    return [x509.DNSName(role_name(role)), x509.DNSName(role)]


def _alternative_names(names: Sequence[str]) -> list[x509.GeneralName]:
    return [_alternative_name(name) for name in names]


def _alternative_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    labels = name.removeprefix("*.").split(".")
    if not name.isascii() or not all(label.replace("-", "").isalnum() for label in labels):
        raise ConfigError(f"name: neither a host name nor an IP address: {name!r}")
    return x509.DNSName(name)


def _self_signed(key: ec.EllipticCurvePrivateKey, now: datetime) -> x509.Certificate:
    name = _subject("Octavo development authority")
    builder = _builder(name, name, key, AUTHORITY_DAYS, now)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=True), critical=True)
    return builder.sign(key, hashes.SHA256())


def _issue(
    folder: Path,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    names: Sequence[x509.GeneralName],
    days: int,
    now: datetime,
) -> None:
    """Writes a certificate and a key for each role, each file in one piece."""
    for role in ROLES:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _signed(role, key, authority, authority_key, names, days, now)
        files = TlsFiles.of_role(folder, role)
        try:
            _write(files.key, _pem_of_key(key), _PRIVATE)
            _write(files.cert, certificate.public_bytes(serialization.Encoding.PEM), _PUBLIC)
        except OSError as error:
            raise ConfigError(f"can't write {folder}: {error.strerror}") from error


def _signed(
    role: Role,
    key: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    names: Sequence[x509.GeneralName],
    days: int,
    now: datetime,
) -> x509.Certificate:
    """A certificate with which the role both serves and calls."""
    own_names = _names_of_role(role)
    alternative_names = x509.SubjectAlternativeName([*own_names, *(name for name in names if name not in own_names)])
    purposes = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    builder = _builder(_subject(f"Octavo {role}"), authority.subject, key, days, now)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(purposes, critical=False)
    builder = builder.add_extension(issuer, critical=False)
    builder = builder.add_extension(alternative_names, critical=False)
    return builder.sign(authority_key, hashes.SHA256())


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _key_usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem_of_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, data: bytes, mode: int) -> None:
    """Replaces the file in one piece; it never has another mode than this."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.unlink(missing_ok=True)
    file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(file, "wb") as stream:
        os.fchmod(file, mode)
        stream.write(data)
    beside.replace(path)
