"""Requests in, what the backend needs out; and back."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from gateway.errors import InvalidArgument, NotFound
from gateway.gateway import Gateway
from gateway.output import FinishReason
from gateway.request import (
    ChatMessage,
    ChatPrompt,
    GenerationRequest,
    ModelLimits,
    Prompt,
    SamplingParams,
    TextPrompt,
    TokenPrompt,
)
from gateway.scope import tenant_salt

MakeGateway = Callable[..., Gateway]


def test_defaults_are_filled_in(make_gateway: MakeGateway, limits: ModelLimits) -> None:
    gateway = make_gateway()
    prepared = gateway.prepare(GenerationRequest(TextPrompt("the fox")), limits)
    assert prepared.prompt_token_ids == gateway.tokenizer.encode("the fox")
    assert (prepared.model, prepared.tenant, prepared.n) == ("tiny", "default", 1)
    assert (prepared.max_tokens, prepared.min_tokens, prepared.timeout_us) == (0, 0, 0)
    assert prepared.stop_token_ids == (2,)
    assert prepared.request_id == f"{7:032x}"
    sampling = prepared.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (1.0, 1.0, 0, 0.0)
    assert (sampling.seed, sampling.logprobs, sampling.stop, sampling.skip_special_tokens) == (7, None, (), True)


def test_what_the_client_says_is_kept(make_gateway: MakeGateway, limits: ModelLimits) -> None:
    wanted = SamplingParams(
        max_tokens=5,
        temperature=0.0,
        top_p=0.5,
        top_k=3,
        min_p=0.1,
        n=4,
        stop=["a", "b"],
        stop_token_ids=[9, 2, 9],
        seed=0,
        logprobs=0,
        min_tokens=2,
        skip_special_tokens=False,
    )
    request = GenerationRequest(TokenPrompt([5, 6]), sampling=wanted, model="tiny", timeout=1.5, request_id="request 1")
    prepared = make_gateway().prepare(request, limits)
    assert (prepared.request_id, prepared.prompt_token_ids, prepared.n) == ("request 1", [5, 6], 4)
    assert (prepared.max_tokens, prepared.min_tokens, prepared.timeout_us) == (5, 2, 1_500_000)
    assert prepared.stop_token_ids == (9, 2)
    sampling = prepared.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.0, 0.5, 3, 0.1)
    assert (sampling.seed, sampling.logprobs, sampling.stop, sampling.skip_special_tokens) == (0, 0, ("a", "b"), False)


def test_the_model_s_own_end_can_be_ignored(make_gateway: MakeGateway, limits: ModelLimits) -> None:
    sampling = SamplingParams(ignore_eos=True, stop_token_ids=[9])
    assert make_gateway().prepare(GenerationRequest(TextPrompt("a"), sampling), limits).stop_token_ids == (9,)


def test_a_time_limit_never_rounds_to_none(make_gateway: MakeGateway, limits: ModelLimits) -> None:
    assert make_gateway().prepare(GenerationRequest(TextPrompt("a"), timeout=1e-9), limits).timeout_us == 1


def test_seeds_and_ids_differ_between_requests(make_gateway: MakeGateway, limits: ModelLimits) -> None:
    gateway = Gateway(make_gateway().tokenizer, "tiny", now=lambda: pytest.fail("no clock needed"))
    first, second = (gateway.prepare(GenerationRequest(TextPrompt("a")), limits) for _ in range(2))
    assert first.request_id != second.request_id
    assert first.sampling.seed != second.sampling.seed


def test_chat_is_rendered_and_gets_no_more_special_tokens(make_gateway: MakeGateway, limits: ModelLimits) -> None:
    gateway = make_gateway()
    prompt = ChatPrompt([ChatMessage("user", "the fox")])
    expected = "<|im_start|>user\nthe fox<|im_end|>\n<|im_start|>assistant\n"
    assert gateway.tokenize(prompt, limits) == gateway.tokenizer.encode(expected, add_special_tokens=False)
    assert gateway.tokenize(prompt, limits)[0] == 1


@pytest.mark.parametrize(
    ("prompt", "field", "message"),
    [
        (None, "prompt", "missing"),
        (TextPrompt(""), "prompt.text", "empty"),
        (TextPrompt("\ud800"), "prompt.text", "Unicode"),
        (ChatPrompt([]), "prompt.chat.messages", "empty"),
        (ChatPrompt([ChatMessage("user", "a"), ChatMessage("", "b")]), "prompt.chat.messages[1].role", "empty"),
        (ChatPrompt([ChatMessage("user", "\ud800")]), "prompt.chat", "Unicode"),
        (TokenPrompt([]), "prompt.tokens.token_ids", "empty"),
        (TokenPrompt([1, 2, 3, 900]), "prompt.tokens.token_ids[3]", "900.*from 0 to"),
        (TokenPrompt([1, -1]), "prompt.tokens.token_ids[1]", "-1"),
    ],
)
def test_bad_prompts(
    make_gateway: MakeGateway, limits: ModelLimits, prompt: Prompt | None, field: str, message: str
) -> None:
    gateway = make_gateway()
    for call in (
        lambda: gateway.prepare(GenerationRequest(prompt), limits),
        lambda: gateway.tokenize(prompt, limits),
    ):
        with pytest.raises(InvalidArgument, match=message) as error:
            call()
        assert error.value.field == field


@pytest.mark.parametrize(
    ("template", "message"), [(None, "no chat template"), ("{{ raise_exception('odd') }}", "odd"), ("", "no tokens")]
)
def test_chat_that_the_model_cannot_take(
    make_gateway: MakeGateway, limits: ModelLimits, template: str | None, message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message) as error:
        make_gateway(template).tokenize(ChatPrompt([ChatMessage("user", "hi")]), limits)
    assert error.value.field == "prompt.chat"


def test_a_prompt_must_leave_room(make_gateway: MakeGateway, limits: ModelLimits) -> None:
    gateway = make_gateway()
    assert gateway.prepare(GenerationRequest(TokenPrompt([5] * 63)), limits)
    for length in (64, 65):
        with pytest.raises(InvalidArgument, match=f"has {length} tokens.*64") as error:
            gateway.prepare(GenerationRequest(TokenPrompt([5] * length)), limits)
        assert error.value.field == "prompt.tokens"
    assert len(gateway.tokenize(TokenPrompt([5] * 65), limits)) == 65


@pytest.mark.parametrize("name", ["max_tokens", "min_tokens"])
def test_wanted_tokens_must_fit(make_gateway: MakeGateway, limits: ModelLimits, name: str) -> None:
    gateway, prompt = make_gateway(), TokenPrompt([5] * 60)
    assert gateway.prepare(GenerationRequest(prompt, SamplingParams(**{name: 4})), limits)
    with pytest.raises(InvalidArgument, match=r"5 and the prompt's 60 tokens exceed the 64.*at most 4") as error:
        gateway.prepare(GenerationRequest(prompt, SamplingParams(**{name: 5})), limits)
    assert error.value.field == f"sampling.{name}"


def test_text_with_tokens_that_the_model_lacks(make_gateway: MakeGateway, limits: ModelLimits) -> None:
    with pytest.raises(InvalidArgument, match="the model's go to 9") as error:
        make_gateway().tokenize(TextPrompt("a fox"), replace(limits, vocab_size=10))
    assert error.value.field == "prompt.text"


def test_an_unknown_model_is_named(make_gateway: MakeGateway, limits: ModelLimits) -> None:
    with pytest.raises(NotFound, match=r"'huge'.*'tiny'") as error:
        make_gateway().prepare(GenerationRequest(TextPrompt("a"), model="huge"), limits)
    assert error.value.field == "model"
    with pytest.raises(NotFound):
        make_gateway().tokenize(TextPrompt("a"), limits, model="huge")


def test_sequences_come_back_as_text(make_gateway: MakeGateway, limits: ModelLimits) -> None:
    gateway = make_gateway()
    request = GenerationRequest(TextPrompt("the"), SamplingParams(n=2, stop=["dog"]))
    prepared = gateway.prepare(request, limits)
    output = gateway.output(prepared)
    ids = gateway.tokenizer.encode("the lazy dog jumps")
    first = output.add(0, 0, ids)
    second = output.add(1, 0, [*ids[:1], 2], finish_reason=FinishReason.STOP)
    assert first is not None
    assert second is not None
    assert (first.text, first.finish_reason, first.ended_here) == ("the lazy ", FinishReason.STOP, True)
    assert (second.text, second.finish_reason, second.ended_here) == ("the", FinishReason.STOP, False)
    assert output.finished
    assert output.usage(len(prepared.prompt_token_ids), 0).completion_tokens == len(first.token_ids) + 2


def test_tenants_have_different_salts() -> None:
    tenants = ["default", "", "a", "ab", "a\x00", "tenant"]
    assert len({tenant_salt(tenant) for tenant in tenants}) == len(tenants)
