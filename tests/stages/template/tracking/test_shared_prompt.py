"""Tests prompts that are rendered by what the whole conversation showed, against plain jinja2."""

import json
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packtrain.schemas.errors import RowRejectedError
from packtrain.schemas.rows import Messages
from packtrain.stages.template import limits
from packtrain.stages.template.chat_template import ChatTemplate
from packtrain.stages.template.tracking.marks import Marker

REALDATA = os.environ.get("PACKTRAIN_REALDATA")
VARIABLES = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
OPEN = "{% if add_generation_prompt %}<a>{{ ns.n }}{{ text }}{% endif %}"
"""What comes after the loop, and says what the loop left behind."""
SAID = "<{{ m.role }}>{{ m.content }}"


def around(loop: str, before: str = "", iterated: str = "messages") -> str:
    """A template with this body of its loop."""
    start = "{% set ns = namespace(n=0, last=-1) %}{% set text = 'T' %}" + before
    return f"{start}{{% for m in {iterated} %}}{loop}{{% endfor %}}{OPEN}"


SHARED = {
    "plain": around(SAID),
    "counts": around(SAID + "{% set ns.n = ns.n + 1 %}{{ ns.n }}"),
    "looks back": around(
        SAID + "{% if not loop.first %}{{ loop.previtem.role }}{{ messages[loop.index0 - 1].role }}{% endif %}"
    ),
    "sums": around("{{ '<' + m.role + '>' + m.content + '|' + '\\n' }}{{ 'a' + 'b' }}{{ ns.n + 1 + 2 }}"),
    "slice": around(
        SAID + "{{ loop.index }}",
        "{% set rest = messages[1:] if messages[0].role == 'system' else messages %}",
        "rest",
    ),
    "skips": around("{% if m.content == 'b' %}{% continue %}{% endif %}" + SAID),
    "macro": "{% macro say(m, end='') %}{% for c in m.content %}{{ c if not loop.last else c + '|' }}{% endfor %}"
    "{% set ns.n = ns.n + 1 %}{{ ns.n }}{{ end }}{% endmacro %}" + around("<{{ m.role }}>{{ say(m, end='!') }}"),
    "generation": around(
        "<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ ns.n }}{% endgeneration %}"
        "{% set ns.n = ns.n + 1 %}{% else %}{{ m.content }}{% endif %}"
    ),
    "inner loop": around(SAID + "{% for c in m.content %}{{ loop.last }}{{ loop.length }}{{ loop }}{% endfor %}"),
}
"""Templates whose prompts are shared in every conversation below."""
SOMETIMES = {
    "last question": around(
        SAID + "{% if loop.index0 > ns.last %}!{% endif %}",
        "{% for m in messages[::-1] %}{% if m.role == 'user' and ns.last < 0 %}"
        "{% set ns.last = messages|length - 1 - loop.index0 %}{% endif %}{% endfor %}",
    ),
    "at the last": around(SAID + "{% if m.role == 'tool' and loop.last %}!{% endif %}"),
    "next": around(SAID + "{% if m.role == 'tool' %}{{ loop.nextitem.role }}{% endif %}"),
    "item after": around(SAID + "{% if m.role == 'tool' %}{{ messages[loop.index0 + 1].role }}{% endif %}"),
    "item from the end": around(SAID + "{% if m.role == 'tool' %}{{ messages[-1].content }}{% endif %}"),
    "before": around("{{ long }}" + SAID, "{% set long = messages|length > 3 %}"),
    "in a namespace": around(
        "{{ ns.last }}" + SAID, "{% if messages[-1].role == 'user' %}{% set ns.last = 2 %}{% endif %}"
    ),
    "macro": "{% macro say(m) %}{{ m.content }}{{ long }}{% endmacro %}"
    + around("<{{ m.role }}>{{ say(m) }}", "{% set long = messages|length > 3 %}"),
    "stops": around("{% if m.content == 'b' %}{% break %}{% endif %}" + SAID),
}
"""Templates whose loop may look at what the prompt does not have."""
NEVER = {
    "changing list": around("{{ rest[0].role }}" + SAID, "{% set rest = messages[1:] %}"),
    "length": around(SAID + "{{ loop.length }}"),
    "all messages": around(SAID + "{{ messages|length }}"),
    "from the end": around(SAID + "{{ loop.revindex }}"),
    "changed": around(SAID + "{{ loop.changed(m.role) }}"),
    "generation prompt": around(SAID + "{% if loop.last and add_generation_prompt %}<a>{% endif %}"),
    "macro": "{% macro say(m) %}" + SAID + "{{ messages|length }}{% endmacro %}" + around("{{ say(m) }}"),
    "macro that takes all": "{% macro say(n) %}"
    + SAID
    + "{{ messages[n + 1].role }}{% endmacro %}"
    + around("{{ say(loop.index0) }}"),
    "macro with the prompt": "{% macro say(m) %}{{ m.content }}{{ add_generation_prompt }}{% endmacro %}"
    + around("{{ say(m) }}"),
    "two macros": "{% if messages|length > 3 %}{% macro say(m) %}a{% endmacro %}{% else %}"
    "{% macro say(m) %}b{% endmacro %}{% endif %}" + around("{{ say(m) }}"),
    "call": "{% macro say() %}{{ caller() }}{% endmacro %}" + around("{% call say() %}{{ m.content }}{% endcall %}"),
    "filtered": "{% for m in messages if m.role != 'tool' %}" + SAID + "{% endfor %}" + OPEN,
    "hidden name": around(SAID + "{{ self }}"),
    "hidden loop": around(SAID + "{% for c in 'ab' if loop.last %}{{ c }}{% endfor %}"),
}
"""Templates that are not divided, or whose loop never begins with the same values."""


