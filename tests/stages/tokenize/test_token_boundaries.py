"""Boundaries from byte lengths against `tokenizers`' offsets."""

import json
import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from packtrain.schemas.errors import IntegrityError
from packtrain.stages.tokenize.engine_check import fuzz_texts
from packtrain.stages.tokenize.engines import EngineTokens, TokenizersEngine
from packtrain.stages.tokenize.token_boundaries import TokenBoundaries, locate_boundaries
from packtrain.stages.tokenize.vocabulary import ByteLengths

from tests.support.examples import examples

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}


def metaspace(scheme: str) -> dict[str, Any]:
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}


def added(identity: int, content: str, **changes: bool) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"id": identity, "content": content} | flags | changes


def tokenizer_json(vocab: dict[str, int], merges: list[str], **changes: Any) -> str:
    """A BPE tokenizer written out; `changes` go to the model if it has such a key, else to the top."""
    model = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
        "vocab": vocab, "merges": merges,
    }  # fmt: skip
    content: dict[str, Any] = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": BYTE_LEVEL, "post_processor": None, "decoder": None, "model": model,
    }  # fmt: skip
    for key, value in changes.items():
        (model if key in model else content)[key] = value
    return json.dumps(content)


@cache
def trained(kind: str) -> str:
    """A small tokenizer of each family, trained on the fuzz set."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    byte_level = kind != "replace"
    tokenizer = Tokenizer(models.BPE())
    if byte_level:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        if kind.startswith("NF"):
            tokenizer.normalizer = getattr(normalizers, kind)()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
        alphabet = []
    trainer = trainers.BpeTrainer(vocab_size=1200, show_progress=False, initial_alphabet=alphabet, limit_alphabet=400)
    # Words that begin with parts of characters, and answers that merge with what stands before them.
    words = [" 🐍", "\n\n", "é 🐍🐍", ".\n\n", "answer: ", " of the"] * 30
    tokenizer.train_from_iterator([*fuzz_texts([]), *words], trainer)
    content = json.loads(tokenizer.to_str())
    if not byte_level:
        vocab = content["model"]["vocab"]
        for byte in range(256):
            vocab.setdefault(f"<0x{byte:02X}>", len(vocab))
        content["model"]["byte_fallback"] = True
        content["pre_tokenizer"] = None
        content["normalizer"] = {"type": "Sequence", "normalizers": [REPLACE]}
    size = max(content["model"]["vocab"].values()) + 1
    content["added_tokens"] = [
        added(size, "<|im_start|>"),
        added(size + 1, "<|im_end|>"),
        added(size + 2, "ø÷"),
    ]
    return json.dumps(content)


FAMILIES = ["bytes", "NFC", "replace"]


def bounds_of(texts: Sequence[str], places: Sequence[Sequence[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    assert len(texts) == len(places)
    offsets = np.cumsum([0, *map(len, places)]).astype(np.int64)
    return np.asarray([place for row in places for place in row], np.int64), offsets


@cache
def built(content: str) -> tuple[TokenizersEngine, ByteLengths | None]:
    return TokenizersEngine(content), ByteLengths.from_json(content)


def located(
    content: str, texts: Sequence[str], places: Sequence[Sequence[int]], *, table: bool = True
) -> TokenBoundaries:
    """By the table where it is exact; or all by the reference's offsets."""
    engine, lengths = built(content)
    tokens = engine.encode(texts)
    boundaries, boundary_offsets = bounds_of(texts, places)
    byte_lengths = lengths if table else None
    return locate_boundaries(tokens, byte_lengths, texts, boundaries, boundary_offsets, content)


