"""A tracked string equals its text, and what it remembers is true: character by character, against a plain model."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.stages.template.tracked_str import TrackedStr, join, owned, owner_of, words_of

ALPHABET = "ab \nß<>é🙂"
texts = st.text(ALPHABET, max_size=8)


class Letter(str):
    """One character that knows where it came from; the model that tracked strings are compared with."""

    code: int | None


def letters(text: str, code: int | None) -> list[Letter]:
    """A text as characters of one origin."""
    out = []
    for one in text:
        letter = Letter(one)
        letter.code = code
        out.append(letter)
    return out


Pair = tuple[str, list[Letter]]
"""A tracked or plain string, and its model."""


@st.composite
def pairs(draw: st.DrawFn) -> Pair:
    """A tracked string of some pieces."""
    rope: Any = ""
    model: list[Letter] = []
    for number in range(draw(st.integers(1, 4))):
        text, code = draw(texts), draw(st.sampled_from([None, number]))
        piece = text if code is None else owned(text, code)
        if draw(st.booleans()):
            rope, model = rope + piece, model + letters(text, code)
        else:
            rope, model = piece + rope, letters(text, code) + model
    return rope, model


def holds(rope: str, model: list[Letter]) -> bool:
    """Whether a tracked string has the model's text and no wrong origin of a character. It may have lost origins."""
    if rope != "".join(model) or len(rope) != len(model):
        return False
    for begin, end, code in words_of(rope):
        if not 0 <= begin <= end <= len(rope):
            return False
        if any(letter.code != code for letter in model[begin:end]):
            return False
    return True


def complete(rope: str, model: list[Letter]) -> bool:
    """Whether it has also lost no origin."""
    known = [None] * len(model)
    for begin, end, code in words_of(rope):
        known[begin:end] = [code] * (end - begin)  # type: ignore[list-item]
    return holds(rope, model) and known == [letter.code for letter in model]


@given(pairs(), pairs())
def test_joining_remembers(first: Pair, second: Pair) -> None:
    assert complete(first[0], first[1])
    assert complete(first[0] + second[0], first[1] + second[1])
    assert complete(join([first[0], "-", second[0]]), first[1] + letters("-", None) + second[1])
    assert complete(join([first[0], second[0]], ", "), first[1] + letters(", ", None) + second[1])
    assert type(join(["a", "b"])) is str


@given(pairs(), st.sampled_from([None, " ", "a", "ab\n"]))
def test_stripping_remembers(pair: Pair, chars: str | None) -> None:
    rope, model = pair
    for name in ("strip", "lstrip", "rstrip"):
        left = len(rope) - len(str.lstrip(rope, chars)) if name != "rstrip" else 0
        wanted = getattr(str(json.loads(json.dumps(rope))), name)(chars)
        left = left if wanted else 0
        stripped = getattr(rope, name)(chars)
        assert stripped == wanted
        if wanted:
            assert complete(stripped, model[left : left + len(wanted)])


@given(pairs(), st.integers(-9, 9), st.integers(-9, 9))
def test_slicing_remembers(pair: Pair, low: int, high: int) -> None:
    rope, model = pair
    assert complete(rope[low:high], model[low:high])
    assert complete(rope[low:], model[low:])
    assert complete(rope[:high], model[:high])
    assert holds(rope[::-1], model[::-1])


@given(pairs(), st.sampled_from(["a", "<", "ab", " ", "\n", None]))
def test_splitting_remembers(pair: Pair, separator: str | None) -> None:
    rope, model = pair
    plain = "".join(model)
    for name in ("split", "rsplit"):
        for most in (-1, 1):
            parts = getattr(rope, name)(separator, most)
            assert parts == getattr(plain, name)(separator, most)
            done = 0
            for part in parts:
                low = plain.index(part, done)
                assert complete(part, model[low : low + len(part)])
                done = low + len(part)
    assert rope.splitlines() == plain.splitlines()
    if separator is not None:
        for name in ("partition", "rpartition"):
            head, middle, tail = getattr(rope, name)(separator)
            assert (head, middle, tail) == getattr(plain, name)(separator)
            assert complete(head, model[: len(head)])
            assert complete(tail, model[len(model) - len(tail) :])


@given(texts, st.sampled_from(["a", " ", "ß"]), texts)
def test_what_is_made_of_one_whole_stays_its_own(text: str, old: str, new: str) -> None:
    rope = owned(text, 7)
    for made, wanted in [
        (rope.replace(old, new), text.replace(old, new)),
        (rope.upper(), text.upper()),
        (rope.title(), text.title()),
        (rope.strip(), text.strip()),
        (rope.removeprefix(old), text.removeprefix(old)),
        (rope.removesuffix(old), text.removesuffix(old)),
    ]:
        assert made == wanted
        assert owner_of(made) == 7  # an empty one, too, says where it stands


@pytest.mark.parametrize("text", ["", "abc", "é🙂", " x "])
def test_it_is_the_string(text: str) -> None:
    rope = owned(text, 3)
    assert isinstance(rope, str)
    assert rope == text
    assert hash(rope) == hash(text)
    assert {text: 1}[rope] == 1
    assert bool(rope) == bool(text)
    assert json.dumps({rope: [rope]}) == json.dumps({text: [text]})
    assert str(rope) is rope
    assert f"{rope:>5}" == f"{text:>5}"
    assert "%s|%5s" % (rope, rope) == "%s|%5s" % (text, text)  # noqa: UP031
    assert list(rope) == list(text)
    assert type("".join([rope, "x"])) is str
    assert rope.encode() == text.encode()
    assert (rope in "x" + text, "x" in rope) == (True, False) or "x" in text


def test_a_wrong_operand_is_refused_as_by_a_string() -> None:
    rope: Any = TrackedStr("a")
    rope._words = ()
    for operand in (1, None, b"x", ["a"]):
        with pytest.raises(TypeError):
            rope + operand
        with pytest.raises(TypeError):
            operand + rope
