"""What the script prints: JSON lines for figures, standard error for what a person wants to know meanwhile."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any


def emit(line: Mapping[str, Any]) -> None:
    """Prints figures."""
    print(json.dumps(line), flush=True)


def tell(text: str) -> None:
    """Says what is under way."""
    print(text, file=sys.stderr, flush=True)
