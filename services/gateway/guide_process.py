"""The process that compiles guides for a gateway: `python -m services.gateway.guide_process`.

Compiling a few hundred bytes can take hours, or all memory, and nothing but the end of the process ends it. So it has a
process, and that has limits which the system enforces.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from contextlib import suppress

from gateway.errors import TokenizerError
from gateway.guide_compiler import GuideCompiler

CPU_SECONDS = 0.5
"""For one guide. An executor that compiles it takes as long, and all its answers wait for that."""

MEMORY_BYTES = 1 << 30


def main() -> None:
    """Reads lines of JSON: the tokenizer and its end-of-sequence tokens, then grammars. Answers each with a line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with its input
    with suppress(ValueError, OSError):  # not everywhere
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    lines = sys.stdin.buffer
    try:
        compiler = GuideCompiler(*json.loads(lines.readline()))
    except TokenizerError as error:
        _answer(str(error))
        return
    _answer(None)
    for line in lines:
        # The signal that it raises ends the process.
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        refusal = compiler.refusal(json.loads(line))
        signal.setitimer(signal.ITIMER_PROF, 0)
        _answer(refusal)


def _answer(refusal: str | None) -> None:
    sys.stdout.write(json.dumps(refusal) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
