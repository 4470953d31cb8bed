"""Prompts in segments: the scope of every token."""

from collections.abc import Callable
from itertools import accumulate, pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.errors import InvalidArgument, PermissionDenied
from gateway.gateway import Gateway
from gateway.prepared import ModelLimits
from gateway.request import ChatMessage, GenerationRequest, Segment, SegmentedPrompt, TextPrompt, TokenPrompt
from gateway.scope import TENANT_SCOPE, CacheScope, Identity, ScopeLevel

MakeGateway = Callable[..., Gateway]
LIMITS = ModelLimits(max_model_len=4096, vocab_size=1000, block_size=16)
ACME = Identity("acme", "search", frozenset({"docs", "code"}))
REQUEST, APP, TENANT = (CacheScope(level) for level in (ScopeLevel.REQUEST, ScopeLevel.APP, ScopeLevel.TENANT))
DOCS, CODE = (CacheScope(ScopeLevel.SHARED, name) for name in ("docs", "code"))
NAMES = {0: "shared", 1: "tenant", 2: "app", 3: "request"}

Content = str | ChatMessage | list[int]


def segmented(*parts: tuple[Content, CacheScope | None]) -> SegmentedPrompt:
    wrap = {str: TextPrompt, list: TokenPrompt, ChatMessage: lambda message: message}
    return SegmentedPrompt([Segment(wrap[type(content)](content), scope) for content, scope in parts])


def spans(gateway: Gateway, prompt: SegmentedPrompt, scope: CacheScope = TENANT_SCOPE) -> list[tuple[int, str]]:
    """Tokens and the kind of scope that they have."""
    prepared = gateway.prepare(GenerationRequest(prompt, scope=scope), LIMITS, ACME)
    assert sum(span.num_tokens for span in prepared.spans) == len(prepared.prompt_token_ids)
    narrowness = [span.scope.narrowness for span in prepared.spans]
    assert narrowness == sorted(set(narrowness))
    return [(span.num_tokens, NAMES[span.scope.narrowness]) for span in prepared.spans]


def words(gateway: Gateway, prompt: SegmentedPrompt) -> list[tuple[str, str]]:
    """The text that has each scope."""
    prepared = gateway.prepare(GenerationRequest(prompt), LIMITS, ACME)
    ends = [0, *accumulate(span.num_tokens for span in prepared.spans)]
    texts = [
        gateway.tokenizer.decode(prepared.prompt_token_ids[start:end], skip_special_tokens=False)
        for start, end in pairwise(ends)
    ]
    return [(text, NAMES[span.scope.narrowness]) for text, span in zip(texts, prepared.spans, strict=True)]


def test_each_segment_of_token_ids_has_its_scope(make_gateway: MakeGateway) -> None:
    prompt = segmented(([5] * 7, DOCS), ([6] * 5, None), ([7] * 3, APP), ([8] * 2, REQUEST))
    assert spans(make_gateway(), prompt) == [(7, "shared"), (5, "tenant"), (3, "app"), (2, "request")]


def test_the_request_s_scope_is_that_of_segments_that_have_none(make_gateway: MakeGateway) -> None:
    prompt = segmented(([5] * 7, TENANT), ([6] * 5, None))
    assert spans(make_gateway(), prompt, APP) == [(7, "tenant"), (5, "app")]
    assert spans(make_gateway(), prompt, TENANT) == [(12, "tenant")]


def test_a_prompt_without_segments_has_the_request_s_scope(make_gateway: MakeGateway) -> None:
    request = GenerationRequest(TokenPrompt([5] * 9), scope=DOCS)
    (span,) = make_gateway().prepare(request, LIMITS, ACME).spans
    assert (span.num_tokens, span.scope.owner) == (9, "shared:docs")


def test_a_scope_reaches_no_further_than_what_comes_before_it(make_gateway: MakeGateway) -> None:
    prompt = segmented(([5] * 3, TENANT), ([6] * 3, DOCS), ([7] * 3, REQUEST), ([8] * 3, APP))
    assert spans(make_gateway(), prompt) == [(6, "tenant"), (6, "request")]


def test_what_follows_two_namespaces_is_the_tenant_s(make_gateway: MakeGateway) -> None:
    prompt = segmented(([5] * 3, DOCS), ([6] * 3, DOCS), ([7] * 3, CODE), ([8] * 3, DOCS))
    assert spans(make_gateway(), prompt) == [(6, "shared"), (6, "tenant")]


def test_segments_without_content_narrow_nothing(make_gateway: MakeGateway) -> None:
    gateway = make_gateway()
    assert spans(gateway, segmented(([], REQUEST), ([5] * 3, DOCS), ([], APP))) == [(3, "shared")]
    assert spans(gateway, segmented(("", REQUEST), ("a", DOCS), ("", APP))) == [(1, "shared")]


def test_text_is_joined_and_a_token_across_a_border_is_narrower(make_gateway: MakeGateway) -> None:
    gateway = make_gateway()
    assert words(gateway, segmented(("the quick", DOCS), (" fox", APP))) == [("the quick", "shared"), (" fox", "app")]
    assert words(gateway, segmented(("the quick ", DOCS), ("fox", APP))) == [("the quick", "shared"), (" fox", "app")]
    assert words(gateway, segmented(("the qu", DOCS), ("ick fox", APP))) == [("the", "shared"), (" quick fox", "app")]
    prompt = segmented(("the qu", DOCS), ("ick fox", APP))
    assert gateway.tokenize(prompt, LIMITS) == gateway.tokenizer.encode("the quick fox")


