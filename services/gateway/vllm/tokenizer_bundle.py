"""The tokenizer as files that others can load, in the Hugging Face layout."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Iterator
from typing import Any

from smg_grpc_proto.generated import common_pb2

from gateway.tokenizer import Tokenizer

CHUNK_BYTES = 64 * 1024

_CREATED = (1980, 1, 1, 0, 0, 0)
"""The same for all, so that all gateways of a model give the same bytes."""


def tokenizer_bundle(tokenizer: Tokenizer) -> bytes:
    """A zip archive with what the gateway itself uses, wherever that came from: a model folder, or a GGUF file.

    Takes a second for a large vocabulary.
    """
    files = {
        "tokenizer.json": tokenizer.backend.to_str(),
        "tokenizer_config.json": json.dumps(_config(tokenizer)),
        "generation_config.json": json.dumps({"eos_token_id": list(tokenizer.eos_token_ids)}),
    }
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as bundle:
        for name, content in files.items():
            bundle.writestr(zipfile.ZipInfo(name, _CREATED), content, zipfile.ZIP_DEFLATED)
    return archive.getvalue()


def _config(tokenizer: Tokenizer) -> dict[str, Any]:
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **tokenizer.special_tokens,
    }
    if tokenizer.chat_template is not None:
        config["chat_template"] = tokenizer.chat_template
    return config


def chunks(bundle: bytes) -> Iterator[common_pb2.GetTokenizerChunk]:
    """The bundle in pieces; the last one tells its SHA-256."""
    for start in range(0, len(bundle), CHUNK_BYTES):
        end = start + CHUNK_BYTES
        digest = hashlib.sha256(bundle).hexdigest() if end >= len(bundle) else ""
        yield common_pb2.GetTokenizerChunk(data=bundle[start:end], sha256=digest)