def check(content: str, texts: Sequence[str], places: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Compare every document with the offsets' rule; returns (exact documents, their straddles)."""
    actual = located(content, texts, places)
    expected = located(content, texts, places, table=False)
    assert not expected.exact.any()
    document_of_boundary = np.repeat(np.arange(len(texts)), [len(row) for row in places])
    for boundary in np.flatnonzero(
        (actual.tokens != expected.tokens) | (actual.straddles != expected.straddles)
    ).tolist():
        raise AssertionError((texts[document_of_boundary[boundary]], places[document_of_boundary[boundary]]))
    return int(actual.exact.sum()), int(actual.straddles[actual.exact[document_of_boundary]].sum())


def test_an_added_token_that_is_a_piece_too() -> None:
    # "é" among the pieces is the byte E9, as an added token two bytes: the smaller number, which is never too large. No
    # byte is written ｜, so that piece is never produced but by the added token.
    content = tokenizer_json({"a": 0, "é": 1, "<｜a｜>": 2}, [], added_tokens=[added(1, "é"), added(2, "<｜a｜>")])
    byte_lengths = ByteLengths.from_json(content)
    assert byte_lengths is not None
    assert byte_lengths.lengths.tolist() == [1, 1, 9]


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_family_agrees_with_offsets_on_hostile_text(kind: str) -> None:
    content = trained(kind)
    assert ByteLengths.from_json(content) is not None
    draw = random.Random(7)
    texts = fuzz_texts(["<|im_start|>", "<|im_end|>"])
    places = [[*sorted(draw.randint(0, len(text)) for _ in range(4)), len(text)] for text in texts]
    exact, straddles = check(content, texts, places)
    assert exact > len(texts) * (0.6 if kind == "replace" else 0.9)
    assert straddles > 500


@examples(200)
@given(st.data())
def test_any_text_in_every_family(data: st.DataObject) -> None:
    parts = st.sampled_from(
        ["a", " ", "▁", "é", "e\u0301", "🐍", "\n", "ø÷", "<|im_end|>", "of the", "ﬁ", "q\u0307\u0323", "1"]
    )
    texts = data.draw(st.lists(st.lists(parts, max_size=8).map("".join), min_size=1, max_size=4))
    places = [sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=3))) for text in texts]
    for kind in FAMILIES:
        check(trained(kind), texts, places)


def test_other_tokens_than_the_references_are_an_error() -> None:
    content = trained("NFC")
    texts = ["cafe\u0301"]
    chars, offsets = bounds_of(texts, [[4]])
    wrong = EngineTokens(np.asarray([1, 2], np.int32), np.asarray([0, 2], np.int64))
    with pytest.raises(IntegrityError, match=r"cafe"):
        locate_boundaries(wrong, ByteLengths.from_json(content), texts, chars, offsets, content)


UNSOUND: dict[str, dict[str, Any]] = {
    "Unigram": {"type": "Unigram"},
    "suffix": {"end_of_word_suffix": "</w>"},
    "Lowercase": {"normalizer": {"type": "Lowercase"}},
    "Replace": {"normalizer": REPLACE},
    "prefix": {"pre_tokenizer": BYTE_LEVEL | {"add_prefix_space": True}},
    "Metaspace": {"pre_tokenizer": metaspace("always"), "byte_fallback": True},
    "Prepend": {
        "pre_tokenizer": None,
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, REPLACE]},
        "byte_fallback": True,
    },
    "no bytes": {"pre_tokenizer": {"type": "Digits", "individual_digits": True}},
    "Whitespace": {"pre_tokenizer": {"type": "Whitespace"}},
    "Removed": {
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "behavior": "Removed"}, BYTE_LEVEL]}
    },
    "unknown": {"unk_token": "a"},
    "NFKC": {"normalizer": {"type": "NFKC"}},
    "two of them": {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [BYTE_LEVEL, BYTE_LEVEL]}},
    "no fallback": {"pre_tokenizer": None, "normalizer": REPLACE},
}


@pytest.mark.parametrize("case", UNSOUND)
def test_no_table_where_it_would_be_unsound(case: str) -> None:
    assert ByteLengths.from_json(tokenizer_json({"a": 0, "b": 1}, [], **UNSOUND[case])) is None
