# ruff: noqa: RUF009 - setting() returns a dataclass field
"""What every process can be told."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from services.config.addresses import join_address
from services.config.settings import MAX_PORT, check_together, check_value, setting
from services.tls_files import TlsFiles

LogLevel = Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True, kw_only=True)
class ServiceConfig:
    """What every process has."""

    host: str = setting("127.0.0.1", "Address to listen on.")
    port: int = setting(0, "Port to listen on.", minimum=0, maximum=MAX_PORT)
    drain_seconds: float = setting(30.0, "Most time that running requests get to finish at shutdown.", minimum=0)
    log_level: LogLevel = setting("info", "Least severe messages to log.")
    watchdog_seconds: float = setting(
        30.0, "The process ends, to be started anew, when its event loop has been stuck for so long.", minimum=1.0
    )
    otlp_endpoint: str | None = setting(
        None, "Where to send traces (OTLP over gRPC); off when absent.", envvar="OTEL_EXPORTER_OTLP_ENDPOINT"
    )
    metrics_port: int | None = setting(
        None,
        "Port to listen on for Prometheus, which anybody who reaches it may read; off when absent.",
        minimum=0,
        maximum=MAX_PORT,
    )
    metrics_host: str = setting("127.0.0.1", "Address to listen on for Prometheus.")
    tls_cert: str | None = setting(
        None, "PEM file with this service's certificate, for TLS between the services; octavo certs makes some."
    )
    tls_key: str | None = setting(None, "PEM file with the certificate's private key.")
    tls_ca: str | None = setting(None, "PEM file with the authorities that the services' certificates are signed by.")

    def __post_init__(self) -> None:
        for each in fields(self):
            check_value(each.name, each.type, each.metadata, getattr(self, each.name))
        check_together(self, "tls_cert", "tls_key", "tls_ca")

    @property
    def address(self) -> str:
        """``host:port``, as gRPC wants it."""
        return join_address(self.host, self.port)

    @property
    def tls(self) -> TlsFiles | None:
        """Files of what this service shows other services; None: it speaks to them in plain text."""
        if self.tls_cert is None or self.tls_key is None or self.tls_ca is None:
            return None
        return TlsFiles(Path(self.tls_cert), Path(self.tls_key), Path(self.tls_ca))

    @property
    def server_tls(self) -> TlsFiles | None:
        """Files of what it shows its own clients; None: they are served in plain text."""
        return self.tls
