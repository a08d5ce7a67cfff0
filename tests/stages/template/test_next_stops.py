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
