# ruff: noqa: RUF009 - setting() returns a dataclass field
"""Command-line options that say what an answer must look like."""

from dataclasses import asdict, dataclass
from typing import Any

from services.config import ConfigError, read_text, setting


@dataclass(frozen=True, kw_only=True)
class GuideOptions:
    """What the answer must look like."""

    json_schema: str | None = setting(
        None, "The answer is JSON that is valid by this schema: a file, or the JSON itself."
    )
    regex: str | None = setting(None, "The answer is a text that this regular expression matches as a whole.")
    grammar: str | None = setting(None, "The answer is a text of the grammar in this file (Lark's language).")
    choice: list[str] | None = setting(None, "The answer is this text, or one of several.")

    def __post_init__(self) -> None:
        given = [name for name, value in asdict(self).items() if value]
        if len(given) > 1:
            raise ConfigError(f"{', '.join(given)}: an answer can have one guide only")

    def values(self) -> dict[str, Any]:
        """Sampling parameters by name, None where absent.

        Raises:
            ConfigError: A file cannot be read.
        """
        schema, grammar = self.json_schema, self.grammar
        if schema is not None and not schema.lstrip().startswith("{"):
            schema = read_text("json_schema", schema)
        if grammar is not None:
            grammar = read_text("grammar", grammar)
        return {"json_schema": schema, "regex": self.regex, "grammar": grammar, "choice": self.choice or None}
