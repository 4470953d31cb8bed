"""guidellm, unchanged and offline, measures a stack."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.clients_environment import clients_python
from tests.services.e2e.stack import MODEL_NAME, Stack

pytestmark = pytest.mark.slow

NUM_REQUESTS, OUTPUT_TOKENS = 12, 16
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


def test_guidellm(stack: Stack, model: Path, tmp_path: Path) -> None:
    python, report = clients_python("guidellm"), tmp_path / "report.json"
    command = [
        *(python, "-m", "guidellm", "run", "--disable-console"),
        *("--backend", f"kind=openai_http,target=http://{stack.gateway.http_address},model={MODEL_NAME}"),
        *("--tokenizer", f"kind=huggingface_auto,model={model}"),
        *("--data", f"kind=synthetic_text,prompt_tokens=32,output_tokens={OUTPUT_TOKENS}"),
        *("--profile", "kind=concurrent,streams=4"),
        *("--constraint", f"kind=max_requests,count={NUM_REQUESTS}"),
        *("--output", f"kind=json,path={report}"),
    ]
    environment = os.environ | OFFLINE | {"HF_HOME": str(tmp_path)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=110)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    totals: dict[str, Any] = benchmark["metrics"]["request_totals"]
    assert totals == {"successful": NUM_REQUESTS, "errored": 0, "incomplete": 0, "total": NUM_REQUESTS}
    for request in benchmark["requests"]["successful"]:
        assert request["output_tokens"] == OUTPUT_TOKENS, "it reads the usage"
        assert request["prompt_tokens"] >= 32
        assert request["time_to_first_token_ms"] is not None, "and sees tokens come"
