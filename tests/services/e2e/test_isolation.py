"""Two tenants with keys of their own on one stack: what one of them can learn of the other, which is nothing.

How long a call takes depends on what it computes. So that times tell nothing is shown by what is computed: for a prompt
that the other tenant has cached it is the same, step for step, as for one that nobody has seen.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from gateway.api_keys import ApiKey, new_key
from gateway.scope import ScopeLevel
from gateway.tenants import Tenant
from octavo.client import Client, OctavoError, Segment
from octavo.v1 import common_pb2, inference_pb2, inference_pb2_grpc, kvmanager_pb2, kvmanager_pb2_grpc, monitoring_pb2
from services.state.tenants_file import TenantsFile
from tests.services.e2e.calls import Answer, Call
from tests.services.e2e.processes import CHANNEL_OPTIONS, SERVING, Processes, Server, eventually
from tests.services.e2e.stack import Stack
from tests.services.e2e.tiny_model import VOCAB_SIZE

BLOCK_SIZE = 16
RESERVED_BLOCKS = 40
NEVER_SEEN = common_pb2.PREFIX_MATCH_END_NEVER_SEEN
DOCS = "shared:docs"


@dataclass(frozen=True)
class Keys:
    """One for each caller: two tenants, the first of which has two apps and a key that may cache for its app only."""

    acme: str
    acme_chat: str
    acme_narrow: str
    beta: str


@dataclass(frozen=True)
class Effort:
    """What the KV manager has had computed."""

    steps: int
    computed_tokens: int
    cached_tokens: int


@pytest.fixture(scope="module")
def tenants_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tenants") / "tenants.json"


@pytest.fixture(scope="module")
def keys(tenants_file: Path) -> Keys:
    made = {name: new_key(secrets.randbits) for name in ("acme", "acme_chat", "acme_narrow", "beta")}

    def known(name: str, app: str, widest: ScopeLevel = ScopeLevel.SHARED) -> ApiKey:
        _, key_id, secret_hash = made[name]
        return ApiKey(key_id, secret_hash, app, widest)

    acme = (known("acme", "search"), known("acme_chat", "chat"), known("acme_narrow", "search", ScopeLevel.APP))
    docs = frozenset({"docs"})
    for tenant in (Tenant("acme", acme, namespaces=docs), Tenant("beta", (known("beta", "search"),), namespaces=docs)):
        asyncio.run(TenantsFile(tenants_file).change(tenant.name, lambda _, tenant=tenant: tenant))
    return Keys(**{name: text for name, (text, _, _) in made.items()})


@pytest.fixture(scope="module")
def guarded_stack(
    processes: Processes, model: Path, spare_executor: Server, tenants_file: Path, keys: Keys
) -> Iterator[Stack]:
    """Use `stack` instead."""
    reserved = f"acme:reserved={RESERVED_BLOCKS}"
    stack = Stack(
        processes, model, spare_executor, gateway={"tenants_file": tenants_file}, kvmanager={"tenants": reserved}
    )
    stack.start()
    yield stack
    stack.close()


@pytest.fixture
def stack(guarded_stack: Stack) -> Iterator[Stack]:
    """The two tenants' stack, without a request left behind."""
    yield guarded_stack
    guarded_stack.wait_until_idle()


@pytest.fixture(scope="module")
def some_tokens() -> Tokens:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    return Tokens(random.Random(seed))


class Tokens:
    """Prompts that nobody has asked yet: no two begin with the same token."""

    def __init__(self, randomness: random.Random) -> None:
        self._randomness = randomness
        self._known = range(2, VOCAB_SIZE)
        self._first = iter(randomness.sample(self._known, len(self._known)))

    def fresh(self, blocks: int = 4) -> list[int]:
        """So many full blocks, and half of one."""
        rest = blocks * BLOCK_SIZE + BLOCK_SIZE // 2 - 1
        return [next(self._first), *self._randomness.choices(self._known, k=rest)]


def start(stack: Stack, key: str, prompt: Any, **arguments: Any) -> Call:
    arguments = {"max_tokens": 4, "ignore_eos": True} | arguments
    return stack.caller.start(prompt, metadata={"authorization": f"Bearer {key}"}, **arguments)


