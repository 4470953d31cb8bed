"""Single messages of vLLM's engine protocol, there and back."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from pathlib import Path

import pytest
import tokenizers
from smg_grpc_proto.generated import common_pb2
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm

from gateway.errors import InvalidArgument
from gateway.loading import load_tokenizer
from gateway.request import GenerationRequest, Guide, GuideKind, SamplingParams, TokenPrompt
from octavo.v1 import common_pb2 as octavo_pb2
from octavo.v1 import kvmanager_pb2, memory_pb2, monitoring_pb2
from services.gateway.kv_events import Told
from services.gateway.vllm.event_stream import EventStream, block_hash
from services.gateway.vllm.loads import Loads
from services.gateway.vllm.requests import decode_request
from services.gateway.vllm.sampling import decode_sampling
from services.gateway.vllm.tokenizer_bundle import CHUNK_BYTES, chunks, tokenizer_bundle
from services.rpc.columns import pack_int32
from tests.gateway.test_gguf_tokenizer import sentencepiece_values, write
from tests.services.gateway.gateway_bench import save_bytes_tokenizer

# --- Requests -------------------------------------------------------------------------------------------------------


def test_nothing_stated_is_nothing_asked_for() -> None:
    assert decode_sampling(vllm.SamplingParams()) == SamplingParams(
        top_k=0,
        min_p=0,
        ignore_eos=False,
        min_tokens=0,
        skip_special_tokens=False,
        presence_penalty=0,
        frequency_penalty=0,
        stop=[],
        stop_token_ids=[],
    )


def test_every_parameter_is_read() -> None:
    sampling = decode_sampling(
        vllm.SamplingParams(
            temperature=0.5,
            top_p=0.25,
            top_k=2**32 - 1,
            min_p=0.125,
            frequency_penalty=1.5,
            presence_penalty=-1.5,
            repetition_penalty=2,
            max_tokens=9,
            min_tokens=3,
            stop=["end"],
            stop_token_ids=[7],
            skip_special_tokens=True,
            ignore_eos=True,
            n=3,
            logprobs=2,
            seed=-7,
            logit_bias={5: 2.5},
        )
    )
    assert sampling == SamplingParams(
        temperature=0.5,
        top_p=0.25,
        top_k=2**31 - 1,
        min_p=0.125,
        frequency_penalty=1.5,
        presence_penalty=-1.5,
        repetition_penalty=2,
        max_tokens=9,
        min_tokens=3,
        stop=["end"],
        stop_token_ids=[7],
        skip_special_tokens=True,
        ignore_eos=True,
        n=3,
        logprobs=2,
        seed=2**64 - 7,
        logit_bias={5: 2.5},
    )
    assert decode_sampling(vllm.SamplingParams(seed=-1)).seed is None


@pytest.mark.parametrize(
    ("constraint", "guide"),
    [
        ({"json_schema": '{"type": "integer"}'}, Guide(GuideKind.JSON_SCHEMA, '{"type": "integer"}')),
        ({"json_object": True}, Guide(GuideKind.JSON_SCHEMA, '{"type": "object"}')),
        ({"json_object": False}, None),
        ({"regex": "[a-z]+"}, Guide(GuideKind.REGEX, "[a-z]+")),
        ({"grammar": 'start: "a" | "b"'}, Guide(GuideKind.GRAMMAR, 'start: "a" | "b"')),
        ({"choice": vllm.ChoiceConstraint(choices=["yes", "no"])}, Guide(GuideKind.CHOICE, choices=("yes", "no"))),
    ],
)
def test_a_constraint_is_a_guide(constraint: dict[str, object], guide: Guide | None) -> None:
    assert decode_sampling(vllm.SamplingParams(**constraint)).guide == guide  # type: ignore[arg-type]


def decode(message: vllm.GenerateRequest, timeout: float | None = None) -> GenerationRequest:
    return decode_request(message, lambda text: [ord(letter) for letter in text], 64, timeout)


def test_a_prompt_is_token_ids_or_a_text() -> None:
    tokenized = vllm.TokenizedInput(input_ids=[1, 2, 3], original_text="ignored")
    request = decode(vllm.GenerateRequest(request_id="r", tokenized=tokenized), timeout=2.5)
    assert isinstance(request.prompt, TokenPrompt)
    assert (list(request.prompt.token_ids), request.request_id, request.timeout) == ([1, 2, 3], "r", 2.5)
    assert decode(vllm.GenerateRequest(text="ab")).prompt == TokenPrompt([97, 98])
    assert decode(vllm.GenerateRequest()).prompt is None


@pytest.mark.parametrize(
    ("truncate", "max_tokens", "kept"),
    [(2, None, 2), (100, None, 80), (-1, None, 63), (-1, 4, 60)],
)
def test_a_prompt_is_cut_at_its_beginning(truncate: int, max_tokens: int | None, kept: int) -> None:
    sampling = vllm.SamplingParams(truncate_prompt_tokens=truncate, max_tokens=max_tokens)
    tokenized = vllm.TokenizedInput(input_ids=range(80))
    prompt = decode(vllm.GenerateRequest(tokenized=tokenized, sampling_params=sampling)).prompt
    assert isinstance(prompt, TokenPrompt)
    assert list(prompt.token_ids) == list(range(80))[-kept:]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"kv_transfer_params_json": "{}"}, "kv_transfer_params_json"),
        ({"mm_inputs": vllm.MultimodalInputs()}, "mm_inputs"),
        ({"extra_mm_inputs": [vllm.MultimodalInputs()]}, "extra_mm_inputs"),
        ({"media_refs": vllm.MediaRefs()}, "media_refs"),
        ({"data_parallel_rank": 1}, "data_parallel_rank"),
        ({"text": ""}, "prompt.text"),
        ({"sampling_params": vllm.SamplingParams(prompt_logprobs=1)}, "sampling.prompt_logprobs"),
        ({"sampling_params": vllm.SamplingParams(structural_tag="{}")}, "sampling.structural_tag"),
        (
            {"text": "a", "sampling_params": vllm.SamplingParams(truncate_prompt_tokens=0)},
            "sampling.truncate_prompt_tokens",
        ),
    ],
)
def test_what_is_not_to_be_had_is_refused(fields: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        decode(vllm.GenerateRequest(**fields))  # type: ignore[arg-type]
    assert refused.value.field == field


# --- The tokenizer --------------------------------------------------------------------------------------------------

TEXTS = ["The sheet is folded.", "naïve café — 印刷所 🐙", " leading and trailing ", "<|end|>", "3.14159"]


def unpacked(bundle: bytes, folder: Path) -> dict[str, object]:
    with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
        archive.extractall(folder)
    config: dict[str, object] = json.loads((folder / "tokenizer_config.json").read_text())
    return config


def test_a_folder_s_tokenizer_is_the_same_elsewhere(tmp_path: Path) -> None:
    source = tmp_path / "model"
    source.mkdir()
    save_bytes_tokenizer(source)
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    (source / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    tokenizer = load_tokenizer(source)
    config = unpacked(tokenizer_bundle(tokenizer), tmp_path / "copy")
    assert config["chat_template"] == template
    copy = tokenizers.Tokenizer.from_file(str(tmp_path / "copy" / "tokenizer.json"))
    for text in TEXTS:
        assert copy.encode(text).ids == tokenizer.encode(text)


def test_a_gguf_file_s_tokenizer_is_one_that_others_can_load(tmp_path: Path) -> None:
    """Such a file has no tokenizer.json: what is sent was made from its metadata."""
    values = sentencepiece_values() | {"chat_template": "{{ messages[0].content }}"}
    tokenizer = load_tokenizer(write(tmp_path / "model.gguf", **values))
    config = unpacked(tokenizer_bundle(tokenizer), tmp_path / "copy")
    assert config["chat_template"] == "{{ messages[0].content }}"
    assert (config["bos_token"], config["eos_token"], config["unk_token"]) == ("<s>", "</s>", "<unk>")
    assert json.loads((tmp_path / "copy" / "generation_config.json").read_text()) == {"eos_token_id": [2]}
    copy = tokenizers.Tokenizer.from_file(str(tmp_path / "copy" / "tokenizer.json"))
    for text in ("the cab", " a  b", "häuser 🙂", "abc<|tool|>bab</s>"):
        token_ids = tokenizer.encode(text)
        assert copy.encode(text).ids == token_ids
        assert copy.decode(token_ids) == tokenizer.decode(token_ids)


def test_the_bundle_comes_in_chunks_of_which_the_last_has_the_fingerprint(tmp_path: Path) -> None:
    bundle = bytes(range(256)) * 300
    parts = list(chunks(bundle))
    assert b"".join(part.data for part in parts) == bundle
    assert [len(part.data) for part in parts] == [CHUNK_BYTES, len(bundle) - CHUNK_BYTES]
    assert [part.sha256 for part in parts] == ["", hashlib.sha256(bundle).hexdigest()]
    assert [bool(part.sha256) for part in chunks(bytes(CHUNK_BYTES))] == [True]


# --- KV events ------------------------------------------------------------------------------------------------------

DEVICE, HOST = common_pb2.KV_CACHE_TIER_DEVICE, common_pb2.KV_CACHE_TIER_HOST


def stored(
    name: str, parent: str = "", tier: octavo_pb2.Tier.ValueType = octavo_pb2.TIER_DEVICE
) -> kvmanager_pb2.KvEvent:
    block = kvmanager_pb2.BlockStored(
        identity=identity(name), parent_identity=identity(parent), token_ids=pack_int32([1, 2, 3, 4]), tier=tier
    )
    return kvmanager_pb2.KvEvent(stored=block)


def removed(name: str, tier: octavo_pb2.Tier.ValueType = octavo_pb2.TIER_DEVICE) -> kvmanager_pb2.KvEvent:
    return kvmanager_pb2.KvEvent(removed=kvmanager_pb2.BlockRemoved(identity=identity(name), tier=tier))


CLEARED = kvmanager_pb2.KvEvent(cleared=kvmanager_pb2.AllBlocksCleared())


def identity(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest() if name else b""


def told(*events: kvmanager_pb2.KvEvent, executor: str = "one", group: int = 0) -> Told:
    return Told(group, kvmanager_pb2.SubscribeKvEventsResponse(executor=executor, events=events))


class Reader:
    """A router that believes what it is told."""

    def __init__(self) -> None:
        self.stream = EventStream()
        self.held: dict[int, list[int]] = {DEVICE: [], HOST: []}
        self.cleared = 0
        self._number = 0
        self._event = 0
        self._read(self.stream.start())

    def tell(self, *told: Told) -> list[common_pb2.KvCacheEvent]:
        batches = [batch for each in told for batch in self.stream.add(each)]
        for batch in batches:
            self._read(batch)
        return [event for batch in batches for event in batch.events]

    def _read(self, batch: common_pb2.KvEventBatch) -> None:
        assert batch.sequence_number == self._number + 1
        self._number += 1
        assert batch.timestamp > 0
        for event in batch.events:
            assert event.event_id == self._event + 1
            self._event += 1
            match event.WhichOneof("data"):
                case "stored":
                    for block in event.stored.blocks:
                        assert (block.block_size, list(block.token_ids)) == (4, [1, 2, 3, 4])
                        self.held[event.stored.tier].append(block.block_hash)
                case "removed":
                    for block_hash in event.removed.block_hashes:
                        self.held[event.removed.tier].remove(block_hash)
                case "cleared":
                    self.held = {DEVICE: [], HOST: []}
                    self.cleared += 1

    @property
    def names(self) -> dict[int, list[str]]:
        names = {block_hash(identity(name)): name for name in "abcdef"}
        return {tier: sorted(names[block_hash] for block_hash in held) for tier, held in self.held.items()}


def test_blocks_of_a_chain_are_one_event() -> None:
    reader = Reader()
    assert reader.cleared == 1
    chain, other = reader.tell(told(stored("a"), stored("b", "a"), stored("c", "b"), stored("d")))
    assert [block.block_hash for block in chain.stored.blocks] == [block_hash(identity(name)) for name in "abc"]
    assert not chain.stored.HasField("parent_block_hash")
    assert not other.stored.HasField("parent_block_hash")
    (later,) = reader.tell(told(stored("e", "c")))
    assert later.stored.parent_block_hash == block_hash(identity("c"))


def test_what_is_removed_is_removed_from_its_tier() -> None:
    reader = Reader()
    reader.tell(told(stored("a"), stored("b", "a"), stored("b", "a", octavo_pb2.TIER_HOST), removed("b")))
    assert reader.names == {DEVICE: ["a"], HOST: ["b"]}
    assert reader.tell(told(removed("c"))) == [], "nobody was told that it was there"
    assert reader.tell(told()) == []


def test_only_what_the_lost_executor_had_is_gone() -> None:
    reader = Reader()
    reader.tell(
        told(stored("a"), stored("b", "a")),
        told(stored("a"), stored("c", "a"), stored("c", "a", octavo_pb2.TIER_HOST), executor="two"),
        told(stored("a"), executor="one", group=1),
    )
    reader.tell(told(CLEARED, stored("d"), executor="two"))
    assert reader.names == {DEVICE: ["a", "a", "b", "d"], HOST: []}
    reader.tell(Told(1, None))
    assert reader.names == {DEVICE: ["a", "b", "d"], HOST: []}
    assert reader.cleared == 1
    reader.tell(Told(0, None))
    assert reader.names == {DEVICE: [], HOST: []}
    assert reader.cleared == 2, "nothing is left"
    assert reader.tell(Told(0, None), Told(1, None)) == []


# --- How busy it is -------------------------------------------------------------------------------------------------


def test_loads_are_those_of_all_executors_together() -> None:
    now = 100.0
    loads = Loads(lambda: now)
    status = monitoring_pb2.Status(running_requests=3, waiting_requests=2, swapped_requests=1)
    for referenced in (10, 30):
        pool = memory_pb2.PoolState(num_blocks=100, referenced_blocks=referenced)
        status.executors.add(device=pool)
    status.counters.prompt_tokens, status.counters.cached_prompt_tokens = 400, 100
    status.counters.generated_tokens = 1000
    (load,) = loads.response(status, block_size=16, waiting_tokens=77).loads
    assert (load.num_running_reqs, load.num_waiting_reqs, load.num_total_reqs) == (3, 3, 6)
    assert (load.num_used_tokens, load.max_total_num_tokens) == (640, 3200)
    assert (load.token_usage, load.cache_hit_rate, load.gen_throughput) == (0.2, 0.25, 0)
    assert load.num_waiting_uncached_tokens == 77
    now += 2
    status.counters.generated_tokens = 1600
    assert loads.response(status, 16, 0).loads[0].gen_throughput == 300
    status.counters.generated_tokens = 5
    assert loads.response(status, 16, 0).loads[0].gen_throughput == 300, "another KV manager counts anew"
