"""A server's certificate as Python's ssl wants it, rotated without a restart."""

from __future__ import annotations

import logging
import ssl
from typing import Any

from services.rpc.tls import Identity
from services.tls_files import TlsFiles

log = logging.getLogger(__name__)


class ServerContext:
    """TLS for a public server: each new connection is shown the certificate that is in the files then.

    Raises:
        ConfigError: the certificate can't be used.
    """

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._identity = Identity(files)
        self._generation: object = self._identity.refresh()
        self._current = self._make()
        self.ssl = self._make()
        self.ssl.sni_callback = self._choose

    def _choose(self, connection: Any, name: str | None, context: ssl.SSLContext) -> None:
        """Called early in every handshake, whether or not the client names a server."""
        generation = self._identity.refresh()
        if generation is not self._generation:
            try:
                self._current = self._make()
            except (OSError, ssl.SSLError) as error:
                # The files are being replaced at this very moment: the next connection looks again.
                log.warning("new certificate is not used yet", extra={"error": str(error)})
            else:
                self._generation = generation
        connection.context = self._current

    def _make(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        context.load_cert_chain(self._files.cert, self._files.key)
        return context
