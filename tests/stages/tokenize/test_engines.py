"""Engines against `tokenizers`, on small tokenizers that are trained here; and how engines that err are found."""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.schemas.errors import TokenizerError
from packtrain.stages.tokenize.engine_check import EngineSample, describe_difference, fuzz_texts, samples_of
from packtrain.stages.tokenize.engines import ENGINES, Engine, make_engine

from tests.support.examples import examples

NAMES = list(ENGINES)
ADDED = ["<|im_start|>", "<|im_end|>"]
CHAT = "<|im_start|>user\nWhat's 12+30?<|im_end|>\n<|im_start|>assistant\n42 🐍\r\n<|im_end|>\n"
# A regular expression that fastokens knows: what stands around it in HARD is what it may overlook.
GPT4_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLIT = {"type": "Split", "pattern": {"Regex": GPT4_SPLIT}, "behavior": "Isolated", "invert": False}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


@cache
def tiny(**changes: str) -> str:
    """A byte-level BPE in the manner of Qwen; `changes` are JSON values by top-level key."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=ADDED,
    )
    tokenizer.train_from_iterator([*fuzz_texts([]), *[CHAT, "the theme of this thesis is there "] * 9], trainer)
    content = json.loads(tokenizer.to_str())
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [SPLIT, BYTES]}
    content.update({key: json.loads(value) for key, value in changes.items()})
    return json.dumps(content)


def split_by(*steps: Any) -> str:
    """A tokenizer with these pre-tokenizers."""
    return tiny(pre_tokenizer=json.dumps({"type": "Sequence", "pretokenizers": steps}))


@cache
def built(name: str, content: str) -> Engine:
    return make_engine(name, content)


@examples(150)
@given(st.lists(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40), min_size=1, max_size=6))
def test_engines_agree_on_any_text(texts: list[str]) -> None:
    for name in NAMES:
        assert describe_difference(samples_of(built(name, tiny()), texts * 2), built("tokenizers", tiny())) == "", name


@pytest.mark.parametrize("name", NAMES)
def test_a_tokenizer_that_is_random_or_of_another_type_is_refused(name: str) -> None:
    for change, message in ({"dropout": 0.1}, "BPE dropout"), ({"type": "WordPiece"}, "BPE and Unigram only"):
        model = json.loads(tiny())["model"] | change
        with pytest.raises(TokenizerError, match=message):
            make_engine(name, tiny(model=json.dumps(model)))


def test_the_known_texts_are_few_and_the_same_every_time() -> None:
    texts = fuzz_texts(ADDED)
    assert texts == fuzz_texts(ADDED)
    assert 100_000 < sum(len(text.encode()) for text in texts) < 300_000


def test_a_difference_names_text_and_tokens() -> None:
    reference = built("tokenizers", tiny())
    samples = samples_of(reference, [*(["a"] * 300), "b\r\n", "c", "\r\n"])
    assert describe_difference(samples, reference) == ""
    changed = [
        EngineSample(sample.text, [*sample.ids[:-1], 7]) if "\r\n" in sample.text else sample for sample in samples
    ]
    description = describe_difference(changed, reference)
    assert "'b\\r\\n'" in description
    assert "[7]" in description or ", 7]" in description


HARD: dict[str, list[Any]] = {
    "digits": [SPLIT, {"type": "Digits", "individual_digits": True}, BYTES],
    "punctuation": [SPLIT, {"type": "Punctuation", "behavior": "Isolated"}, BYTES],
    "whitespace": [{"type": "WhitespaceSplit"}, BYTES],
    "string": [SPLIT, SPLIT | {"pattern": {"String": "e"}}, BYTES],
    "prefix": [SPLIT, BYTES | {"add_prefix_space": True}],
    "regex": [SPLIT, BYTES | {"use_regex": True}],
    "word": [SPLIT | {"pattern": {"Regex": r"\w+|\W+"}}, BYTES],
}
ERRS = "word"
"""Seen to load and to encode wrongly, without a word, in the pinned version."""


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] * (place % 3 > 0)) for place, case in enumerate(HARD)]
)
def test_what_passes_is_right_on_unseen_text(case: str) -> None:
    """The comparison alone must stop every tokenizer that errs."""
    pytest.importorskip("fastokens")
    unusual = split_by(*HARD[case])
    try:
        engine = make_engine("fastokens", unusual)
    except TokenizerError:
        assert case != ERRS
        return
    reference = make_engine("tokenizers", unusual)
    passes = not describe_difference(samples_of(engine, fuzz_texts(ADDED)), reference)
    assert not (passes and case == ERRS)
    if passes:
        source = Path(__file__).read_text()
        unseen = [source[i : i + 211] for i in range(0, len(source), 97)] + [f"x{i * i} y_{i}-é{i}" for i in range(500)]
        assert describe_difference(samples_of(engine, unseen), reference) == ""


REAL = os.environ.get("PACKTRAIN_REALDATA")


@pytest.mark.slow
@pytest.mark.skipif(not REAL, reason="PACKTRAIN_REALDATA is not set")
@pytest.mark.parametrize("folder", ["qwen3", "deepseek-coder-instruct", "olmo-gpt-neox"])
def test_real_tokenizers(folder: str) -> None:
    root = Path(str(REAL))
    content = (root / "tokenizers" / folder / "tokenizer.json").read_text()
    lines = (root / "apps" / "train.jsonl").read_text().splitlines()[:60]
    engine = make_engine("fastokens", content)
    reference = make_engine("tokenizers", content)
    assert describe_difference(samples_of(engine, [*fuzz_texts(ADDED), *lines]), reference) == ""