def others() -> Iterator[str]:
    """Templates at hand: those of the tokenizers, and those that trl brings."""
    for folder in sorted(Path(REALDATA, "tokenizers").iterdir()) if REALDATA else []:
        config = json.loads((folder / "tokenizer_config.json").read_text())
        source = config.get("chat_template") or (folder / "chat_template.jinja").read_text()
        yield source
    trl = find_spec("trl")
    for place in trl.submodule_search_locations if trl and trl.submodule_search_locations else ():
        for file in sorted(Path(place, "chat_templates").glob("*.jinja")):
            yield file.read_text()


@st.composite
def conversations(draw: st.DrawFn) -> tuple[Messages, list[int], Any]:
    """Messages, how many of them each prompt has, and tools."""
    texts = st.sampled_from(["a", "b", "", " c\n", "<think>d</think>e", "<tool_response>f</tool_response>"])
    messages: Messages = []
    if draw(st.booleans()):
        messages.append({"role": "system", "content": draw(texts)})
    for _ in range(draw(st.integers(1, 4))):
        messages.append({"role": "user", "content": draw(texts)})
        for _ in range(draw(st.integers(0, 2))):
            call = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": {"x": draw(texts)}}}
            messages.append({"role": "assistant", "content": draw(texts), "tool_calls": [call]})
            messages.append({"role": "tool", "name": "f", "tool_call_id": "call00000", "content": draw(texts)})
        messages.append({"role": "assistant", "content": draw(texts)})
    tools = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}]
    cuts = draw(st.sets(st.integers(1, len(messages) - 1), min_size=1, max_size=3))
    return messages, sorted(cuts), tools if draw(st.booleans()) else None


def prompts(source: str, examples: int) -> list[bool]:
    """Compare the shared prompts of random conversations with jinja2's; return of each whether there was one."""
    template = ChatTemplate(source, VARIABLES, "t", "2024-07-26")
    marker = Marker(template)
    shared = []

    @settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
        derandomize=True,
    )
    @given(conversations())
    def compare(row: tuple[Messages, list[int], Any]) -> None:
        messages, cuts, tools = row
        chat, own_tools = marker.own(messages), marker.tools(tools)
        try:
            marked = marker.render(chat, own_tools, cuts=cuts)
        except RowRejectedError:
            return
        plain = marker.render(chat, own_tools)
        assert (marked.text, marked.words) == (plain.text, plain.words)
        assert marked.text == template.render(messages, tools)
        marker.render(chat, own_tools, cuts=cuts)
        for cut in cuts:
            try:
                text = marker.prompt(chat[:cut], own_tools)
            except RowRejectedError:
                with pytest.raises(RowRejectedError):
                    template.render(messages[:cut], tools, add_generation_prompt=True)
                continue
            shared.append(text is not None)
            if text is not None:
                assert text == template.render(messages[:cut], tools, add_generation_prompt=True)

    compare()
    return shared


