"""Words: what separates them, and that case, punctuation and Unicode forms do not matter."""

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.stages.overlap.pieces import excerpt, word_places
from packtrain.stages.overlap.words import normalised, words_of

from tests.support.examples import examples


def said(text: str) -> list[str]:
    """The words of one text."""
    words = words_of([text])
    return [words.bytes_of(at, 1).decode() for at in range(len(words))]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        (" \n\t .,;", []),
        ("Two  WORDS,\nhere!", ["two", "words", "here"]),
        ("snake_case a+b 3.5", ["snake", "case", "a", "b", "3", "5"]),
        ("Straße STRASSE", ["strasse", "strasse"]),
        ("e\u0301t\u00e9", ["\u00e9t\u00e9"]),  # both forms of an accent
        ("\uff21\uff22\uff11 \ufb01x", ["ab1", "fix"]),  # full width, ligature
        ("\u201cquoted\u201d\u2014dash\u2026end", ["quoted", "dash", "end"]),
        ("soft\u00adhyphen zero\u200bwidth", ["softhyphen", "zero", "width"]),
        ("\u65e5\u672c\u8a9ex", ["\u65e5", "\u672c", "\u8a9e", "x"]),  # no spaces between words
        ("\u0928\u092e\u0938\u094d\u0924\u0947 a", ["\u0928\u092e\u0938\u094d\u0924\u0947", "a"]),  # vowel signs stay
        ("\x00a\x00b", ["a", "b"]),
    ],
)
def test_words(text: str, words: list[str]) -> None:
    assert said(text) == words


@given(st.lists(st.text(max_size=30), max_size=6))
@examples(200)
def test_texts_do_not_change_each_other(texts: list[str]) -> None:
    words = words_of(texts)
    assert [
        words.bytes_of(int(first), int(last - first)).split()
        for first, last in zip(words.texts[:-1], words.texts[1:], strict=True)
    ] == [[word.encode() for word in said(text)] for text in texts]


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=60))
@examples(200)
def test_case_and_unicode_form_do_not_matter(text: str) -> None:
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        assert said(unicodedata.normalize(form, text)) == said(unicodedata.normalize("NFKC", text))
    assert said(text.casefold()) == said(text)


@given(st.text(max_size=60))
@examples(200)
def test_the_rule_is_one_rule(text: str) -> None:
    """Without characters that vanish or stand alone, a word is a run of letters, digits and marks."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    kinds = {char: unicodedata.category(char) for char in folded}
    words = "".join(
        char if kinds[char][0] in "LMN" else " " for char in folded if kinds[char] != "Cf" or char == "\u200b"
    )
    assert "".join(said(text)) == words.replace(" ", "")
    if folded.isascii():
        assert said(text) == re.findall("[a-z0-9]+", folded)


@given(st.text(max_size=60))
@examples(200)
def test_every_word_has_a_place_in_the_text(text: str) -> None:
    places = word_places(text)
    assert len(places) == len(said(text))
    assert all(0 <= begin < end <= len(text) for begin, end in places)
    for (begin, end), word in zip(places, said(text), strict=True):
        assert word in said(text[begin:end])


def test_an_excerpt_marks_what_is_shared() -> None:
    text = "one two THREE, four. five"
    assert excerpt(text, [(1, 2)]) == ([("one ", False), ("two THREE", True), (", four. five", False)], False)
    long = "word " * 5000 + "found it"
    pieces, cut = excerpt(long, [(5000, 2)])
    assert cut
    assert pieces[-1] == ("found it", True)
    assert sum(len(piece) for piece, _ in pieces) < 2000
    assert normalised("plain") == "plain"
