"""Engines against `tokenizers`, on small tokenizers that are trained here."""

import json
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.schemas.errors import TokenizerError
from packtrain.stages.tokenize.engines import ENGINES, Engine, make_engine, reference_tokenizer

from tests.support.examples import examples

NAMES = list(ENGINES)
GPT4_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT = "<|im_start|>user\nWhat's 12+30?<|im_end|>\n<|im_start|>assistant\n42 🐍\r\n<|im_end|>\n"


@cache
def tiny(**changes: str) -> str:
    """A byte-level BPE in the manner of Qwen; `changes` are JSON values by top-level key."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(GPT4_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|im_start|>", "<|im_end|>"],
    )
    tokenizer.train_from_iterator(
        [CHAT, "the theme of this thesis is there " * 3, "def f(x):\n    return x\n"] * 9, trainer
    )
    whole = json.loads(tokenizer.to_str())
    whole.update({key: json.loads(value) for key, value in changes.items()})
    return json.dumps(whole)


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_is_flat_ids_and_offsets(name: str) -> None:
    engine = make_engine(name, tiny())
    texts = ["the", "", CHAT, "\u00e9 🐍"]
    ids, offsets = engine.encode(texts)
    assert ids.dtype == np.int32
    assert offsets.dtype == np.int64
    assert offsets[0] == 0
    assert offsets[-1] == len(ids) > 10
    expected = [reference_tokenizer(tiny()).encode(text, add_special_tokens=False).ids for text in texts]
    assert [ids[a:b].tolist() for a, b in pairwise(offsets)] == expected
    assert expected[1] == []
    assert (engine.name, engine.version[0].isdigit()) == (name, True)


@pytest.mark.parametrize("name", NAMES)
def test_repeated_prompts_are_encoded_like_new_ones(name: str) -> None:
    engine, reference = make_engine(name, tiny()), make_engine("tokenizers", tiny())
    prompt = "<|im_start|>user\n" + "the theme of this thesis is 1 é 🐍\n" * 20 + "<|im_end|>\n<|im_start|>assistant\n"
    texts = [f"{prompt}return {i}\n<|im_end|>" for i in range(50)]
    expected = reference.encode(texts)
    for _ in range(3):
        got = engine.encode(texts)
        assert np.array_equal(got.ids, expected.ids)
        assert np.array_equal(got.offsets, expected.offsets)
        # The same words around other segments, so that what was kept meets another neighbour.
        other = [text.replace("\n<|im_end|>\n", "<|im_end|>") for text in texts]
        assert np.array_equal(engine.encode(other).ids, reference.encode(other).ids)


@examples(150)
@given(st.lists(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40), min_size=1, max_size=6))
def test_fast_engines_agree_on_any_text(texts: list[str]) -> None:
    expected = built("tokenizers").encode(texts)
    for name in NAMES:
        got = built(name).encode(texts)
        assert np.array_equal(got.ids, expected.ids), name
        assert np.array_equal(got.offsets, expected.offsets), name


@cache
def built(name: str) -> Engine:
    return make_engine(name, tiny())


def test_the_reference_keeps_white_space_in_its_offsets() -> None:
    trimming = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokenizer = reference_tokenizer(tiny(post_processor=json.dumps(trimming)))
    assert tokenizer.encode("a    ").offsets[-1] == (1, 5) or tokenizer.encode("a    ").offsets[1][0] == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_random_tokenizer_is_refused(name: str) -> None:
    model = json.loads(tiny())["model"] | {"dropout": 0.1}
    with pytest.raises(TokenizerError, match="BPE dropout"):
        make_engine(name, tiny(model=json.dumps(model)))


SPLIT = {"type": "Split", "pattern": {"Regex": GPT4_SPLIT}, "behavior": "Isolated", "invert": False}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def test_fastokens_is_not_trusted_with_a_prefix_space() -> None:
    with pytest.raises(TokenizerError, match=r"^fastokens .*add_prefix_space"):
        make_engine(
            "fastokens",
            tiny(
                pre_tokenizer=json.dumps(
                    {"type": "Sequence", "pretokenizers": [SPLIT, BYTES | {"add_prefix_space": True}]}
                )
            ),
        )


@pytest.mark.parametrize("key", ["end_of_word_suffix", "continuing_subword_prefix"])
def test_fastokens_is_not_trusted_with_marks_on_pieces(key: str) -> None:
    model = json.loads(tiny())["model"] | {key: "</w>"}
    with pytest.raises(TokenizerError, match=f"^fastokens .*{key}"):
        make_engine("fastokens", tiny(model=json.dumps(model)))
