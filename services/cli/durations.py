"""Times as people write them: 90s, 1h30m, 2d."""

import re

from services.config import ConfigError

_UNITS = {"d": 86_400, "h": 3600, "m": 60, "s": 1}
_PART = re.compile(r"(\d+(?:\.\d+)?)([dhms])")
_WHOLE = re.compile(rf"(?:{_PART.pattern})+")


def parse_duration(name: str, text: str) -> float:
    """Seconds, from a number with a unit, several of them, or a bare number of seconds.

    Raises:
        ConfigError: Naming the option.
    """
    if re.fullmatch(r"\d+(?:\.\d+)?", text):
        return float(text)
    if not _WHOLE.fullmatch(text):
        raise ConfigError(f"{name}: not a time such as 90s, 1h30m or 2d: {text!r}")
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))


def format_duration(seconds: float) -> str:
    """The two largest units, such as ``1h30m``."""
    rest, parts = round(seconds), []
    for unit, size in _UNITS.items():
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2]) or "0s"
