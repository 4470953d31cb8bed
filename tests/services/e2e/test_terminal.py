"""`octavo bench`, `explain` and `top` on a real stack."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from services.cli.app import run
from tests.services.e2e.stack import MODEL_NAME, Stack

pytestmark = pytest.mark.slow

LOAD = [
    *("--rate", "40", "--requests", "24", "--prompt-tokens", "10-60", "--output-tokens", "5-30", "--ignore-eos"),
    *("--token-ids", "--vocab-size", "384", "--shared-prefix-tokens", "64", "--prefix-groups", "2"),
    *("--warmup", "2", "--rows"),
]


def bench(folder: Path, *arguments: str) -> dict[str, Any]:
    file = folder / "result.json"
    assert run(["bench", *arguments, "--json", str(file)]) == 0
    result: dict[str, Any] = json.loads(file.read_text())
    return result


def test_the_same_load_over_grpc_and_http(stack: Stack, tmp_path: Path) -> None:
    over_grpc = bench(tmp_path, "--address", stack.gateway.address, *LOAD)
    over_http = bench(tmp_path, "--url", f"http://{stack.gateway.http_address}/v1", *LOAD)
    for result in (over_grpc, over_http):
        summary = result["summary"]
        assert (summary["succeeded"], summary["errors"]) == (24, {})
        assert result["settings"]["model"] == MODEL_NAME
        assert all(row["e2e"] >= row["ttft"] > 0 for row in result["requests"])
    rows = [
        sorted((row["index"], row["due"], row["prompt_tokens"], row["output_tokens"]) for row in result["requests"])
        for result in (over_grpc, over_http)
    ]
    assert rows[0] == rows[1]
    # Both groups' prefixes are computed once; the second load finds whole prompts.
    assert over_grpc["summary"]["cached_tokens"] >= 22 * 48
    assert over_http["summary"]["cached_tokens"] > over_grpc["summary"]["cached_tokens"]


def test_what_became_of_a_request(stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    answer = stack.caller.generate("to be explained", max_tokens=20, ignore_eos=True)
    assert run(["explain", answer.request_id, "--address", stack.gateway.address]) == 0
    shown = capsys.readouterr().out
    for words in (
        answer.request_id,
        "20 output tokens",
        "arrived with",
        "admitted",
        "prefill of",
        "first token",
        "decode",
    ):
        assert words in shown
    assert run(["explain", "nothing", "--address", stack.gateway.address]) == 1
    assert "NOT_FOUND" in capsys.readouterr().err


def test_how_the_stack_is(stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    call = stack.caller.start("to be seen", request_id="seen-running", max_tokens=400, ignore_eos=True)
    call.wait_for_tokens(3)
    assert run(["top", "--once", "--json", "--address", stack.gateway.address]) == 0
    look = json.loads(capsys.readouterr().out)
    assert look["status"]["model"]["name"] == MODEL_NAME
    assert look["status"]["executors"][0]["device"]["num_blocks"] > 0
    assert "seen-running" in {each["request_id"] for each in look["requests"]}
    assert run(["top", "--once", "--address", stack.gateway.address]) == 0
    shown = capsys.readouterr().out
    assert f"{MODEL_NAME} on {stack.gateway.address}  ready" in shown
    assert stack.executor.address in shown
    call.cancel()
