"""The comparison of an engine with the reference finds every engine that differs, and says where."""

import json
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from packtrain.schemas.errors import TokenizerError
from packtrain.stages.tokenize import engines
from packtrain.stages.tokenize.engine_check import compare, fuzz_texts
from packtrain.stages.tokenize.engines import EngineTokens, TokenizersEngine, make_engine

ADDED = ["<|im_start|>", "<|im_end|>"]
# A regular expression that fastokens knows: what stands around it in HARD is what it may overlook.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@cache
def tiny(pre_tokenizer: str = "") -> str:
    """A byte-level BPE; `pre_tokenizer` is JSON."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=ADDED,
    )
    tokenizer.train_from_iterator(fuzz_texts([]), trainer)
    whole = json.loads(tokenizer.to_str())
    if pre_tokenizer:
        whole["pre_tokenizer"] = json.loads(pre_tokenizer)
    return json.dumps(whole)


class Wrong(TokenizersEngine):
    """The reference, but for its last token wherever a text holds a line's end of Windows."""

    def encode(self, texts: Sequence[str]) -> EngineTokens:
        right = super().encode(texts)
        ids = right.ids.copy()
        for i, text in enumerate(texts):
            if "\r\n" in text:
                ids[right.offsets[i + 1] - 1] = 7
        return EngineTokens(ids, right.offsets)


def test_the_texts_are_few_short_and_the_same_every_time() -> None:
    texts = fuzz_texts(ADDED)
    assert texts == fuzz_texts(ADDED)
    whole = "".join(texts)
    assert 100_000 < len(whole.encode()) < 300_000
    assert {ord(c) >> 16 for c in whole} >= {0, 1, 2, 3, 14, 15, 16}
    assert {chr(c) for c in range(0x100)} <= set(whole)
    assert {"", "<|im_end|><|im_end|>", "a<|im_end|>b"} <= set(texts)


def test_a_difference_names_text_and_tokens() -> None:
    reference = make_engine("tokenizers", tiny())
    texts = fuzz_texts(ADDED)
    assert compare(reference.encode(texts), reference, texts) == (0, "")
    texts = ["a", "b\r\n", "c", "\r\n"]
    found = compare(Wrong(tiny()).encode(texts), reference, texts)
    assert found.differing == 2
    assert "'b\\r\\n'" in found.first
    assert "[7]" in found.first


PLAIN = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
ISOLATED = {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False}
HARD = {
    "digits": [ISOLATED, {"type": "Digits", "individual_digits": True}, PLAIN],
    "punctuation": [ISOLATED, {"type": "Punctuation", "behavior": "Isolated"}, PLAIN],
    "whitespace": [{"type": "WhitespaceSplit"}, PLAIN],
    "string": [ISOLATED, ISOLATED | {"pattern": {"String": "e"}}, PLAIN],
    "prefix": [ISOLATED, PLAIN | {"add_prefix_space": True}],
    "regex": [ISOLATED, PLAIN | {"use_regex": True}],
    "word": [ISOLATED | {"pattern": {"Regex": r"\w+|\W+"}}, PLAIN],
}
ERRS = "word"
"""Seen to load and to encode wrongly, without a word, in the pinned version."""


@pytest.mark.parametrize("case", HARD)
def test_what_passes_is_right_on_unseen_text(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the list of known errors switched off, the comparison alone must stop every tokenizer that errs."""
    pytest.importorskip("fastokens")
    monkeypatch.setattr(engines, "fastokens_supported", lambda _: None)
    unusual = tiny(json.dumps({"type": "Sequence", "pretokenizers": HARD[case]}))
    try:
        engine = make_engine("fastokens", unusual)
    except TokenizerError:
        assert case != ERRS
        return
    reference = TokenizersEngine(unusual)
    texts = fuzz_texts(ADDED)
    passes = not compare(engine.encode(texts), reference, texts).differing
    assert not (passes and case == ERRS)
    if passes:
        here = Path(__file__).read_text()
        unseen = [here[i : i + 211] for i in range(0, len(here), 97)] + [f"x{i * i} y_{i}-é{i}" for i in range(500)]
        assert compare(engine.encode(unseen), reference, unseen) == (0, "")


REAL = os.environ.get("PACKTRAIN_REALDATA")


@pytest.mark.slow
@pytest.mark.skipif(not REAL, reason="PACKTRAIN_REALDATA is not set")
@pytest.mark.parametrize("folder", ["qwen3", "deepseek-coder-instruct", "olmo-gpt-neox"])
def test_real_tokenizers(folder: str) -> None:
    root = Path(str(REAL))
    content = (root / "tokenizers" / folder / "tokenizer.json").read_text()
    lines = (root / "apps" / "train.jsonl").read_text().splitlines()[:60]
    engine, reference = make_engine("fastokens", content), make_engine("tokenizers", content)
    texts = [*fuzz_texts(ADDED), *lines]
    assert compare(engine.encode(texts), reference, texts) == (0, "")
