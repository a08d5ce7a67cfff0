"""Stop tokens in the next message's header, as GLM's template writes them: literal texts and their runs."""

import pytest
from packtrain.schemas.rows import Messages, RunKind
from packtrain.stages.template.chat_template import ChatTemplate
from packtrain.stages.template.render import Renderer

GLM = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<|assistant|>\n<think></think>\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }}</call>{% endfor %}"
    "{% elif m.role == 'tool' %}<|observation|>\n{{ m.content }}"
    "{% else %}<|user|>\n{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
ENDED = GLM.replace("{% elif m.role == 'tool' %}", "<|end|>{% elif m.role == 'tool' %}")
TWO = GLM.replace("{% elif m.role == 'tool' %}", "<|done|><|end|>{% elif m.role == 'tool' %}")
STOPS = ["<|assistant|>", "<|user|>", "<|observation|>", "<|end|>", "<|done|>"]
CALL = {"type": "function", "function": {"name": "look", "arguments": {}}}
CHAT: Messages = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Ho"},
    {"role": "user", "content": "And"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "7"},
    {"role": "assistant", "content": "So"},
]


def spans(template: str, chat: Messages, prompt: int, *, trace: bool = True) -> list[tuple[str, str]]:
    """(kind, text) of each run."""
    renderer = Renderer(ChatTemplate(template, {}, "made"), stops=STOPS, trace=trace)
    rendered = renderer(chat[:prompt], chat[prompt:])
    assert rendered.unproved == ""
    out, done = [], 0
    for end, kind, _, _ in zip(*rendered.runs, strict=True):
        if end > done:
            out.append((RunKind(kind).name.lower(), rendered.text[done:end]))
        done = end
    return out


def test_the_next_header_ends_a_turn() -> None:
    assert spans(GLM, CHAT, 5) == [
        ("prompt", "<|user|>\nHi<|assistant|>"),
        ("history", "\n<think></think>\nHo"),
        ("history_stop_in_next_header", "<|user|>"),
        ("user", "\nAnd<|assistant|>"),
        ("history", "\n<think></think>\n"),
        ("history_call", "<call>look</call>"),
        ("history_stop_in_next_header", "<|observation|>"),
        ("prompt", "\n7<|assistant|>"),
        ("assistant", "\n<think></think>\nSo"),
    ], "the text that closes a call belongs to it, and a last turn has no stop token"


@pytest.mark.parametrize("trace", [True, False])
def test_a_trace_finds_the_same(trace: bool) -> None:
    assert [kind for kind, _ in spans(GLM, CHAT[:4][:3] + CHAT[5:], 3, trace=trace)] == [
        "prompt",
        "history",
        "history_stop_in_next_header",
        "user",
        "assistant",
    ]


def test_a_turn_that_follows_another_is_not_its_stop() -> None:
    both = [CHAT[0], CHAT[1], CHAT[5], CHAT[2]]
    assert [text for kind, text in spans(GLM, both, 1) if "stop" in kind] == ["<|user|>"]


def test_templates_that_end_turns_keep_their_ends() -> None:
    assert [text for kind, text in spans(ENDED, CHAT, 5) if "end" in kind or "stop" in kind] == ["<|end|>"] * 3


def test_adjacent_special_tokens_end_a_turn_together() -> None:
    """A model stops at the last of them only: as Command R7B, whose turns end with two."""
    assert [text for kind, text in spans(TWO, CHAT[:3] + CHAT[5:], 3) if "end" in kind] == ["<|done|><|end|>"] * 2


def renderer(template: str) -> Renderer:
    return Renderer(ChatTemplate(template, {}, "made"), stops=STOPS)


@pytest.mark.parametrize(
    ("template", "stops"),
    [(GLM, ("<|observation|>", "<|user|>")), (ENDED, ("<|end|>",)), (TWO, ("<|end|>",))],
    ids=["glm", "ended", "two"],
)
def test_what_the_template_ends_turns_with(template: str, stops: tuple[str, ...]) -> None:
    assert renderer(template).stop_tokens == stops


THINKS = (  # the prompt opens a thought, and an answer without one gets an empty one written otherwise
    "{% for m in messages %}<|{{ m.role }}|>\n{% if m.role == 'assistant' %}<think></think>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }}</call>{% endfor %}<|end|>{% else %}{{ m.content }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>\n<think>\n{% endif %}"
)
EMPTY = THINKS.replace("<think></think>", "").replace("<think>\n{% endif", "<think>\n\n</think>\n\n{% endif")


