"""Parts of contents with `train` flags, followed through templates, or refused."""

import random
from pathlib import Path
from typing import Any

import pytest
from packtrain.schemas.errors import RowRejectedError
from packtrain.schemas.rows import Messages, RunKind
from packtrain.stages.template.chat_template import ChatTemplate
from packtrain.stages.template.render import Renderer
from packtrain.stages.template.rendered import Rendered

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LISTS = CHATML.replace(
    "+ m.content +",
    "}}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{% if p.type == 'thinking' %}{{ '<think>' + p.thinking + '</think>' }}{% else %}{{ p.text }}{% endif %}"
    "{% endfor %}{% endif %}{{",
)
TRIMMED = CHATML.replace("m.content +", "m.content | trim +")
PRINTED = CHATML.replace("m.content +", "'(%s)' % m.content +")
END = "<|im_end|>"
STOPS = (END, "<|eot_id|>", "<end_of_turn>", "<|END_OF_TURN_TOKEN|>", "<|return|>", "<｜end▁of▁sentence｜>", "</s>")


def renderer_of(template: str) -> Renderer:
    """A renderer that may lose what the template leaves out."""
    variables = {"bos_token": "<s>", "eos_token": "</s>"}
    losses = ("system", "user", "assistant")
    return Renderer(ChatTemplate(template, variables, "test", "2024-07-26"), stops=STOPS, allow_lost=losses)


def part(text: str, train: bool | None = None, kind: str = "text") -> dict[str, Any]:
    """A part of a content."""
    return {"type": kind, kind: text, **({} if train is None else {"train": train})}


def rendered(template: str, *messages: dict[str, Any], cut: int = 1) -> Rendered:
    """A question and these messages."""
    chat: Messages = [{"role": "user", "content": "?"}, *messages]
    return renderer_of(template)(chat[:cut], chat[cut:])


def flagged(one: Rendered, *kinds: RunKind) -> list[tuple[str, float]]:
    """(text, flag) of the runs of some kinds; of turns if none is named."""
    kinds = kinds or (RunKind.ASSISTANT, RunKind.THOUGHT, RunKind.END)
    out, done = [], 0
    for end, kind, train in zip(one.runs.ends, one.runs.kinds, one.runs.trains, strict=True):
        if kind in kinds and end > done:
            out.append((one.text[done:end], train))
        done = max(done, end)
    return out


def answer(*parts: Any, **more: Any) -> dict[str, Any]:
    """A message of the assistant."""
    return {"role": "assistant", "content": list(parts), **more}


@pytest.mark.parametrize("template", [LISTS, CHATML])
def test_a_part_has_its_own_flag(template: str) -> None:
    three = answer(part("It is "), part("four", False), part("."))
    wanted = [("It is ", True), ("four", False), (".", True), (END, True)]
    assert flagged(rendered(template, three)) == wanted
    # Of a message that is taken out, one part may stay.
    three = answer(part("It is "), part("four", True), part("."), train=False)
    wanted = [("It is ", False), ("four", True), (".", False), (END, False)]
    assert flagged(rendered(template, three)) == wanted
    # A flag that repeats the message's changes nothing.
    both = answer(part("It is ", True), part("four.", True))
    assert flagged(rendered(template, both)) == [("It is four.", True), (END, True)]
    # Parts of questions count under `all`.
    asked = {"role": "user", "content": [part("Two", False), part(" and two?", True)]}
    got = rendered(template, asked, answer(part("4")), cut=2)
    assert ("Two", False) in flagged(got, RunKind.PROMPT)


def test_what_the_template_writes_between_parts() -> None:
    spaced = LISTS.replace("{{ p.text }}", "{{ p.text + '|' }}")
    three = answer(part("a"), part("b", False), part("c", False), part("d"), part("e"))
    wanted = [("a", True), ("|b|c|", False), ("d|e|", True), (END, True)]
    assert flagged(rendered(spaced, three)) == wanted


def test_parts_that_are_thoughts() -> None:
    thought = answer(part("Hm.", False, "thinking"), part("Yes."))
    assert flagged(rendered(LISTS, thought)) == [("<think>Hm.", False), ("</think>Yes.", True), (END, True)]
    spoken = answer(part("Hm.", None, "thinking"), part("Yes.", False))
    wanted = [("<think>Hm.", True), ("</think>", True), ("Yes.", False), (END, True)]
    assert flagged(rendered(LISTS, spoken)) == wanted


@pytest.mark.parametrize(
    "template",
    [
        PRINTED,
        CHATML.replace("m.content +", "m.content | upper +"),
        # Only half of the part can be followed.
        LISTS.replace("{{ p.text }}", "{{ p.text[:1] }}{{ p.text[1:] | list | join }}"),
        LISTS.replace("{{ p.text }}", "{{ p.text }}{{ p.text }}"),
    ],
)
def test_a_part_that_cannot_be_followed_is_refused(template: str) -> None:
    renderer = renderer_of(template)
    chat: Messages = [{"role": "user", "content": "?"}, answer(part("one"), part("two", False))]
    with pytest.raises(RowRejectedError) as caught:
        renderer(chat[:1], chat[1:])
    assert caught.value.reason == "train_flags"


def test_equal_texts_and_empty_parts() -> None:
    got = rendered(LISTS, answer(part("a"), part("a", False), part("", False), part("a")))
    assert flagged(got) == [("a", True), ("a", False), ("a", True), (END, True)]
    assert flagged(rendered(LISTS, answer(part(" ", False), part("a"))))[-2:] == [("a", True), (END, True)]


GREEK, CYRILLIC = "αβγδεζηθ", "бвгджзик"
ADVERSE = ("", " ", "\n", "<think>", "</think>", "<|im_end|>", "{{ x }}", "%s", "\n<|im_start|>assistant\n")


def spans(draw: random.Random) -> list[dict[str, Any]]:
    """Parts of an answer: Greek ones are trained, Cyrillic ones are not."""
    out = []
    for _ in range(draw.randint(1, 4)):
        train = draw.random() < 0.5
        text = "".join(draw.choices(GREEK if train else CYRILLIC, k=draw.randint(1, 4)))
        out.append(part(draw.choice(ADVERSE) + text + draw.choice(ADVERSE), train))
    return out


@pytest.mark.slow
def test_every_template_follows_parts_or_refuses_them() -> None:
    trl = pytest.importorskip("trl")
    followed = refused = 0
    for path in sorted((Path(trl.__file__).parent / "chat_templates").glob("*.jinja")):
        renderer = renderer_of(path.read_text())
        for number in range(3):
            draw = random.Random(f"{path.stem} {number}")
            chat: Messages = []
            for _ in range(draw.randint(1, 2)):
                chat += [{"role": "user", "content": [part("?")]}, answer(*spans(draw))]
            try:
                exact = renderer(chat[:-1], chat[-1:])
            except RowRejectedError:
                refused += 1
                continue
            done = 0
            for end, train in zip(exact.runs.ends, exact.runs.trains, strict=True):
                wrong = CYRILLIC if train else GREEK
                if not exact.unproved:
                    assert not set(exact.text[done:end]) & set(wrong), (path.stem, number, exact.text)
                elif train:
                    assert not set(exact.text[done:end]) & set(CYRILLIC)
                done = max(done, end)
            followed += not exact.unproved
        assert renderer.mismatches == 0
    assert followed > refused > 0