@pytest.mark.parametrize("name", SHARED)
def test_prompts_that_are_always_shared(name: str) -> None:
    found = prompts(SHARED[name], 40)
    assert found
    assert all(found)


@pytest.mark.parametrize("name", SOMETIMES)
def test_prompts_that_are_shared_where_nothing_differs(name: str) -> None:
    assert set(prompts(SOMETIMES[name], 60)) == {True, False}


@pytest.mark.parametrize("name", NEVER)
def test_prompts_that_are_never_shared(name: str) -> None:
    assert not any(prompts(NEVER[name], 10))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_prompts_of_templates_at_hand(part: int) -> None:
    sources = list(others())[part::4]
    if not sources:
        pytest.skip("there is none")
    divided = [one for one in sources if Marker(ChatTemplate(one, VARIABLES, "t", "2024-07-26")).divided]
    assert divided
    for source in divided:
        prompts(source, 40)


def test_a_prompt_of_another_conversation_is_not_taken() -> None:
    marker = Marker(ChatTemplate(SHARED["plain"], VARIABLES, "t"))
    rows = [[{"role": "user", "content": text}, {"role": "assistant", "content": "x"}] for text in ("a", "b")]
    chats = [marker.own(row) for row in rows]
    for chat in chats:
        marker.render(chat, None, cuts=[1])
    assert marker.prompt(chats[0][:1], None) is None
    assert marker.prompt(chats[1], None) is None
    text = marker.prompt(chats[1][:1], None)
    assert text == "<user>b<a>0T"


def test_a_conversation_that_was_refused_gives_no_prompt() -> None:
    source = around(SAID, "") + "{% if messages|length > 3 %}{{ raise_exception('long') }}{% endif %}"
    marker = Marker(ChatTemplate(source, VARIABLES, "t"))
    row = [{"role": "user", "content": text} for text in "abcd"]
    marker.render(marker.own(row[2:]), None, cuts=[1])
    chat = marker.own(row)
    with pytest.raises(RowRejectedError):
        marker.render(chat, None, cuts=[1])
    assert marker.prompt(chat[:1], None) is None
    assert marker.texts_before(row * 2, [0, 1, 2, 3, 4, 5], None) == [
        *(None, "<user>a<a>0T", "<user>a<user>b<a>0T", "<user>a<user>b<user>c<a>0T", None, None)
    ]


@pytest.mark.parametrize("name", ["counts", "last question"])
def test_the_prompts_of_all_turns(name: str) -> None:
    template = ChatTemplate((SHARED | SOMETIMES)[name], VARIABLES, "t")
    marker = Marker(template)
    row: Messages = [{"role": role, "content": "ab"[n % 2]} for n, role in enumerate(["user", "assistant"] * 5)]
    for _ in range(2):
        assert marker.texts_before(row, range(1, 10, 2), None) == [
            template.render(row[:index], None, add_generation_prompt=True) for index in range(1, 10, 2)
        ]


def test_shared_text_counts_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    # What a prompt may take is the same, whether its loop runs again or not.
    source = around("{% for i in range(100) %}{% endfor %}" + SAID)
    template = ChatTemplate(source, VARIABLES, "t", on_limit="reject")
    marker = Marker(template)
    chat = marker.own([{"role": "user", "content": "a"}] * 9 + [{"role": "assistant", "content": "b"}])
    marker.render(chat, None, cuts=[9])
    monkeypatch.setattr(limits, "MAX_STEPS", 800)
    with pytest.raises(RowRejectedError, match="steps"):
        template.render([{"role": "user", "content": "a"}] * 9, None, add_generation_prompt=True)
    with pytest.raises(RowRejectedError, match="steps"):
        marker.prompt(chat[:9], None)
