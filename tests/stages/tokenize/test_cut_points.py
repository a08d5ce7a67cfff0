"""Which tokens end lines and paragraphs, for vocabularies of every kind, and where that allows a cut."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.schemas.errors import TokenizerError
from packtrain.stages.tokenize.cut_points import BLANK, LINE, WHITE, Breaks, line_places, token_bits

from tests.support.examples import examples


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("", 0),
        (" ", WHITE),
        ("\n", WHITE | LINE),
        ("\r\n", WHITE | LINE),
        (".\n  ", LINE),
        ("\n\n", WHITE | LINE | BLANK),
        (")\n \n", LINE | BLANK),
        ("\r\n\r\n", WHITE | LINE | BLANK),
        ("\n\nword", 0),
    ],
)
def test_bits(text: str, bits: int) -> None:
    assert token_bits(text) == bits


def tokenizer_json(vocab: object, pre: object, added: tuple[tuple[int, str], ...] = ()) -> str:
    return json.dumps(
        {
            "added_tokens": [
                {"id": i, "content": c, "special": True, "normalized": False, "lstrip": False, "rstrip": False}
                for i, c in added
            ],
            "normalizer": None,
            "pre_tokenizer": pre,
            "model": {"type": "BPE", "vocab": vocab, "merges": []},
        }
    )


def test_vocabularies() -> None:
    level = {"type": "ByteLevel", "add_prefix_space": False}
    breaks = Breaks.from_json(tokenizer_json({"Ċ": 0, "a": 1, ".ĊĊ": 2, "ĠĠ": 3}, level, ((5, "<e>\n"),)))
    assert breaks.bits.tolist() == [WHITE | LINE, 0, LINE | BLANK, WHITE, 0, LINE, 0]
    # A byte that a word holds is no line end where pieces are text.
    breaks = Breaks.from_json(tokenizer_json({"<0x0A>": 0, "Ċ": 1, "▁": 2, "▁a": 3, "\n\n": 4}, None))
    assert breaks.bits.tolist() == [WHITE | LINE, 0, WHITE, 0, WHITE | LINE | BLANK, 0]
    assert breaks.of(np.array([0, 1, 99], np.int32)).tolist() == [WHITE | LINE, 0, 0]
    breaks = Breaks.from_json(tokenizer_json([["\n", -1.0], ["▁b", -2.0]], None))
    assert breaks.bits.tolist() == [WHITE | LINE, 0, 0]
    with pytest.raises(TokenizerError):
        Breaks.from_json("{}")


@pytest.fixture(scope="module")
def encoder(make_tokenizer: Callable[..., Path]) -> tuple[Breaks, Callable[[str], list[tuple[int, int, int]]]]:
    """The table of a real tokenizer, and what gives (id, first character, one past the last) of a text's tokens."""
    from tokenizers import Tokenizer

    content = (make_tokenizer("tiny") / "tokenizer.json").read_text()
    tokenizer = Tokenizer.from_str(content)

    def encode(text: str) -> list[tuple[int, int, int]]:
        encoding = tokenizer.encode(text, add_special_tokens=False)
        return [(i, a, b) for i, (a, b) in zip(encoding.ids, encoding.offsets, strict=True)]

    return Breaks.from_json(content), encode


@given(text=st.text(alphabet="ab. \n", max_size=60))
@examples(300)
def test_the_places_are_ends_of_lines_of_the_text(
    encoder: tuple[Breaks, Callable[[str], list[tuple[int, int, int]]]], text: str
) -> None:
    """Read off the text itself: what stands before a place ends a line, or a paragraph."""
    breaks, encode = encoder
    tokens = encode(text)
    paragraphs, lines = line_places(breaks.of(np.array([token[0] for token in tokens], np.int32)))
    assert {*paragraphs.tolist()} <= {*lines.tolist()}
    for place in lines.tolist():
        begin = tokens[place][1]
        before = text[:begin]
        after = text[begin:]
        assert before.rstrip(" ").endswith("\n")
        assert after
        is_paragraph = before.rstrip(" ").removesuffix("\n").rstrip(" ").endswith("\n")
        if place in paragraphs:
            assert is_paragraph
    # And none is missed: a cut between two lines of words, where a token begins with the second line.
    for place in range(1, len(tokens)):
        begin = tokens[place][1]
        before = text[:begin]
        after = text[begin:]
        if before.endswith("\n") and after[:1] in ("a", "b", "."):
            assert place in lines
            assert (place in paragraphs) == before.endswith("\n\n") or " \n" in before[-3:]
