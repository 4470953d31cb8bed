"""Which files a process reads its certificate from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TlsFiles:
    """PEM files of one identity.

    Attributes:
        cert: The certificate, and those between it and its authority.
        key: Its private key.
        ca: The authorities that others' certificates are to be signed by, and this one too. None: a certificate for the
            public, whose clients know its authority.
        setting: What the settings that name them begin with: ``tls`` or ``public_tls``.
    """

    cert: Path
    key: Path
    ca: Path | None = None
    setting: str = "tls"

    @classmethod
    def of_role(cls, folder: Path, role: str) -> TlsFiles:
        """Where ``octavo certs`` puts a role's files."""
        return cls(folder / f"{role}.pem", folder / f"{role}-key.pem", folder / "ca.pem")

    @property
    def all(self) -> tuple[Path, ...]:
        return (self.cert, self.key) if self.ca is None else (self.cert, self.key, self.ca)
