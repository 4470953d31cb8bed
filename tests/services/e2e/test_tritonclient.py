"""Triton's own client gets the answers that Octavo's gets."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.clients_environment import clients_python
from tests.services.e2e.stack import MODEL_NAME, Stack

pytestmark = pytest.mark.slow

PROMPTS = ["A printer folds", "a sheet three times", "and has an octavo"]


def test_triton_s_client(stack: Stack) -> None:
    python = clients_python("tritonclient.grpc.aio")
    script = Path(__file__).with_name("triton_client.py")
    command = [python, script, stack.gateway.address, MODEL_NAME, *PROMPTS]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    expected = [stack.caller.generate(prompt, max_tokens=24, ignore_eos=True).text for prompt in PROMPTS]
    by_id = {str(number): text for number, text in enumerate(expected)}

    asked = told["ask"]
    assert (asked["live"], asked["ready"], asked["model_ready"], asked["other_ready"]) == (True, True, True, False)
    assert (asked["server"], asked["decoupled"]) == ("octavo", True)
    assert {"text_input", "stream", "sampling_parameters"} <= set(asked["inputs"])
    assert (asked["id"], asked["texts"], asked["num_tokens"]) == ("all", expected, [24] * len(PROMPTS))
    assert asked["refusal"].startswith("StatusCode.INVALID_ARGUMENT max_tokens: must be at least 1")

    assert told["stream"]["answers"] == by_id
    assert told["stream"]["errors"] == ["INVALID_ARGUMENT: text_input: must not be empty"]
    assert told["stream"]["responses"] > len(PROMPTS)

    assert told["asynchronous"] == {"live": True, "texts": expected, "answers": by_id}
