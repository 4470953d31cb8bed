"""A process's certificate as gRPC wants it, read again when its files change: it is rotated without a restart."""

from __future__ import annotations

import logging
import os
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from services.config import ConfigError
from services.rpc.certificate_check import BadCertificate, CertificateFacts, check_certificate
from services.tls_files import TlsFiles

log = logging.getLogger(__name__)

_Versions = tuple[tuple[int, int, int], ...]
"""Of each file: inode, size and time of change. Another version, another tuple."""


@dataclass(frozen=True)
class _Loaded:
    """One generation: certificate, key and authorities that fit each other."""

    certificate: bytes
    key: bytes
    authorities: bytes | None
    facts: CertificateFacts


class Identity:
    """A certificate, its key and the authorities, as they are in their files at the moment.

    Files are replaced one after the other, and may be half-written when they are read: what does not fit together is
    not used, and what was there before stays. Threads may share one.

    Args:
        files: where they are.
        now: gives Unix time.

    Raises:
        ConfigError: they can't be used; the message names the setting.
    """

    def __init__(self, files: TlsFiles, now: Callable[[], float] = time.time) -> None:
        self._files = files
        self._now = now
        self._lock = threading.Lock()
        self._tried = self._look()
        try:
            self._loaded = self._load()
        except BadCertificate as error:
            raise ConfigError(str(error)) from error
        self._expiry_told = False
        self._warn_of_open_key()

    def server_credentials(self, *, client_certificates: bool) -> grpc.ServerCredentials:
        """For a server, which takes what is in the files at each new connection.

        Args:
            client_certificates: only those are let in who show a certificate that the authorities signed.
        """
        told: list[_Loaded] = []

        def current() -> grpc.ServerCertificateConfiguration | None:
            loaded = self.refresh()
            if told == [loaded]:
                return None
            told[:] = [loaded]
            return _configuration(loaded)

        initial = _configuration(self._loaded)
        return grpc.dynamic_ssl_server_credentials(initial, current, client_certificates)  # type: ignore[arg-type] # None

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For one channel, from the files as they are now: a channel keeps what it was made with."""
        loaded = self.refresh()
        return grpc.ssl_channel_credentials(loaded.authorities, loaded.key, loaded.certificate)

    def credentials_for_own_server(self) -> tuple[grpc.ChannelCredentials, str]:
        """For a channel to a server that shows this very certificate, and the name to expect there.

        So a process is asked how it is by whoever knows its files, whatever address it has.
        """
        loaded = self.refresh()
        if loaded.authorities is None:
            # Nobody here knows who vouches for a public certificate: it has to be this one.
            credentials = grpc.ssl_channel_credentials(loaded.certificate)
        else:
            credentials = grpc.ssl_channel_credentials(loaded.authorities, loaded.key, loaded.certificate)
        return credentials, loaded.facts.names[0].replace("*", "any")

    def refresh(self) -> _Loaded:
        """Reads the files again if they have changed, and returns the last generation that was good."""
        with self._lock:
            versions = self._look()
            if versions != self._tried:
                self._tried = versions
                self._reload()
            if self._loaded.facts.expires <= self._now() and not self._expiry_told:
                self._expiry_told = True
                log.error("certificate has expired; nobody takes it", extra={"certificate": str(self._files.cert)})
            return self._loaded

    def _reload(self) -> None:
        try:
            self._loaded = self._load()
        except BadCertificate as error:
            log.warning("new certificate is not used; the one before stays", extra={"reason": str(error)})
        else:
            self._expiry_told = False
            extra = {"certificate": str(self._files.cert), "days": self._days_left()}
            log.info("certificate is read again", extra=extra)
            self._warn_of_open_key()

    def _load(self) -> _Loaded:
        """What is in the files now, if it is the same before and after it was looked at.

        Raises:
            BadCertificate: it can't be used.
        """
        contents = self._read()
        try:
            facts = check_certificate(self._files)
        except OSError as error:
            raise BadCertificate(f"{self._files.setting}_cert: {error.strerror}") from error
        if self._read() != contents:
            raise BadCertificate(f"{self._files.setting}_cert: the files are being replaced")
        certificate, key, *authorities = contents
        return _Loaded(certificate, key, authorities[0] if authorities else None, facts)

    def _read(self) -> list[bytes]:
        contents = []
        for path, setting in zip(self._files.all, ("cert", "key", "ca"), strict=False):
            try:
                contents.append(path.read_bytes())
            except OSError as error:
                message = f"{self._files.setting}_{setting}: can't read {path}: {error.strerror}"
                raise BadCertificate(message) from error
        return contents

    def _look(self) -> _Versions:
        versions = []
        for path in self._files.all:
            try:
                found = os.stat(path)
            except OSError:
                versions.append((0, 0, 0))
            else:
                versions.append((found.st_ino, found.st_size, found.st_mtime_ns))
        return tuple(versions)

    def _days_left(self) -> float:
        return round((self._loaded.facts.expires - self._now()) / 86400, 1)

    def _warn_of_open_key(self) -> None:
        try:
            mode = os.stat(self._files.key).st_mode
        except OSError:
            return
        if mode & stat.S_IROTH:
            extra = {"file": str(self._files.key), "mode": f"{stat.S_IMODE(mode):o}"}
            log.warning("everybody on this machine can read the private key", extra=extra)


def _configuration(loaded: _Loaded) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(loaded.key, loaded.certificate)], loaded.authorities)