def test_an_empty_thought_that_the_prompt_writes_otherwise_is_not_trained() -> None:
    """A model would be given an open thought, so what it would generate is not in the data: the rest is."""
    assert [text for kind, text in spans(THINKS, CHAT[:5], 3) if kind != "prompt"] == [
        "Ho",
        "<|end|>",
        "<|user|>\nAnd<|assistant|>\n<think></think>",
        "<call>look</call>",
        "<|end|>",
        "<|tool|>\n7",
    ]


def test_an_empty_thought_of_the_prompt_alone_comes_before_a_call() -> None:
    assert ("tool_call", "<call>look</call>") in spans(EMPTY, CHAT[:5], 3)


NAMES = (  # as gpt-oss: a call has a stop of its own, and its name stands in the answer's header again
    "{% set names = namespace(last='') %}{% for m in messages %}"
    "{% if m.tool_calls %}<|assistant|>to={{ m.tool_calls[0].function.name }}<|call|>"
    "{% set names.last = m.tool_calls[0].function.name %}"
    "{% elif m.role == 'tool' %}<|start|>{{ names.last }}: {{ m.content }}<|end|>"
    "{% elif m.role == 'assistant' %}<|assistant|>{{ m.content }}"
    "{% if loop.last %}<|return|>{% else %}<|end|>{% endif %}"
    "{% else %}<|user|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
WITHIN = (  # as Gemma 4: answers to calls stand within the model's turn, before the rest of its content
    "{% for m in messages %}{% set after = loop.index0 and messages[loop.index0 - 1].role == 'tool' %}"
    "{% if m.role == 'assistant' %}{% if not after %}<|assistant|>{% endif %}"
    "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }}</call><|answer|>{% endfor %}"
    "{% if m.tool_calls and not loop.last %}{{ messages[loop.index0 + 1].content }}</answer>{% endif %}"
    "{{ m.content }}{% if not m.tool_calls %}<|end|>{% endif %}"
    "{% elif m.role == 'user' %}<|user|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt and messages[-1].role != 'tool' %}<|assistant|>{% endif %}"
)


def spans_with(template: str, stops: list[str]) -> list[tuple[str, str]]:
    rendered = Renderer(ChatTemplate(template, {}, "made"), stops=[*STOPS, *stops])(CHAT[:5], CHAT[5:])
    assert rendered.unproved == ""
    begins = [0, *rendered.runs.ends]
    return [
        (RunKind(kind).name.lower(), rendered.text[low:high])
        for low, high, kind in zip(begins, rendered.runs.ends, rendered.runs.kinds, strict=False)
    ]


def test_a_call_that_has_a_stop_of_its_own() -> None:
    found = spans_with(NAMES, ["<|call|>", "<|return|>", "<|start|>"])
    assert ("history_call", "to=look") in found
    assert ("history_end", "<|call|>") in found
    assert ("end", "<|return|>") in found
    assert ("history", "Ho") in found, "an earlier answer has another token than the last one: no stop of it is trained"


def test_answers_within_a_turn() -> None:
    found = spans_with(WITHIN, ["<|answer|>"])
    assert ("history_call", "<call>look</call>") in found
    assert ("history_end", "<|answer|>") in found
    assert ("assistant", "So") in found


MARKED = (  # what ends a turn stands in a block of its own, and a turn without content has an empty block
    "{% for m in messages %}{% if m.role == 'assistant' %}<|assistant|>{% for c in m.tool_calls or [] %}"
    "{% generation %}<call>{{ c.function.name }}</call>{% endgeneration %}{% endfor %}"
    "{% generation %}{{ m.content }}{% endgeneration %}{% generation %}<|end|>{% endgeneration %}"
    "{% else %}<|user|>{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def test_a_block_that_only_ends_a_turn_belongs_to_it() -> None:
    found = [one for one in spans_with(MARKED, []) if one[1] and "prompt" not in one[0] and one[0] != "user"]
    assert found == [
        ("history", "Ho"),
        ("history_end", "<|end|>"),
        ("history_call", "<call>look</call>"),
        ("history_end", "<|end|>"),
        ("assistant", "So"),
        ("end", "<|end|>"),
    ]
