"""Thoughts, tool calls and answers within located turns: what the data said, found again in every template's text.

Thoughts are written in Greek letters, answers in Cyrillic ones and calls in Armenian ones, so that the letters of a run
show whether it is right, however a template writes it.
"""

import functools
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from packtrain.schemas.errors import RowRejectedError
from packtrain.schemas.rows import PART_KINDS, Messages, RunKind
from packtrain.stages.template.chat_template import ChatTemplate
from packtrain.stages.template.render import Renderer
from packtrain.stages.template.rendered import Rendered, whole

REALDATA = os.environ.get("PACKTRAIN_REALDATA", "")
STOPS = (
    *("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|END_OF_TURN_TOKEN|>", "<|return|>", "<|end|>", "<|call|>"),
    *("<｜end▁of▁sentence｜>", "<turn|>", "</s>", "<|EOT|>", "<|endoftext|>"),
)
LOSSES = ("system", "user", "assistant", "tool_calls", "tool_results", "tools")
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
KEPT = (  # writes fields, thoughts of earlier turns too
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.reasoning_content %}{{ '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}"
    "{{ '\n<call>' + c.function.name + ' ' + c.function.arguments | tojson + '</call>' }}"
    "{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
OPENED = KEPT.replace("'<|im_start|>assistant\n' }}{% endif %}", "'<|im_start|>assistant\n<think>\n' }}{% endif %}")
LONG = {"T": RunKind.THOUGHT, "A": RunKind.ASSISTANT, "C": RunKind.TOOL_CALL, "M": RunKind.MIXED, "E": RunKind.END}
SHORT = {
    **{kind: letter for letter, kind in LONG.items()},
    RunKind.HISTORY_THOUGHT: "t",
    RunKind.HISTORY: "a",
    RunKind.HISTORY_CALL: "c",
    RunKind.HISTORY_MIXED: "m",
    RunKind.HISTORY_END: "e",
}


def renderer_of(template: str) -> Renderer:
    """A renderer that may lose what the template leaves out."""
    variables = {"bos_token": "<s>", "eos_token": "</s>"}
    return Renderer(ChatTemplate(template, variables, "test", "2024-07-26"), stops=STOPS, allow_lost=LOSSES)


def pieces(rendered: Rendered) -> list[tuple[str, str]]:
    """(letter of the kind, text) of the runs of turns."""
    out, done = [], 0
    for end, kind in zip(rendered.runs.ends, rendered.runs.kinds, strict=True):
        if kind in SHORT and end > done:
            out.append((SHORT[RunKind(kind)], rendered.text[done:end]))
        done = max(done, end)
    return out


def said(renderer: Renderer, *messages: dict[str, Any]) -> list[tuple[str, str]]:
    """The pieces of the turns of a conversation."""
    chat: Messages = [{"role": "user", "content": "?"}]
    for message in messages:
        chat += [{"role": "assistant", **message}, {"role": "user", "content": "?"}]
    del chat[-1]
    made = renderer(chat[:-1], chat[-1:])
    assert made.unproved == ""
    return pieces(made)


CALL = {"type": "function", "id": "123456789", "function": {"name": "find", "arguments": {"what": "mules"}}}
STRANGE = ["", " ", "\n\n", None]


@pytest.mark.parametrize(
    ("template", "message", "wanted"),
    [
        # Tags that the data brings along.
        (CHATML, {"content": "<think>Hm.</think>Yes."}, [("T", "<think>Hm."), ("A", "</think>Yes.")]),
        (CHATML, {"content": "Hm.</think>Yes."}, [("T", "Hm."), ("A", "</think>Yes.")]),
        (CHATML, {"content": "\n<think>Hm."}, [("T", "\n<think>Hm.")]),
        (CHATML, {"content": "Say <think>."}, [("A", "Say <think>.")]),
        (CHATML, {"content": "<think>\n\n</think>\n\nYes."}, [("A", "<think>\n\n</think>\n\nYes.")]),
        (CHATML, {"content": "</think>Yes."}, [("A", "</think>Yes.")]),
        (
            CHATML,
            {"content": "<think>a<think>b</think>c</think>d"},
            [("T", "<think>a<think>b"), ("A", "</think>c</think>d")],
        ),
        (
            CHATML,
            {"content": "a<think>b</think>c<think>d\n</think>e"},
            [("A", "a"), ("T", "<think>b"), ("A", "</think>c"), ("T", "<think>d\n"), ("A", "</think>e")],
        ),
        # A field that the template writes; tags in it are words.
        (
            KEPT,
            {"reasoning_content": "Hm.", "content": "Yes."},
            [("T", "<think>\nHm.\n"), ("A", "</think>\n\nYes.")],
        ),
        (
            KEPT,
            {"reasoning": "So</think>so<think>", "content": "A </think>tag."},
            [("T", "<think>\nSo</think>so<think>\n"), ("A", "</think>\n\nA </think>tag.")],
        ),
        (KEPT, {"thinking": "Yes.", "content": "Yes."}, [("T", "<think>\nYes.\n"), ("A", "</think>\n\nYes.")]),
        (KEPT, {"reasoning_content": "Hm.", "content": ""}, [("T", "<think>\nHm.\n"), ("A", "</think>\n\n")]),
        (KEPT, {"reasoning_content": " \n", "content": "Yes."}, [("A", "<think>\n \n\n</think>\n\nYes.")]),
        *((KEPT, {"reasoning_content": blank, "content": "Yes."}, None) for blank in ("", None)),
        # The generation prompt opens the thought.
        (OPENED, {"reasoning_content": "Hm.", "content": "Yes."}, [("T", "Hm.\n"), ("A", "</think>\n\nYes.")]),
        # Calls, with and without something before them.
        (
            KEPT,
            {"content": "Yes.", "tool_calls": [CALL, CALL]},
            [("A", "Yes."), ("C", '\n<call>find {"what": "mules"}</call>\n<call>find {"what": "mules"}</call>')],
        ),
        (KEPT, {"content": "", "tool_calls": [CALL]}, [("C", '\n<call>find {"what": "mules"}</call>')]),
        (
            KEPT,
            {"content": "", "reasoning_content": "<call>", "tool_calls": [CALL]},
            [("T", "<think>\n<call>\n"), ("A", "</think>\n\n\n"), ("C", '<call>find {"what": "mules"}</call>')],
        ),
        (
            KEPT,
            {"content": "<think>Hm.</think>", "tool_calls": [CALL]},
            [("T", "<think>Hm."), ("A", "</think>"), ("C", '\n<call>find {"what": "mules"}</call>')],
        ),
        (
            KEPT,
            {
                "content": "",
                "tool_calls": [{"type": "function", "function": {"name": "x", "arguments": {"q": "</think>"}}}],
            },
            [("C", '\n<call>x {"q": "</think>"}</call>')],
        ),
    ],
)
def test_what_belongs_to_what(template: str, message: dict[str, Any], wanted: list[tuple[str, str]] | None) -> None:
    renderer = renderer_of(template)
    assert said(renderer, message) == [*(wanted or [("A", "Yes.")]), ("E", "<|im_end|>")]
    early = [(letter.lower(), text) for letter, text in [*(wanted or [("A", "Yes.")]), ("E", "<|im_end|>")]]
    assert said(renderer, message, {"content": "End."}) == [*early, ("A", "End."), ("E", "<|im_end|>")]


@pytest.mark.parametrize(
    ("write", "content"),
    [
        # A field that is printed in a way that cannot be followed, in the text or beside it.
        ("{{ '(%s)' % m.reasoning_content }}{{ m.content }}", "Yes."),
        # Tags of the data that become something else.
        ("{{ m.content | replace('<think>', '(') | replace('</think>', ')') }}", "<think>Hm.</think>Yes."),
    ],
)
def test_a_thought_that_cannot_be_followed_is_not_guessed(write: str, content: str) -> None:
    template = CHATML.replace(
        "+ m.content +", "}}{% if m.role == 'user' %}{{ m.content }}{% else %}" + write + "{% endif %}{{"
    )
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if "reasoning" in write:
        message["reasoning_content"] = "Hm."
    renderer = renderer_of(template)
    chat = [{"role": "user", "content": "?"}, message]
    got = renderer(chat[:1], chat[1:])
    assert got.mixed
    assert got.unproved or set(got.runs.kinds) & {RunKind.MIXED}


def test_a_thought_that_the_template_drops_leaves_the_rest_whole() -> None:
    renderer = renderer_of(CHATML)
    assert said(renderer, {"reasoning_content": "Hm.", "content": "Yes."}) == [("A", "Yes."), ("E", "<|im_end|>")]
    dropping = CHATML.replace("m.content +", "m.content.split('</think>')[-1] +")
    message = {"content": "<think>a</think>banana"}
    assert said(renderer_of(dropping), message) == [("A", "banana"), ("E", "<|im_end|>")]


# --- every template at hand ---

GREEK, CYRILLIC, ARMENIAN = "αβγδεζηθ", "бвгджзик", "աբգդեզէը"
ADVERSE = (
    "<think>",
    "</think>",
    "\n",
    "  ",
    "<|im_end|>",
    "</tool_call>",
    "{{ x }}",
    "%s",
    "<|end|>",
    "\n\n</think>\n\n",
)
KEYS = ("reasoning_content", "thinking", "reasoning")


def words(draw: random.Random, letters: str) -> str:
    """Some words of these letters."""
    return " ".join("".join(draw.choices(letters, k=draw.randint(1, 4))) for _ in range(draw.randint(1, 3)))


def adverse(draw: random.Random, letters: str) -> str:
    """Such words, among pieces that a template might take for its own."""
    parts = [words(draw, letters)]
    for _ in range(draw.randint(0, 2)):
        parts.insert(draw.randint(0, len(parts)), draw.choice(ADVERSE))
    return "".join(parts)


def answer(draw: random.Random, *, calls: bool) -> dict[str, Any]:
    """A message of the assistant with a thought in a field, between tags, or none, and perhaps a call."""
    form = draw.choice(("plain", "field", "field", "tags", "blank"))
    message: dict[str, Any] = {"role": "assistant", "content": words(draw, CYRILLIC)}
    if form == "field":
        message[draw.choice(KEYS)] = adverse(draw, GREEK)
    elif form == "tags":
        space = draw.choice(("", "\n"))
        message["content"] = f"<think>{space}{words(draw, GREEK)}{space}</think>{space * 2}{message['content']}"
    elif form == "blank":
        message[draw.choice(KEYS)] = draw.choice(STRANGE)
    if calls:
        if draw.random() < 0.5 and form != "tags":
            message["content"] = ""
        arguments = {"what": words(draw, ARMENIAN)}
        message["tool_calls"] = [
            {"type": "function", "id": "123456789", "function": {"name": "find", "arguments": arguments}}
        ]
    return message


def talk(draw: random.Random) -> Messages:
    """A conversation whose last message is the assistant's."""
    out: Messages = []
    for _ in range(draw.randint(1, 3)):
        out.append({"role": "user", "content": "what?"})
        if draw.random() < 0.4:
            out.append(answer(draw, calls=True))
            if draw.random() < 0.2:
                return out
            out.append({"role": "tool", "name": "find", "content": "12", "tool_call_id": "123456789"})
        out.append(answer(draw, calls=False))
    return out


@functools.cache
def templates() -> dict[str, str]:
    """The templates of TRL's wheel, and those of the real tokenizers."""
    found = {}
    trl = pytest.importorskip("trl")
    for path in sorted((Path(trl.__file__).parent / "chat_templates").glob("*.jinja")):
        found[path.stem] = path.read_text()
    for name in ("deepseek-coder-instruct", "olmo-gpt-neox", "qwen3") if REALDATA else ():
        config = Path(REALDATA, "tokenizers", name, "tokenizer_config.json")
        found[name] = json.loads(config.read_text())["chat_template"]
    return found


def belongs(rendered: Rendered) -> bool:
    """Whether each alphabet stands only in runs of its kind."""
    for letter, text in pieces(rendered):
        own = {"T": GREEK, "A": CYRILLIC, "C": ARMENIAN}.get(letter.upper(), "")
        if letter in "Mm":
            continue
        if any(one in text for alphabet in (GREEK, CYRILLIC, ARMENIAN) if alphabet != own for one in alphabet):
            return False
    return True


ROWS = 12
"""Conversations of each template."""


@pytest.mark.slow
def test_every_template_at_hand() -> None:
    """What belongs to a thought, an answer or a call is nowhere else."""
    proved, parts = set(), dict.fromkeys((RunKind.THOUGHT, RunKind.TOOL_CALL, RunKind.HISTORY_CALL), 0)
    mixed = 0
    for name, template in templates().items():
        renderer = renderer_of(template)
        for number in range(ROWS):
            chat = talk(random.Random(f"{name} {number}"))
            try:
                exact = renderer(chat[:-1], chat[-1:])
            except RowRejectedError:
                continue
            if exact.unproved:
                assert PART_KINDS.isdisjoint(exact.runs.kinds)
                continue
            assert belongs(exact), (name, number, pieces(exact))
            assert bool(exact.mixed) == bool({RunKind.MIXED, RunKind.HISTORY_MIXED} & set(exact.runs.kinds))
            assert PART_KINDS.isdisjoint(whole(exact.runs).kinds)
            proved.add(name)
            mixed += bool(exact.mixed)
            for kind in parts:
                parts[kind] += kind in exact.runs.kinds
        assert renderer.mismatches == 0
    assert len(proved) >= 55
    assert min(parts.values()) >= ROWS
    assert mixed <= ROWS


def test_whole_turns_are_as_if_no_part_was_known() -> None:
    """Digests are made of them: an example that was held out, or a duplicate, must stay so."""
    renderer = renderer_of(CHATML)
    for train in (True, False):
        texts = ("<think>a</think>b", "c<think>d</think>", "e</think>f", "<think> </think>g")
        for text in texts:
            said_once: dict[str, Any] = {"role": "assistant", "content": text}
            answers: Messages = [said_once | {"train": train}, said_once]
            asked_once: dict[str, Any] = {"role": "user", "content": "?"}
            chat: Messages = [asked_once, answers[0], asked_once, answers[1]]
            blind = [message | {"content": message["content"].replace("think>", "thunk>")} for message in chat]
            seen, unseen = (renderer(one[:3], one[3:]).runs for one in (chat, blind))
            assert repr(whole(seen)) == repr(whole(unseen))
            assert PART_KINDS.isdisjoint(seen.kinds) == (text == texts[-1])
