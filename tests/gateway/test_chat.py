"""Chat templates render as the reference renders them."""

from datetime import datetime

import pytest
from transformers import PreTrainedTokenizerFast

from gateway.chat import ChatTemplate
from gateway.errors import InvalidArgument, TokenizerError
from gateway.request import ChatMessage
from gateway.tokenizer import Tokenizer

TEMPLATES = {
    "chatml": (
        "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
        "{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}"
        "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    "many lines, trimmed": """{{- bos_token }}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = '' %}
{%- endif %}
{% for message in messages %}
    {% if message.role == 'user' %}
[INST] {% if loop.first and system %}<<SYS>>{{ system }}<</SYS>> {% endif %}{{ message.content }} [/INST]
    {% else %}
 {{ message.content }} {{ eos_token }}
    {% endif %}
{% endfor %}
""",
    "loop controls": (
        "{% for message in messages %}{% if message.role == 'system' %}{% continue %}{% endif %}"
        "{{ message.content }};{% if loop.index > 2 %}{% break %}{% endif %}{% endfor %}"
    ),
    "json": "{% for message in messages %}{{ message | tojson }}{{ message | tojson(indent=2) }}{% endfor %}",
    "generation block": (
        "{% for message in messages %}{% if message.role == 'assistant' %}\n"
        "{% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}\n"
        "{% else %}{{ message.role }}: {{ message.content }}\n{% endif %}{% endfor %}"
    ),
    "optional things": (
        "{% if tools is not none %}tools{% endif %}{% if documents %}documents{% endif %}"
        "{{ pad_token is defined }}{{ date_string | default('no date') }}"
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}"
        "{% macro say(m) %}<{{ m.role|upper }}>{{ m.content }}{% endmacro %}{{ say(messages[-1]) }}"
    ),
}

CONVERSATIONS = {
    "one question": [ChatMessage("user", 'What is <b>"2 & 3"</b>?')],
    "longer": [
        ChatMessage("system", "  Be brief.\n"),
        ChatMessage("user", "Grüße 🙂\n\n{{ not a template }}"),
        ChatMessage("assistant", "Hello"),
        ChatMessage("user", ""),
    ],
}


def template(source: str | None, special: dict[str, str] | None = None) -> ChatTemplate:
    return ChatTemplate(source, special or {}, lambda: datetime(2025, 3, 1, 12))


@pytest.mark.parametrize("source", TEMPLATES.values(), ids=TEMPLATES.keys())
@pytest.mark.parametrize("messages", CONVERSATIONS.values(), ids=CONVERSATIONS.keys())
def test_renders_as_transformers_does(byte_level: Tokenizer, source: str, messages: list[ChatMessage]) -> None:
    reference = PreTrainedTokenizerFast(tokenizer_object=byte_level.backend, **byte_level.special_tokens)
    expected = reference.apply_chat_template(
        [{"role": message.role, "content": message.content} for message in messages],
        chat_template=source,
        tokenize=False,
        add_generation_prompt=True,
    )
    assert template(source, byte_level.special_tokens).render(messages) == expected


def test_the_clock_is_the_one_that_was_given() -> None:
    assert template("{{ strftime_now('%d %b %Y') }}").render([ChatMessage("user", "x")]) == "01 Mar 2025"


def test_a_model_without_template_is_named_as_such() -> None:
    with pytest.raises(InvalidArgument, match="no chat template") as error:
        template(None).render([ChatMessage("user", "x")])
    assert error.value.field == "prompt.chat"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('Roles must alternate') }}", "Roles must alternate"),
        ("{{ messages[7].content }}", "no element 7"),
        ("{{ messages[0].content + 1 }}", "str"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% for i in range(10000000) %}{% endfor %}", "Range too big"),
    ],
)
def test_what_a_template_refuses_is_a_bad_prompt(source: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message) as error:
        template(source).render([ChatMessage("user", "x")])
    assert error.value.field == "prompt.chat"


def test_a_broken_template_is_found_when_it_is_loaded() -> None:
    with pytest.raises(TokenizerError, match="does not parse: line 2"):
        template("fine\n{% if %}")


# --- Where a message's part of the text ends ------------------------------------------------------------------------

LATER = [ChatMessage("assistant", "Yes"), ChatMessage("user", "secret")]


@pytest.mark.parametrize("source", TEMPLATES.values(), ids=TEMPLATES.keys())
@pytest.mark.parametrize("messages", CONVERSATIONS.values(), ids=CONVERSATIONS.keys())
def test_text_before_a_border_does_not_depend_on_what_follows(source: str, messages: list[ChatMessage]) -> None:
    rendering = template(source, {"bos_token": "<s>", "eos_token": "</s>"})
    counts = list(range(1, len(messages) + 1))
    conversation = [*messages, *LATER]
    text, ends = rendering.render_with_borders(conversation, counts)
    assert text == rendering.render(conversation)
    for count, end in zip(counts, ends, strict=True):
        for later in ([], LATER[:1], [ChatMessage("assistant", "No"), ChatMessage("user", "other")]):
            other = rendering.render([*messages[:count], *later])
            assert other[: min(end, len(other))] == text[: min(end, len(other))]


def test_a_template_s_own_text_goes_with_the_message_that_it_frames() -> None:
    messages = [ChatMessage("user", "one"), ChatMessage("assistant", "two"), ChatMessage("user", "three")]
    text, ends = template(TEMPLATES["chatml"]).render_with_borders(messages, [1, 2, 3])
    parts = [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]
    assert parts == [
        "<|im_start|>system\nYou help.<|im_end|>\n<|im_start|>user\none<|im_end|>\n",
        "<|im_start|>assistant\ntwo<|im_end|>\n",
        "<|im_start|>user\nthree<|im_end|>\n",
        "<|im_start|>assistant\n",
    ]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        # Refuses a conversation that does not end with the user.
        ("{% if messages[-1].role != 'user' %}{{ raise_exception('no') }}{% endif %}{{ messages | length }}", [0, 0]),
        # Writes what the system says ahead of the last message.
        (
            "{% for m in messages[1:] %}{% if loop.last %}{{ messages[0].content }} {% endif %}[{{ m.content }}]"
            "{% endfor %}",
            [0, 0],
        ),
        # Ends the last message in another way than the others.
        ("{% for m in messages %}{{ m.content }}{{ '.' if loop.last else ',' }}{% endfor %}", [3, 7]),
    ],
    ids=["refuses a part", "moves the system's words", "ends otherwise"],
)
def test_as_much_is_certain_as_the_first_messages_say_by_themselves(source: str, expected: list[int]) -> None:
    messages = [ChatMessage("system", "one"), ChatMessage("system", "two"), ChatMessage("user", "three")]
    assert template(source).render_with_borders(messages, [1, 2])[1] == expected


def test_time_stands_still_while_borders_are_found() -> None:
    moments = iter(datetime(2025, 3, 1, 12, 0, second) for second in range(60))
    rendering = ChatTemplate(
        "{{ strftime_now('%S') }}{% for m in messages %}{{ m.content }}{% endfor %}", {}, lambda: next(moments)
    )
    messages = [ChatMessage("user", "one"), ChatMessage("user", "two")]
    assert rendering.render_with_borders(messages, [1]) == ("00onetwo", [5])
    assert rendering.render(messages) == "01onetwo"


def test_where_an_answer_would_begin_is_no_part_of_a_message() -> None:
    source = "{% for m in messages %}{{ m.content }};{% endfor %}{% if add_generation_prompt %}answer:{% endif %}"
    messages = [ChatMessage("user", "a"), ChatMessage("user", "answer: b")]
    assert template(source).render_with_borders(messages, [1])[1] == [2]