def ask(stack: Stack, key: str, prompt: Any, **arguments: Any) -> Answer:
    return start(stack, key, prompt, **arguments).result()


def cached(answer: Answer) -> tuple[int, int]:
    """How much of the prompt was cached, and why no more."""
    assert answer.usage is not None
    return answer.usage.cached_tokens, answer.usage.prefix_match_end


def effort(stack: Stack) -> Effort:
    stack.wait_until_idle()
    counters = stack.memory_map().counters
    computed = counters.prompt_tokens - counters.cached_prompt_tokens
    return Effort(counters.steps, computed, counters.cached_prompt_tokens)


def effort_of(stack: Stack, key: str, prompt: Any, **arguments: Any) -> Effort:
    """What one request takes alone."""
    before = effort(stack)
    ask(stack, key, prompt, **arguments)
    after = effort(stack)
    return Effort(
        after.steps - before.steps,
        after.computed_tokens - before.computed_tokens,
        after.cached_tokens - before.cached_tokens,
    )


def refusal(stack: Stack, method: str, request: Message, key: str | None) -> tuple[grpc.StatusCode, str, bytes]:
    """All that a caller learns from a call that is refused: status, message, details."""
    metadata = [] if key is None else [("authorization", f"Bearer {key}")]
    with grpc.insecure_channel(stack.gateway.address, options=CHANNEL_OPTIONS) as channel:
        call: Any = channel.unary_stream(f"/octavo.v1.GenerationService/{method}")(
            request.SerializeToString(), metadata=metadata, timeout=60
        )
        with pytest.raises(grpc.RpcError):
            list(call)
        details = dict(call.trailing_metadata()).get("grpc-status-details-bin", b"")
        return call.code(), call.details(), details


# --- The door -------------------------------------------------------------------------------------------------------


def test_every_method_needs_a_key_and_says_no_more_than_that(stack: Stack, keys: Keys, some_tokens: Tokens) -> None:
    """Health and reflection, which say nothing of anybody, stay open."""
    prompt = inference_pb2.Prompt(tokens=inference_pb2.TokenPrompt(token_ids=some_tokens.fresh()))
    requests: dict[str, Message] = {
        "Generate": inference_pb2.GenerateRequest(prompt=prompt),
        "Resume": inference_pb2.ResumeRequest(request_id="some"),
        "Tokenize": inference_pb2.TokenizeRequest(prompt=prompt),
        "ListModels": inference_pb2.ListModelsRequest(),
        "PinPrefix": inference_pb2.PinPrefixRequest(prompt=prompt),
        "UnpinPrefix": inference_pb2.UnpinPrefixRequest(pin_id="some"),
        "ListPins": inference_pb2.ListPinsRequest(),
    }
    service = inference_pb2.DESCRIPTOR.services_by_name["GenerationService"]
    assert requests.keys() == {method.name for method in service.methods}
    stranger, _, _ = new_key(secrets.randbits)
    wrong = [None, "", "octavo", stranger, keys.acme[:-1], f"{keys.beta[:24]}{keys.acme[24:]}"]
    refusals = {refusal(stack, method, request, key) for method, request in requests.items() for key in wrong}
    ((status, message, _),) = refusals
    assert status is grpc.StatusCode.UNAUTHENTICATED
    assert "valid API key" in message
    assert ask(stack, keys.acme, some_tokens.fresh()).complete
    assert stack.gateway.health() == SERVING


def test_a_key_that_is_revoked_is_refused_within_seconds(stack: Stack, tenants_file: Path) -> None:
    text, key_id, secret_hash = new_key(secrets.randbits)
    file = TenantsFile(tenants_file)

    def answer() -> grpc.StatusCode:
        with Client(stack.gateway.address, api_key=text, retry=None) as client:
            try:
                client.models()
            except OctavoError as error:
                return error.status
        return grpc.StatusCode.OK

    assert answer() is grpc.StatusCode.UNAUTHENTICATED
    gamma = asyncio.run(file.change("gamma", lambda _: Tenant("gamma", (ApiKey(key_id, secret_hash),))))
    eventually(lambda: answer() is grpc.StatusCode.OK, what="the new key is known")
    asyncio.run(file.change("gamma", lambda _: gamma.revoke(1)))
    eventually(lambda: answer() is grpc.StatusCode.UNAUTHENTICATED, what="the key is revoked")


