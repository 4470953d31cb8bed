"""Whether a certificate is good, before anybody is shown it: its key fits, its authorities signed it, its time runs."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from services.tls_files import TlsFiles


class BadCertificate(Exception):
    """It can't be used; the message names the setting at fault."""


@dataclass(frozen=True)
class CertificateFacts:
    """Of a certificate that is good now.

    Attributes:
        expires: Unix time from which on nobody takes it.
        names: DNS names and addresses that it is for; at least one.
    """

    expires: float
    names: tuple[str, ...]


def check_certificate(files: TlsFiles) -> CertificateFacts:
    """Has the certificate show itself to its own authorities, in memory, as it will to others.

    Without authorities (`TlsFiles.ca`) it vouches for itself.

    Raises:
        BadCertificate: A file is not PEM, the key does not fit, the authorities did not sign it, its time is over.
        OSError: A file can't be read.
    """
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _load_pair(server, files)
    client.check_hostname = False
    if files.ca is None:
        client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        _load_authorities(client, files.cert, f"{files.setting}_cert")
    else:
        # Others ask for it when they are called, and when they call.
        _load_pair(client, files)
        server.verify_mode = ssl.CERT_REQUIRED
        for context in (server, client):
            _load_authorities(context, files.ca, f"{files.setting}_ca")
    return _facts(_shake_hands(server, client, files), files)


def _load_pair(context: ssl.SSLContext, files: TlsFiles) -> None:
    def no_password() -> str:
        raise BadCertificate(f"{files.setting}_key: {files.key} is encrypted; a key without a password is needed")

    try:
        context.load_cert_chain(files.cert, files.key, no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            message = f"{files.setting}_key: {files.key} is not the key of the certificate in {files.cert}"
            raise BadCertificate(message) from error
        message = f"{files.cert} and {files.key} are not a PEM certificate and its key"
        raise BadCertificate(f"{files.setting}_cert, {files.setting}_key: {message}") from error


def _load_authorities(context: ssl.SSLContext, path: object, setting: str) -> None:
    try:
        context.load_verify_locations(str(path))
    except ssl.SSLError as error:
        raise BadCertificate(f"{setting}: {path} holds no PEM certificate") from error


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, files: TlsFiles) -> ssl.SSLObject:
    """The client's end, which has seen and believed the certificate."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)]
    unfinished = list(ends)
    while unfinished:
        for end in list(unfinished):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                raise _mistrusted(error, files) from error
            unfinished.remove(end)
    return ends[0]


def _mistrusted(error: ssl.SSLCertVerificationError, files: TlsFiles) -> BadCertificate:
    vouching = "" if files.ca is None else f" (its authorities are those in {files.ca})"
    return BadCertificate(f"{files.setting}_cert: {files.cert}: {error.verify_message}{vouching}")


def _facts(end: ssl.SSLObject, files: TlsFiles) -> CertificateFacts:
    seen = end.getpeercert()
    assert seen is not None
    names = tuple(str(entry[1]) for entry in seen.get("subjectAltName", ()))
    if not names:
        raise BadCertificate(f"{files.setting}_cert: {files.cert} has no subject alternative name")
    return CertificateFacts(ssl.cert_time_to_seconds(str(seen["notAfter"])), names)
