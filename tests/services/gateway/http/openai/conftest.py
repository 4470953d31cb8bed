"""A tokenizer that knows bytes and a chat template that shows who said what."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.services.gateway.gateway_bench import save_bytes_tokenizer

TEMPLATE = (
    "{% for message in messages %}{{ message.role[0] }}:{{ message.content }};{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}{% if shout %}!{% endif %}"
)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_bytes_tokenizer(tmp_path_factory.mktemp("model"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return folder