# --- What is cached -------------------------------------------------------------------------------------------------


def test_what_a_tenant_has_cached_costs_another_as_much_as_what_nobody_has(
    stack: Stack, keys: Keys, some_tokens: Tokens
) -> None:
    for blocks in (1, 3, 9):
        theirs, unseen = some_tokens.fresh(blocks), some_tokens.fresh(blocks)
        for _ in range(2):
            ask(stack, keys.acme, theirs)
        assert effort_of(stack, keys.beta, theirs) == effort_of(stack, keys.beta, unseen)
    # For their owner, of whatever app, it does make a difference: there was something to be learnt.
    mine = effort_of(stack, keys.acme_chat, theirs)
    assert mine.cached_tokens >= 9 * BLOCK_SIZE
    assert mine.computed_tokens <= BLOCK_SIZE


def test_usage_tells_nothing_of_another_tenant_s_prompts(stack: Stack, keys: Keys, some_tokens: Tokens) -> None:
    """Nor does where the match ended, or why: "other scope" is of the same tenant only."""
    for theirs in ("request", "app", "tenant"):
        for mine in ("request", "app", "tenant", DOCS):
            prompt = some_tokens.fresh(2)
            ask(stack, keys.acme, [Segment(prompt, theirs)])
            assert cached(ask(stack, keys.beta, [Segment(prompt, mine)])) == (0, NEVER_SEEN), (theirs, mine)


def test_a_shared_namespace_shares_what_is_said_to_be_shared_and_no_more(
    stack: Stack, keys: Keys, some_tokens: Tokens
) -> None:
    public, private = some_tokens.fresh(2)[: 2 * BLOCK_SIZE], some_tokens.fresh(3)
    ask(stack, keys.acme, [Segment(public, DOCS), Segment(private)])
    tokens, why = cached(ask(stack, keys.beta, [Segment(public, DOCS), Segment(private)]))
    assert (tokens, why) == (len(public), NEVER_SEEN)
    assert cached(ask(stack, keys.beta, [Segment(public, DOCS), Segment(some_tokens.fresh(3))])) == (tokens, why)


def test_a_key_reaches_no_further_than_it_may(stack: Stack, keys: Keys, some_tokens: Tokens) -> None:
    prompt = some_tokens.fresh()
    ask(stack, keys.acme_narrow, prompt)
    assert cached(ask(stack, keys.acme, prompt))[0] == 0, "what the key says nothing about is its app's"
    assert cached(ask(stack, keys.acme, [Segment(prompt, "app")]))[0] > 0
    for scope, field in (("tenant", "cache_scope"), (DOCS, "cache_scope")):
        error = start(stack, keys.acme_narrow, [Segment(prompt, scope)]).error()
        assert error.status is grpc.StatusCode.PERMISSION_DENIED
        assert (error.reason, error.field) == ("SCOPE_TOO_WIDE", f"prompt.segmented.segments[0].{field}")
    unknown = start(stack, keys.acme_narrow, [Segment(prompt, "shared:unknown")]).error()
    assert (unknown.status, unknown.reason) == (grpc.StatusCode.PERMISSION_DENIED, "SCOPE_TOO_WIDE")


def test_no_pressure_of_another_evicts_what_is_within_the_reservation(
    stack: Stack, keys: Keys, some_tokens: Tokens
) -> None:
    """Memory without a reservation is shared: there, whoever fills it notices that others have filled it too."""
    mine = some_tokens.fresh(20)
    ask(stack, keys.acme, mine)
    evicted = stack.memory_map().counters.evicted_blocks
    while stack.memory_map().counters.evicted_blocks < evicted + stack.memory_map().num_blocks:
        for call in [start(stack, keys.beta, some_tokens.fresh(30), max_tokens=1) for _ in range(20)]:
            call.result()
    assert effort_of(stack, keys.acme, mine).cached_tokens >= 20 * BLOCK_SIZE


# --- Names ----------------------------------------------------------------------------------------------------------


def test_request_ids_of_others_are_free(stack: Stack, keys: Keys, some_tokens: Tokens) -> None:
    running = start(stack, keys.acme, some_tokens.fresh(), request_id="one", max_tokens=400)
    running.wait_for_tokens(1)
    assert start(stack, keys.acme, some_tokens.fresh(), request_id="one").error().reason == "REQUEST_EXISTS"
    assert ask(stack, keys.beta, some_tokens.fresh(), request_id="one").complete
    assert running.result().complete


