"""The engine check refuses every engine that differs, and says where."""

import json
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3
from packtrain.schemas.errors import TokenizerError
from packtrain.stages.tokenize import engine_check as gate
from packtrain.stages.tokenize import engines
from packtrain.stages.tokenize.engine_check import FUZZ_SET, differences, fuzz_texts, resolve_engine
from packtrain.stages.tokenize.engines import EngineTokens, TokenizersEngine, make_engine

ADDED = ["<|im_start|>", "<|im_end|>"]
# A regular expression that both fast engines know: what stands around it in HARD is what they may overlook.
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
    """The reference, but for its last token wherever a text holds `needle`."""

    needle = "\r\n"

    def encode(self, texts: Sequence[str]) -> EngineTokens:
        right = super().encode(texts)
        ids = right.ids.copy()
        for i, text in enumerate(texts):
            if self.needle in text:
                ids[right.offsets[i + 1] - 1] = 7
        return EngineTokens(ids, right.offsets)


def test_the_fuzz_set_is_pinned() -> None:
    texts = fuzz_texts(ADDED)
    assert texts == fuzz_texts(ADDED)
    assert blake3("\0\0".join(texts).encode()).hexdigest()[:16] == FUZZ_SET


def test_the_fuzz_set_is_small_and_holds_what_it_says() -> None:
    texts = fuzz_texts(ADDED)
    whole = "".join(texts)
    assert 100_000 < len(whole.encode()) < 300_000
    assert "" in texts
    assert "<|im_end|><|im_end|>" in texts
    assert "a<|im_end|>b" in texts
    for part in (
        "\r\n",
        "\u200d",
        "\u0301",
        "\u3000",
        "🏳️‍🌈",
        "it's",
        "IT'LL",
        " " * 257,
        "a" * 1000,
        "12345678901234567890",
    ):
        assert part in whole, part
    planes = {ord(c) >> 16 for c in whole}
    assert planes >= {0, 1, 2, 3, 14, 15, 16}
    assert {chr(c) for c in range(0x100)} <= set(whole)


def test_thousands_of_added_tokens_are_represented() -> None:
    many = [f"<reserved_{i}>" for i in range(6000)]
    texts = fuzz_texts(many)
    assert sum(map(len, texts)) < 300_000
    assert many[0] in texts
    assert sum(token in texts for token in many) == gate.MAX_ADDED_TOKENS


def test_a_difference_names_text_and_tokens() -> None:
    reference = make_engine("tokenizers", tiny())
    wrong = Wrong(tiny())
    assert differences(reference, reference, fuzz_texts(ADDED)) == []
    texts = ["a", "b\r\n", "c"]
    (found,) = differences(wrong, reference, texts)
    assert (found.index, found.text, found.got) == (1, "b\r\n", (7,))
    assert found.expected != found.got


def test_an_engine_with_a_token_too_many_differs_at_its_end() -> None:
    reference = make_engine("tokenizers", tiny())

    class Longer(TokenizersEngine):
        def encode(self, texts: Sequence[str]) -> EngineTokens:
            right = super().encode(texts)
            return EngineTokens(np.append(right.ids, np.int32(3)), np.append(right.offsets[:-1], right.offsets[-1] + 1))

    (found,) = differences(Longer(tiny()), reference, ["ab", "c"])
    assert (found.index, found.token, found.got, found.expected) == (1, 1, (3,), ())


def test_auto_takes_the_first_engine_that_agrees() -> None:
    chosen = resolve_engine("auto", tiny(), lambda: ["the person's own text"])
    assert chosen.name == chosen.engine.name == "fastokens"
    assert chosen.version == chosen.engine.version
    assert [name for name, _ in chosen.tried] == ["fastokens"]


def test_auto_falls_through_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(engines.ENGINES, "fastokens", Wrong)
    digits = {"type": "Digits", "individual_digits": True}
    last = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    chosen = resolve_engine("auto", tiny(json.dumps({"type": "Sequence", "pretokenizers": [digits, last]})), list)
    assert chosen.name == chosen.engine.name == "tokenizers"
    assert [name for name, _ in chosen.tried] == ["fastokens", "gigatoken", "tokenizers"]


def test_the_persons_own_text_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(engines.ENGINES, "fastokens", Wrong)
    monkeypatch.setattr(Wrong, "needle", "only here")
    assert resolve_engine("fastokens", tiny(), lambda: ["elsewhere"]).name == "fastokens"
    with pytest.raises(TokenizerError, match=r"fastokens .*'found only here'"):
        resolve_engine("fastokens", tiny(), lambda: ["elsewhere", "found only here"])


def test_the_reference_is_taken_without_a_gate() -> None:
    chosen = resolve_engine("tokenizers", tiny(), list)
    assert chosen.name == chosen.engine.name == "tokenizers"
    assert chosen.tried == (("tokenizers", "asked for"),)


def test_an_engine_that_refuses_is_an_error_only_when_asked_for() -> None:
    alone = tiny(json.dumps({"type": "Digits", "individual_digits": True}))
    with pytest.raises(TokenizerError, match="gigatoken"):
        resolve_engine("gigatoken", alone, list)


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
ERRS = {("gigatoken", case) for case in ("digits", "punctuation", "string", "prefix", "regex")}
ERRS.add(("fastokens", "word"))
"""Seen to load and to encode wrongly, without a word, in the pinned versions."""


@pytest.mark.parametrize("case", HARD)
@pytest.mark.parametrize("name", ["fastokens", "gigatoken"])
def test_whatever_auto_takes_is_right_on_unseen_text(name: str, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the list of known errors switched off, the engine check alone must stop every engine that errs."""
    monkeypatch.setattr(engines, "fastokens_supported", lambda _: None)
    monkeypatch.setattr(engines, "gigatoken_supported", lambda _: None)
    unusual = tiny(json.dumps({"type": "Sequence", "pretokenizers": HARD[case]}))
    if (name, case) in ERRS:
        with pytest.raises(TokenizerError, match=name):
            resolve_engine(name, unusual, list)
        return
    try:
        chosen = resolve_engine(name, unusual, list)
    except TokenizerError:
        return
    here = Path(__file__).read_text()
    unseen = [here[i : i + 211] for i in range(0, len(here), 97)] + [f"x{i * i} y_{i}-é{i}" for i in range(500)]
    assert differences(chosen.engine, TokenizersEngine(unusual), unseen) == []


REAL = os.environ.get("PACKTRAIN_REALDATA")


@pytest.mark.slow
@pytest.mark.skipif(not REAL, reason="PACKTRAIN_REALDATA is not set")
@pytest.mark.parametrize(
    ("folder", "fast", "giga"),
    [("qwen3", True, True), ("deepseek-coder-instruct", True, False), ("olmo-gpt-neox", True, True)],
)
def test_real_tokenizers(folder: str, fast: bool, giga: bool) -> None:
    root = Path(str(REAL))
    content = (root / "tokenizers" / folder / "tokenizer.json").read_text()
    lines = (root / "apps" / "train.jsonl").read_text().splitlines()[:60]
    reference = make_engine("tokenizers", content)
    texts = [*fuzz_texts(ADDED), *lines]
    for name, expected in (("fastokens", fast), ("gigatoken", giga)):
        if expected:
            assert differences(make_engine(name, content), reference, texts) == []
        else:
            with pytest.raises(TokenizerError):
                make_engine(name, content)