def test_a_special_token_written_across_a_border(make_gateway: MakeGateway) -> None:
    prompt = segmented(("a<|im_", DOCS), ("end|>b", APP))
    assert words(make_gateway(), prompt) == [("a", "shared"), ("<|im_end|>b", "app")]


def test_messages_have_their_scopes_with_what_frames_them(make_gateway: MakeGateway) -> None:
    prompt = segmented(
        (ChatMessage("system", "be brief"), DOCS),
        (ChatMessage("user", "the fox"), None),
        (ChatMessage("assistant", "jumps"), None),
        (ChatMessage("user", "secret"), REQUEST),
    )
    assert words(make_gateway(), prompt) == [
        ("<|im_start|>system\nbe brief<|im_end|>\n", "shared"),
        ("<|im_start|>user\nthe fox<|im_end|>\n<|im_start|>assistant\njumps<|im_end|>\n", "tenant"),
        ("<|im_start|>user\nsecret<|im_end|>\n<|im_start|>assistant\n", "request"),
    ]


def test_messages_whose_border_cannot_be_found_are_as_narrow_as_the_narrowest(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(
        "{% if messages[-1].role != 'user' %}{{ raise_exception('no') }}{% endif %}"
        "{% for m in messages %}{{ m.content }};{% endfor %}"
    )
    system, user = ChatMessage("system", "be brief"), ChatMessage("user", "the fox")
    assert words(gateway, segmented((system, DOCS), (user, APP))) == [("be brief;the fox;", "app")]
    # The second border is one that can be found: what is behind it alone is the narrowest.
    more = ChatMessage("user", "secret")
    prompt = segmented((system, DOCS), (user, APP), (more, REQUEST))
    assert words(gateway, prompt) == [("be brief;the fox;", "app"), ("secret;", "request")]


def test_a_conversation_is_rendered_once_more_for_each_scope_not_for_each_message(make_gateway: MakeGateway) -> None:
    written = 0

    class Content(str):
        def __str__(self) -> str:
            nonlocal written
            written += 1
            return "x"

    turns = [(ChatMessage("user", Content("x")), APP if index else DOCS) for index in range(50)]
    gateway = make_gateway("{% for m in messages %}{{ m.content }}{% endfor %}")
    prepared = gateway.prepare(GenerationRequest(segmented(*turns)), LIMITS, ACME)
    assert [span.num_tokens for span in prepared.spans] == [1, 49]
    assert written == 50 + 1


@given(
    parts=st.lists(
        st.tuples(
            st.one_of(st.text(max_size=4), st.sampled_from(["the", " fox", " ", "日本", "e\u0301", "<|im_end|>"])),
            st.sampled_from([DOCS, CODE, TENANT, APP, REQUEST, None]),
        ),
        min_size=1,
        max_size=8,
    ).filter(lambda parts: any(text for text, _ in parts))
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_token_is_wider_than_any_character_up_to_its_end(
    make_gateway: MakeGateway, parts: list[tuple[str, CacheScope | None]]
) -> None:
    """Byte for byte: what a scope's tokens spell ends before the first character that is narrower."""
    gateway = make_gateway()
    prepared = gateway.prepare(GenerationRequest(segmented(*parts)), LIMITS, ACME)
    bytes_of = gateway._detokenizers._byte_level
    assert bytes_of is not None
    lengths = [len(bytes_of[token_id]) for token_id in prepared.prompt_token_ids]
    token_end = byte_end = 0
    for span in prepared.spans:
        token_end += span.num_tokens
        byte_end = sum(lengths[:token_end])
        allowed = 0
        for text, scope in parts:
            level = ScopeLevel.TENANT if scope is None else scope.level
            if text and level is not None and level > span.scope.narrowness:
                break
            allowed += len(text.encode())
        assert byte_end <= allowed
    assert byte_end == sum(len(text.encode()) for text, _ in parts)


@pytest.mark.parametrize(
    ("prompt", "scope", "error", "field"),
    [
        (segmented(("a", None)), CacheScope(None), InvalidArgument, "cache_scope"),
        (
            segmented(("a", None), ("b", CacheScope(None))),
            TENANT,
            InvalidArgument,
            "prompt.segmented.segments[1].cache_scope",
        ),
        (segmented(("a", None)), CacheScope(ScopeLevel.SHARED, "hr"), PermissionDenied, "cache_scope.shared"),
        (
            segmented(("a", DOCS), ("", CacheScope(ScopeLevel.SHARED, "hr"))),
            TENANT,
            PermissionDenied,
            "prompt.segmented.segments[1].cache_scope.shared",
        ),
    ],
)
def test_scopes_that_are_refused(
    make_gateway: MakeGateway, prompt: SegmentedPrompt, scope: CacheScope, error: type[InvalidArgument], field: str
) -> None:
    with pytest.raises(error) as caught:
        make_gateway().prepare(GenerationRequest(prompt, scope=scope), LIMITS, ACME)
    assert caught.value.field == field


def test_two_requests_never_share_their_own_scope(make_gateway: MakeGateway) -> None:
    gateway = Gateway(make_gateway().tokenizer, "tiny", now=lambda: pytest.fail("no clock needed"))
    prompt = segmented(([5] * 3, TENANT), ([6] * 3, REQUEST))
    first, second = (gateway.prepare(GenerationRequest(prompt), LIMITS, ACME).spans for _ in range(2))
    assert first[0] == second[0]
    assert first[1].scope.salt != second[1].scope.salt