@pytest.mark.parametrize("max_tokens", [4, 400], ids=["over", "running"])
def test_a_guessed_request_id_resumes_nothing_and_disturbs_nobody(
    stack: Stack, keys: Keys, some_tokens: Tokens, max_tokens: int
) -> None:
    request_id = f"guessed-{max_tokens}"
    call = start(stack, keys.acme, some_tokens.fresh(), request_id=request_id, max_tokens=max_tokens)
    call.wait_for_tokens(4)
    guessed, unknown = (
        refusal(stack, "Resume", inference_pb2.ResumeRequest(request_id=name), keys.beta)
        for name in (request_id, "unknown")
    )
    assert guessed == unknown
    assert guessed[0] is grpc.StatusCode.NOT_FOUND
    answer = call.result()
    with grpc.insecure_channel(stack.gateway.address, options=CHANNEL_OPTIONS) as channel:
        resumed = inference_pb2_grpc.GenerationServiceStub(channel).Resume(
            inference_pb2.ResumeRequest(request_id=request_id),
            metadata=[("authorization", f"Bearer {keys.acme_chat}")],
            timeout=60,
        )
        assert [token for each in resumed for token in each.response.token_ids] == answer.token_ids


def test_pins_of_others_are_not_there(stack: Stack, keys: Keys, some_tokens: Tokens) -> None:
    prompt = some_tokens.fresh()
    with (
        Client(stack.gateway.address, api_key=keys.acme) as acme,
        Client(stack.gateway.address, api_key=keys.beta) as beta,
    ):
        pin = acme.pin(prompt, 60)
        try:
            assert beta.pins() == []
            guessed, unknown = (
                refusal(stack, "UnpinPrefix", inference_pb2.UnpinPrefixRequest(pin_id=pin_id), keys.beta)
                for pin_id in (pin.pin_id, "0" * len(pin.pin_id))
            )
            assert guessed == unknown
            assert guessed[0] is grpc.StatusCode.NOT_FOUND
            assert cached(ask(stack, keys.beta, prompt)) == (0, NEVER_SEEN)
            assert [each.pin_id for each in acme.pins()] == [pin.pin_id]
        finally:
            acme.unpin(pin.pin_id)


# --- What is not on the public port ---------------------------------------------------------------------------------


def test_the_inner_service_is_not_on_the_public_port(stack: Stack, keys: Keys) -> None:
    """What the KV manager shows is for gateways, which tell each caller what is its own."""
    with grpc.insecure_channel(stack.gateway.address, options=CHANNEL_OPTIONS) as channel:
        listed = set(ProtoReflectionDescriptorDatabase(channel).get_services())
        assert listed - {"vllm.grpc.engine.VllmEngine"} == {  # which is there where its messages are installed
            inference_pb2.DESCRIPTOR.services_by_name["GenerationService"].full_name,
            monitoring_pb2.DESCRIPTOR.services_by_name["MonitoringService"].full_name,
            "inference.GRPCInferenceService",
            "grpc.health.v1.Health",
            "grpc.reflection.v1alpha.ServerReflection",
        }
        inner = kvmanager_pb2_grpc.KVManagerServiceStub(channel)
        metadata = [("authorization", f"Bearer {keys.acme}")]
        for method, request in (
            (inner.GetMemoryMap, kvmanager_pb2.GetMemoryMapRequest(include_blocks=True)),
            (inner.WatchMemory, kvmanager_pb2.WatchMemoryRequest()),
            (inner.SubscribeKvEvents, kvmanager_pb2.SubscribeKvEventsRequest(from_sequence_number=1)),
            (inner.ListTenantPins, kvmanager_pb2.ListTenantPinsRequest(tenant="beta")),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                list(answers(method(request, metadata=metadata, timeout=60)))
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
        public = inference_pb2_grpc.GenerationServiceStub(channel)
        assert public.ListModels(inference_pb2.ListModelsRequest(), metadata=metadata, timeout=60).models


def answers(response: Any) -> list[Any]:
    """Of a call of either kind."""
    return [response] if isinstance(response, Message) else list(response)
