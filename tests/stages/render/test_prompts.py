"""No words of the prompt are trained, whatever the template does with them: it moves, strips, counts or hides them."""

import itertools
from typing import Any

import pytest
from packtrain.schemas.errors import PacktrainError
from packtrain.schemas.rows import SpanKind
from packtrain.stages.render.renderer import Renderer
from packtrain.stages.template.chat_template import ChatTemplate

from tests.kit import CHATML

EVERYTHING = ("system", "tools", "user", "assistant", "tool_calls", "tool_results")

# Public instruct models do so: the system message stands before the last question only.
LATE_SYSTEM = (
    "{% set system = '' %}{% set turns = messages %}{% if messages[0].role == 'system' %}"
    "{% set system = messages[0].content %}{% set turns = messages[1:] %}{% endif %}"
    "{% for m in turns %}{% if m.role == 'user' %}[ASK]{% if loop.last and system %} {{ system }}\n\n{% endif %}"
    " {{ m.content }}[/ASK]{% else %} {{ m.content }}<|im_end|>{% endif %}{% endfor %}"
)
TRICKY = {
    "late system": LATE_SYSTEM,
    # The same template, with its own marks.
    "late system, marked": LATE_SYSTEM.replace(
        " {{ m.content }}<|im_end|>", " {% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
    ),
    # Where the row has a system message, the generation prompt is another one.
    "opening by system": CHATML.replace("{% endif %}", "{{ '<think>\n' if messages[0].role == 'system' }}{% endif %}"),
    # The prompt alone is stripped, the conversation is not.
    "strips prompts": CHATML.replace(
        "message.content", "(message.content | trim if add_generation_prompt else message.content)"
    ),
    "tools at the last question": (
        "{% for m in messages %}{% if loop.last or loop.nextitem is defined and loop.revindex == 2 %}"
        "{{ tools | tojson if tools else '' }}{% endif %}"
        "<|im_start|>{{ m.role }}\n{{ m.content or '' }}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}"
        "{% endfor %}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    "looks into contents": CHATML.replace(
        "message.content",
        "(message.content.split('</think>')[-1] if 'b' in message.content else message.content ~ message.name)",
    ),
    "writes no contents": "{% for m in messages %}<{{ m.role }}>{% endfor %}",
    "never proved": "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}abc{% endif %}",
}


TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
]


@pytest.mark.parametrize("name", TRICKY)
def test_no_words_of_the_prompt_are_trained(name: str) -> None:
    renderer = Renderer(ChatTemplate(TRICKY[name], {}, "t"), special_tokens=["<|im_end|>"], allow_lost=EVERYTHING)
    call = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": {"x": "zqcall"}}}
    first = [{"role": "user", "content": "zqone"}, {"role": "assistant", "content": "zqtwo"}]
    tool: list[dict[str, Any]] = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "f", "tool_call_id": "call00000", "content": "zqtool"},
    ]
    for system, turns, answered, named, by_tool in itertools.product((0, 1), (0, 1, 2), (1, 2), (0, 1), (0, 1)):
        prompt: list[dict[str, Any]] = [{"role": "system", "content": "zqrule"}] * system + first * turns
        prompt.append({"role": "user", "content": "zqask", **({"name": "zqu"} if named else {})})
        prompt += tool * by_tool
        answers = [{"role": "assistant", "content": "yes"}, {"role": "user", "content": "more"}] * answered
        try:
            text, _, spans = renderer(prompt, answers[:-1], TOOLS if by_tool else None)[:3]
        except PacktrainError:
            continue  # the template refuses it
        done = 0
        for end, kind in zip(spans.ends, spans.kinds, strict=True):
            if kind in (SpanKind.COMPLETION, SpanKind.ASSISTANT, SpanKind.END, SpanKind.UNPROVED_COMPLETION):
                assert "zq" not in text[done:end], (text, spans)
            done = end
        trained = [
            kind
            for kind in spans.kinds
            if kind in (SpanKind.COMPLETION, SpanKind.ASSISTANT, SpanKind.UNPROVED_COMPLETION)
        ]
        assert trained or "yes" not in text
