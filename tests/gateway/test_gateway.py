"""Requests in, what the backend needs out; and back."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from gateway.errors import InvalidArgument, NotFound
from gateway.gateway import Gateway
from gateway.output import FinishReason
from gateway.prepared import BeamSearch, ModelLimits, PinOrder
from gateway.request import (
    ChatMessage,
    ChatPrompt,
    EarlyStopping,
    GenerationRequest,
    PinRequest,
    Prompt,
    SamplingParams,
    Segment,
    SegmentedPrompt,
    TextPrompt,
    TokenPrompt,
)
from gateway.scope import CacheScope, Identity, RequestScopes, ScopeLevel, ScopeSpan

MakeGateway = Callable[..., Gateway]
ANYBODY = Identity()
ACME = Identity("acme", "search", frozenset({"docs"}))


def segments(*contents: str | ChatMessage | list[int] | None) -> SegmentedPrompt:
    """A segment of each."""
    kinds = {str: TextPrompt, list: TokenPrompt}
    return SegmentedPrompt([Segment(kinds.get(type(each), lambda same: same)(each)) for each in contents])


def test_defaults_are_filled_in(make_gateway: MakeGateway, limits: ModelLimits) -> None:
    gateway = make_gateway()
    prepared = gateway.prepare(GenerationRequest(TextPrompt("the fox")), limits, ANYBODY)
    assert prepared.prompt_token_ids == gateway.tokenizer.encode("the fox")
    assert (prepared.model, prepared.tenant, prepared.n) == ("tiny", "default", 1)
    assert (prepared.max_tokens, prepared.min_tokens, prepared.timeout_us) == (0, 0, 0)
    assert prepared.stop_token_ids == (2,)
    assert prepared.request_id == f"{7:032x}"
    sampling = prepared.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (1.0, 1.0, 0, 0.0)
    assert (sampling.seed, sampling.logprobs, sampling.stop, sampling.skip_special_tokens) == (7, None, (), True)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (0.0, 0.0, 1.0)
    assert (dict(sampling.logit_bias), prepared.best_of, prepared.beam, prepared.kept) == ({}, 0, None, 1)
    assert (prepared.priority, prepared.report_progress, prepared.shows_logprobs) == (0, False, False)
    assert (prepared.pin, prepared.ranked_by_backend, prepared.response_interval) == (None, False, None)
    tenant = RequestScopes(ANYBODY, lambda _: 7).resolve(CacheScope(ScopeLevel.TENANT), "")
    assert prepared.spans == (ScopeSpan(len(prepared.prompt_token_ids), tenant),)


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
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=1.25,
        logit_bias={3: -1.5},
    )
    request = GenerationRequest(
        TokenPrompt([5, 6]),
        sampling=wanted,
        model="tiny",
        timeout=1.5,
        request_id="request 1",
        priority=-100,
        report_progress=True,
        response_interval=0.5,
    )
    prepared = make_gateway().prepare(request, limits, ACME)
    assert (prepared.request_id, prepared.prompt_token_ids, prepared.n) == ("request 1", [5, 6], 4)
    assert (prepared.max_tokens, prepared.min_tokens, prepared.timeout_us) == (5, 2, 1_500_000)
    assert prepared.stop_token_ids == (9, 2)
    sampling = prepared.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.0, 0.5, 3, 0.1)
    assert (sampling.seed, sampling.logprobs, sampling.stop, sampling.skip_special_tokens) == (0, 0, ("a", "b"), False)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (0.5, -0.5, 1.25)
    assert (dict(sampling.logit_bias), prepared.shows_logprobs) == ({3: -1.5}, True)
    assert (prepared.tenant, prepared.priority, prepared.report_progress) == ("acme", -100, True)
    assert prepared.response_interval == 0.5


def test_the_model_s_own_end_can_be_ignored(make_gateway: MakeGateway, limits: ModelLimits) -> None:
    sampling = SamplingParams(ignore_eos=True, stop_token_ids=[9])
    assert make_gateway().prepare(GenerationRequest(TextPrompt("a"), sampling), limits, ANYBODY).stop_token_ids == (9,)


def test_a_time_limit_never_rounds_to_none(make_gateway: MakeGateway, limits: ModelLimits) -> None:
    assert make_gateway().prepare(GenerationRequest(TextPrompt("a"), timeout=1e-9), limits, ANYBODY).timeout_us == 1


def test_seeds_and_ids_differ_between_requests(make_gateway: MakeGateway, limits: ModelLimits) -> None:
    gateway = Gateway(make_gateway().tokenizer, "tiny", now=lambda: pytest.fail("no clock needed"))
    first, second = (gateway.prepare(GenerationRequest(TextPrompt("a")), limits, ANYBODY) for _ in range(2))
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
        (SegmentedPrompt([]), "prompt.segmented.segments", "empty"),
        (SegmentedPrompt([Segment(TextPrompt("a"))] * 1025), "prompt.segmented.segments", "at most 1024, are 1025"),
        (segments("", ""), "prompt.segmented", "empty"),
        (segments("a", "\ud800"), "prompt.segmented", "Unicode"),
        (segments("a", None), "prompt.segmented.segments[1]", "must hold a text"),
        (segments("a", [5]), "prompt.segmented.segments[1]", "same kind as the first"),
        (segments([], []), "prompt.segmented", "empty"),
        (segments([1, 2], [3, 900]), "prompt.segmented.segments[1].tokens.token_ids[1]", "900.*from 0 to"),
        (segments(ChatMessage("", "a")), "prompt.segmented.segments[0].message.role", "empty"),
        (segments(ChatMessage("user", "\ud800")), "prompt.segmented", "Unicode"),
    ],
)
def test_bad_prompts(
    make_gateway: MakeGateway, limits: ModelLimits, prompt: Prompt | None, field: str, message: str
) -> None:
    gateway = make_gateway()
    for call in (
        lambda: gateway.prepare(GenerationRequest(prompt), limits, ANYBODY),
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
    with pytest.raises(InvalidArgument, match=message) as error:
        make_gateway(template).tokenize(segments(ChatMessage("user", "hi")), limits)
    assert error.value.field == "prompt.segmented"


def test_a_prompt_must_leave_room(make_gateway: MakeGateway, limits: ModelLimits) -> None:
    gateway = make_gateway()
    assert gateway.prepare(GenerationRequest(TokenPrompt([5] * 63)), limits, ANYBODY)
    for length in (64, 65):
        with pytest.raises(InvalidArgument, match=f"has {length} tokens.*64") as error:
            gateway.prepare(GenerationRequest(TokenPrompt([5] * length)), limits, ANYBODY)
        assert error.value.field == "prompt.tokens"
    assert len(gateway.tokenize(TokenPrompt([5] * 65), limits)) == 65


@pytest.mark.parametrize("name", ["max_tokens", "min_tokens"])
def test_wanted_tokens_must_fit(make_gateway: MakeGateway, limits: ModelLimits, name: str) -> None:
    gateway, prompt = make_gateway(), TokenPrompt([5] * 60)
    assert gateway.prepare(GenerationRequest(prompt, SamplingParams(**{name: 4})), limits, ANYBODY)
    with pytest.raises(InvalidArgument, match=r"5 and the prompt's 60 tokens exceed the 64.*at most 4") as error:
        gateway.prepare(GenerationRequest(prompt, SamplingParams(**{name: 5})), limits, ANYBODY)
    assert error.value.field == f"sampling.{name}"


def test_text_with_tokens_that_the_model_lacks(make_gateway: MakeGateway, limits: ModelLimits) -> None:
    with pytest.raises(InvalidArgument, match="the model's go to 9") as error:
        make_gateway().tokenize(TextPrompt("a fox"), replace(limits, vocab_size=10))
    assert error.value.field == "prompt.text"


def test_an_unknown_model_is_named(make_gateway: MakeGateway, limits: ModelLimits) -> None:
    with pytest.raises(NotFound, match=r"'tiny'.*'huge'") as error:
        make_gateway().prepare(GenerationRequest(TextPrompt("a"), model="huge"), limits, ANYBODY)
    assert error.value.field == "model"
    with pytest.raises(NotFound):
        make_gateway().tokenize(TextPrompt("a"), limits, model="huge")


def test_sequences_come_back_as_text(make_gateway: MakeGateway, limits: ModelLimits) -> None:
    gateway = make_gateway()
    request = GenerationRequest(TextPrompt("the"), SamplingParams(n=2, stop=["dog"]))
    prepared = gateway.prepare(request, limits, ANYBODY)
    output = gateway.output(prepared)
    ids = gateway.tokenizer.encode("the lazy dog jumps")
    first = output.add(0, 0, ids)
    second = output.add(1, 0, [*ids[:1], 2], finish_reason=FinishReason.STOP)
    assert first is not None
    assert second is not None
    assert (first.text, first.finish_reason, first.ended_here) == ("the lazy ", FinishReason.STOP, True)
    assert (second.text, second.finish_reason, second.ended_here) == ("the", FinishReason.STOP, False)
    assert output.finished


def test_beam_search(make_gateway: MakeGateway, limits: ModelLimits) -> None:
    gateway = make_gateway()
    plain = gateway.prepare(GenerationRequest(TextPrompt("a"), SamplingParams(beam_width=4)), limits, ANYBODY)
    assert plain.beam == BeamSearch(4, 1.0, EarlyStopping.HEURISTIC)
    assert (plain.n, plain.kept, plain.best_of, plain.ranked_by_backend) == (1, 1, 0, True)
    wanted = SamplingParams(n=3, beam_width=3, length_penalty=-0.5, early_stopping=EarlyStopping.NEVER, temperature=0.0)
    prepared = gateway.prepare(GenerationRequest(TextPrompt("a"), wanted), limits, ANYBODY)
    assert prepared.beam == BeamSearch(3, -0.5, EarlyStopping.NEVER)
    assert (prepared.n, prepared.kept) == (3, 3)


@pytest.mark.parametrize(
    ("sampling", "n", "best_of", "kept", "logprobs"),
    [
        (SamplingParams(n=2, best_of=2), 2, 0, 2, None),
        (SamplingParams(best_of=5), 1, 5, 1, None),
        # The backend keeps no log probabilities of what it ranks.
        (SamplingParams(n=2, best_of=5, logprobs=3), 5, 0, 2, 3),
        # Where a sequence ends at a stop string, only the gateway can rank it.
        (SamplingParams(n=2, best_of=5, stop=["x"]), 5, 0, 2, 0),
        (SamplingParams(n=2, best_of=5, stop=["x"], logprobs=3), 5, 0, 2, 3),
        (SamplingParams(n=2, best_of=2, stop=["x"]), 2, 0, 2, None),
    ],
)
def test_who_ranks_the_sequences(
    make_gateway: MakeGateway,
    limits: ModelLimits,
    sampling: SamplingParams,
    n: int,
    best_of: int,
    kept: int,
    logprobs: int | None,
) -> None:
    prepared = make_gateway().prepare(GenerationRequest(TextPrompt("a"), sampling), limits, ANYBODY)
    assert (prepared.n, prepared.best_of, prepared.kept) == (n, best_of, kept)
    assert prepared.sampling.logprobs == logprobs
    assert prepared.shows_logprobs == (sampling.logprobs is not None)


def test_a_pin(make_gateway: MakeGateway, limits: ModelLimits) -> None:
    request = PinRequest(
        TokenPrompt([5] * 9), 1.5, timeout=2.0, scope=CacheScope(ScopeLevel.SHARED, "docs"), model="tiny"
    )
    prepared = make_gateway().prepare_pin(request, limits, ACME)
    assert prepared.pin == PinOrder(f"{7:032x}", 1_500_000)
    assert (prepared.tenant, prepared.prompt_token_ids, prepared.timeout_us) == ("acme", [5] * 9, 2_000_000)
    (span,) = prepared.spans
    assert (span.num_tokens, span.scope.owner) == (9, "shared:docs")


def test_pins_have_names_that_nobody_guesses(make_gateway: MakeGateway, limits: ModelLimits) -> None:
    gateway = Gateway(make_gateway().tokenizer, "tiny", now=lambda: pytest.fail("no clock needed"))
    pins = [gateway.prepare_pin(PinRequest(TokenPrompt([5] * 4), 60.0), limits, ANYBODY).pin for _ in range(2)]
    assert len({pin.pin_id for pin in pins if pin}) == 2
    assert all(len(pin.pin_id) == 32 for pin in pins if pin)


REQUEST = CacheScope(ScopeLevel.REQUEST)


@pytest.mark.parametrize(
    ("request_", "field", "message"),
    [
        (PinRequest(None, 60.0), "prompt", "missing"),
        (PinRequest(TokenPrompt([5] * 4), None), "ttl", "missing"),
        (PinRequest(TokenPrompt([5] * 4), 0.5), "ttl", r"from 1 s to 2592000 s \(30 days\), is 0.5 s"),
        (PinRequest(TokenPrompt([5] * 4), 2592001.0), "ttl", "30 days"),
        (PinRequest(TokenPrompt([5] * 4), math.nan), "ttl", "30 days"),
        (PinRequest(TokenPrompt([5] * 4), 60.0, timeout=0.0), "timeout", "more than 0"),
        (
            PinRequest(TokenPrompt([5] * 3), 60.0),
            "prompt.tokens",
            "has 3 tokens; only full blocks are kept, which have 4",
        ),
        (PinRequest(TokenPrompt([5] * 64), 60.0), "prompt.tokens", "has 64 tokens"),
        (PinRequest(TokenPrompt([5] * 4), 60.0, scope=REQUEST), "cache_scope", "nobody could reuse"),
        (
            PinRequest(SegmentedPrompt([Segment(TokenPrompt([5] * 4)), Segment(TokenPrompt([5]), REQUEST)]), 60.0),
            "prompt.segmented.segments[1].cache_scope",
            "nobody could reuse",
        ),
    ],
)
def test_bad_pins(
    make_gateway: MakeGateway, limits: ModelLimits, request_: PinRequest, field: str, message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message) as error:
        make_gateway().prepare_pin(request_, limits, ANYBODY)
    assert error.value.field == field


def test_the_longest_pins(make_gateway: MakeGateway, limits: ModelLimits) -> None:
    for ttl in (1.0, 2592000.0):
        assert make_gateway().prepare_pin(PinRequest(TokenPrompt([5] * 63), ttl), limits, ANYBODY)


def test_a_pin_of_a_model_that_is_not_here(make_gateway: MakeGateway, limits: ModelLimits) -> None:
    with pytest.raises(NotFound):
        make_gateway().prepare_pin(PinRequest(TokenPrompt([5] * 4), 60.0, model="huge"), limits, ANYBODY)
