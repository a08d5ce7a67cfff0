"""The renderer against apply_chat_template and the prefix rule, on real chats and on traces that lie."""

import functools
import json
import os
from pathlib import Path
from typing import Any

import pytest
from packtrain.schemas.errors import RowRejectedError
from packtrain.schemas.rows import Messages
from packtrain.stages.template import render, trace
from packtrain.stages.template.chat_template import ChatTemplate
from packtrain.stages.template.render import Renderer
from packtrain.stages.template.rendered import Rendered, same

from tests.kit import CHATML

REALDATA = os.environ.get("PACKTRAIN_REALDATA", "")
EVERYTHING = ("system", "user", "assistant", "tool_calls", "tool_results", "tools")
PLAIN = ("gsm8k_train", "oasst_en100_paths")
"""Real chats without tools."""
TOKENIZERS = ("deepseek-coder-instruct", "olmo-gpt-neox", "qwen3")
real = pytest.mark.skipif(not REALDATA, reason="PACKTRAIN_REALDATA is not set")

THINKING = (
    "{% for m in messages %}<{{ m.role }}>{% if loop.last %}<think></think>{% endif %}"
    "{% if '</think>' in m.content %}{{ m.content.split('</think>')[-1] }}"
    "{% else %}{{ m.content }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def user(text: Any) -> dict[str, Any]:
    """A message of the user."""
    return {"role": "user", "content": text}


def assistant(text: Any) -> dict[str, Any]:
    """A message of the assistant."""
    return {"role": "assistant", "content": text}


def shared(first: str, second: str) -> int:
    """How many characters two texts have in common, counted one by one."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(first), len(second)))


@functools.cache
def tokenizer_of(name: str) -> Any:
    """A real tokenizer, by transformers."""
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(Path(REALDATA, "tokenizers", name))


def template_of(name: str) -> ChatTemplate:
    """The same tokenizer's template."""
    tokenizer = tokenizer_of(name)
    return ChatTemplate(tokenizer.chat_template, tokenizer.special_tokens_map, name)


@functools.cache
def chats(name: str, limit: int) -> list[dict[str, Any]]:
    """The first rows of a file of real chats."""
    with Path(REALDATA, "chat", f"{name}.jsonl").open(encoding="utf-8") as file:
        return [json.loads(line) for line, _ in zip(file, range(limit), strict=False)]


def expected(tokenizer: Any, prompt: Messages, completion: Messages, tools: Any = None) -> tuple[str, int]:
    """The text, and how many characters it shares with the prompt's."""
    text = tokenizer.apply_chat_template(prompt + completion, tools=tools, tokenize=False)
    head = tokenizer.apply_chat_template(prompt, tools=tools, tokenize=False, add_generation_prompt=True)
    return text, shared(head, text)


def agrees(got: Rendered, wanted: tuple[str, int]) -> bool:
    """Whether the completion begins where the prompt's text ends; of a prompt that is rendered differently alone, later
    than that.
    """
    return got.text == wanted[0] and got.begin >= wanted[1]


@real
@pytest.mark.parametrize("data", [*PLAIN, "sgd_dev", "tau_bench_gpt4o_airline"])
@pytest.mark.parametrize("name", TOKENIZERS)
def test_real_chats(name: str, data: str) -> None:
    """Whole conversations, and beginnings of them, with completions that do not begin with the assistant among them."""
    tokenizer = tokenizer_of(name)
    renderer = Renderer(template_of(name), allow_lost=EVERYTHING)
    refused = count = 0
    for row in chats(data, 40):
        messages, tools = row["messages"], row.get("tools")
        for cut, last in {(len(messages) - 1, len(messages)), *((cut, 5) for cut in (1, 2, 3) if len(messages) > 5)}:
            count += 1
            prompt, completion = messages[:cut], messages[cut:last]
            try:
                wanted = expected(tokenizer, prompt, completion, tools)
            except Exception:
                refused += 1
                with pytest.raises(RowRejectedError):
                    renderer(prompt, completion, tools)
            else:
                got = renderer(prompt, completion, tools)
                assert agrees(got, wanted)
                # Qwen3 writes an empty thought before a last answer; a prompt that ends with one is another text.
                odd = name == "qwen3" and prompt[-1]["role"] == "assistant"
                assert odd or data not in PLAIN or got.begin == wanted[1]
    assert refused < count
    assert data not in PLAIN or renderer.traced > 10
    assert renderer.mismatches == 0


@pytest.mark.parametrize("source", [CHATML, THINKING])
@pytest.mark.parametrize("trace_rows", [True, False])
def test_where_the_completion_begins(source: str, trace_rows: bool) -> None:
    renderer = Renderer(ChatTemplate(source, {}, "t"), trace=trace_rows)
    for index in range(8):
        question, reply = user(f"2+{index}?"), assistant(f"{2 + index}")
        text, begin = renderer([question], [reply])[:2]
        opening = "<|im_start|>assistant\n" if source is CHATML else "<assistant>"
        assert begin == text.index(opening) + len(opening)
        alone = renderer.template.render([question])
        assert renderer([question], [])[:2] == (alone, len(alone))
        assert renderer([], [question, reply])[:2] == (text, 0)
    assert (renderer.traced > 0) == trace_rows


def test_position_that_depends_on_the_data() -> None:
    # The generation prompt meets the content itself.
    source = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}abc{% endif %}"
    renderer = Renderer(ChatTemplate(source, {}, "t"))
    for reply, begin in [("abcd", 4), ("x", 1), ("abx", 3), ("", 1), ("abc", 4), ("a", 2)] * 2:
        assert renderer([user("q")], [assistant(reply)])[:2] == ("q" + reply, begin)
    assert renderer.mismatches == renderer.traced == 0  # what is proved of some contents only is never traced


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "x", "name": "y"},
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {"role": "user", "content": 3},
        {"role": 3, "content": "x"},
        {"role": "user", "content": None},
        {"role": "user"},
        {"role": "user", "content": "x", "tool_calls": None},
    ],
)
def test_messages_of_another_make_go_to_jinja2(message: dict[str, Any]) -> None:
    source = "{% for m in messages %}{{ m.role }}{{ m.content }}{{ m.name }}{% endfor %}"
    renderer = Renderer(ChatTemplate(source, {}, "t"))
    for _ in range(5):
        assert same(renderer([message], [assistant("z")]), renderer.untraced([message], [assistant("z")]))
    assert renderer.traced == 0


# A lie: with `in` unwatched, `content in "literal"` is answered by C from the mark, and no guard is noted.
LIAR = "{% for m in messages %}{% if m.content in 'yes, sir' %}Y{% else %}N{% endif %}{% endfor %}"


def unwatched(value: Any, container: Any) -> bool:
    """`in` as Python has it."""
    return value in container


def test_a_trace_that_lies_is_found_by_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_is_in", unwatched)
    monkeypatch.setattr(render, "CHECK", 0xF)
    renderer = Renderer(ChatTemplate(LIAR + "{{ messages[0].content }}", {}, "t"))
    answers = {}
    for word in ["yes", "sir", *map(str, range(200)), *"yes, sir"]:
        found = renderer.mismatches
        text = renderer([user(word)], []).text
        answers[word] = text
        if renderer.mismatches > found:
            assert text == "Y" + word  # who is caught gets the exact answer
    assert 0 < renderer.mismatches < 10
    # Who is looked at does not depend on who came before.
    again = Renderer(renderer.template)
    for word in sorted(answers):
        assert again([user(word)], []).text == answers[word]
