"""Where shared state lives."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from services.config.settings import ConfigError, setting

EMBEDDED_STATE = "embedded"

_STATE_URL_OPTIONS = ("db", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


@dataclass(frozen=True, kw_only=True)
class StateConfig:
    """Where shared state lives; for each process that has any."""

    state: str = setting(
        EMBEDDED_STATE,
        "Where shared state lives: embedded (in this process), or a redis://, rediss:// or unix:// URL without a"
        " password.",
    )
    state_password_file: str | None = setting(
        None, "File with the password of the state store; $OCTAVO_STATE_PASSWORD when absent."
    )

    def check_state(self) -> None:
        """Refuses what is neither `embedded` nor a URL that can be used, without repeating what may be a secret.

        Raises:
            ConfigError: Naming the setting.
        """
        if self.state != EMBEDDED_STATE:
            _check_state_url(self.state)
            self.state_password()

    def state_password(self) -> str | None:
        """The password, read anew, so that it is no part of this object and of what shows it.

        Raises:
            ConfigError: The file can't be read.
        """
        if self.state_password_file is None:
            return os.environ.get("OCTAVO_STATE_PASSWORD") or None
        try:
            return Path(self.state_password_file).read_text("utf-8").rstrip("\r\n") or None
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not text"
            raise ConfigError(f"state_password_file: {self.state_password_file}: {reason}") from None


def _check_state_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises where it is no number
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        raise ConfigError("state: not a URL such as redis://host:6379/0") from None
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise ConfigError("state: neither 'embedded' nor a redis://, rediss:// or unix:// URL")
    if parts.scheme != "unix" and (not parts.hostname or not re.fullmatch(r"/?\d*", parts.path)):
        raise ConfigError("state: not a URL such as redis://host:6379/0")
    if parts.password is not None or "password" in options:
        raise ConfigError(
            "state: the URL must not hold a password, which other users of the machine could read; give it in the file"
            " of state_password_file, or in OCTAVO_STATE_PASSWORD"
        )
    if unknown := sorted(options.keys() - _STATE_URL_OPTIONS):
        raise ConfigError(f"state: the URL may have the options {', '.join(_STATE_URL_OPTIONS)}, not {unknown[0]!r}")
