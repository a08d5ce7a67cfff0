"""Engines against `tokenizers`, on small tokenizers that are trained here."""

import json
from functools import cache
from importlib.metadata import PackageNotFoundError
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.schemas.errors import TokenizerError
from packtrain.stages.tokenize import engines
from packtrain.stages.tokenize.engines import ENGINES, Engine, joined_merges, make_engine, reference_tokenizer

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


def ids_of(engine: Engine, text: str) -> list[int]:
    return [int(token) for token in engine.encode([text]).ids]


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
def test_an_empty_batch(name: str) -> None:
    ids, offsets = make_engine(name, tiny()).encode([])
    assert ids.tolist() == []
    assert offsets.tolist() == [0]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_added_cut_or_padded(name: str) -> None:
    template = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [0], "tokens": ["<|im_start|>"]}},
    }
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    padding = {
        "strategy": {"Fixed": 64},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 1,
        "pad_type_id": 0,
        "pad_token": "<|im_end|>",
    }
    changed = tiny(post_processor=json.dumps(template), truncation=json.dumps(truncation), padding=json.dumps(padding))
    text = "the theme of this thesis"
    expected = ids_of(make_engine("tokenizers", tiny()), text)
    assert len(expected) > 2
    assert ids_of(make_engine(name, changed), text) == expected


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


def test_an_engine_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(engines, "version", missing)
    with pytest.raises(TokenizerError, match="fastokens"):
        make_engine("fastokens", tiny())


def test_an_engine_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gigatoken", None)
    with pytest.raises(TokenizerError, match="gigatoken"):
        make_engine("gigatoken", tiny())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": 3}', "{}"])
def test_what_is_not_a_tokenizer(name: str, content: str) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        make_engine(name, content)


@pytest.mark.parametrize("name", NAMES)
def test_a_random_tokenizer_is_refused(name: str) -> None:
    model = json.loads(tiny())["model"] | {"dropout": 0.1}
    with pytest.raises(TokenizerError, match="BPE dropout"):
        make_engine(name, tiny(model=json.dumps(model)))


@pytest.mark.parametrize("name", ["fastokens", "gigatoken"])
def test_an_engine_says_that_it_refuses(name: str) -> None:
    word_piece: dict[str, Any] = {
        "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100, "vocab": {"[UNK]": 0, "a": 1},
    }  # fmt: skip
    with pytest.raises(TokenizerError, match=f"^{name} "):
        make_engine(name, tiny(model=json.dumps(word_piece)))


SPLIT = {"type": "Split", "pattern": {"Regex": GPT4_SPLIT}, "behavior": "Isolated", "invert": False}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
UNUSUAL: dict[str, tuple[Any, str]] = {
    "nothing": (None, "without a pre-tokenizer"),
    "an empty Sequence": ([], "without a pre-tokenizer"),
    "Digits": ([{"type": "Digits", "individual_digits": True}, BYTES], "a Digits step"),
    "Digits after a Split": ([SPLIT, {"type": "Digits", "individual_digits": False}, BYTES], "a Digits step"),
    "Punctuation": ([SPLIT, {"type": "Punctuation", "behavior": "Isolated"}, BYTES], "a Punctuation step"),
    "WhitespaceSplit": ([{"type": "WhitespaceSplit"}, BYTES], "a WhitespaceSplit step"),
    "a String Split": ([SPLIT | {"pattern": {"String": "a"}}, BYTES], "a Split step"),
    "a prefix space": ([SPLIT, BYTES | {"add_prefix_space": True}], "add_prefix_space inside a Sequence"),
    "two regular expressions": ([SPLIT, BYTES | {"use_regex": True}], "use_regex inside a Sequence"),
    "no bytes": ([SPLIT], "ends in Split"),
    "Whitespace alone": ({"type": "Whitespace"}, "a Whitespace pre-tokenizer alone"),
}


def with_pre_tokenizer(value: Any) -> str:
    if isinstance(value, list):
        value = {"type": "Sequence", "pretokenizers": value}
    return tiny(pre_tokenizer=json.dumps(value))


@pytest.mark.parametrize("case", UNUSUAL)
def test_gigatoken_is_not_trusted_with_unusual_pre_tokenizers(case: str) -> None:
    value, words = UNUSUAL[case]
    with pytest.raises(TokenizerError, match=f"^gigatoken .*{words}"):
        make_engine("gigatoken", with_pre_tokenizer(value))


def test_fastokens_is_not_trusted_with_a_prefix_space() -> None:
    with pytest.raises(TokenizerError, match=r"^fastokens .*add_prefix_space"):
        make_engine("fastokens", with_pre_tokenizer(UNUSUAL["a prefix space"][0]))


@pytest.mark.parametrize("key", ["end_of_word_suffix", "continuing_subword_prefix"])
def test_fastokens_is_not_trusted_with_marks_on_pieces(key: str) -> None:
    model = json.loads(tiny())["model"] | {key: "</w>"}
    with pytest.raises(TokenizerError, match=f"^fastokens .*{key}"):
        make_engine("fastokens", tiny(model=json.dumps(model)))


PIECES = st.text(st.sampled_from('a"\\,[] \n\x01é🐍'), max_size=3)


@given(st.lists(st.tuples(PIECES, PIECES), max_size=4), st.booleans())
@examples(400)
def test_merges_are_joined_where_that_says_the_same(merges: list[tuple[str, str]], spaced: bool) -> None:
    whole = {"version": "1.0", "model": {"vocab": {"[[": 0}, "merges": merges, "type": "BPE"}, "padding": None}
    given_json = json.dumps(whole, ensure_ascii=spaced, separators=(", ", ": ") if spaced else (",", ":"))
    found = joined_merges(given_json)
    assert json.dumps(json.loads(found)["version"]) == '"1.0"'
    said = json.loads(found)["model"]["merges"]
    if spaced or not merges or any(" " in part or not part for pair in merges for part in pair):
        assert found == given_json
    else:
        assert [tuple(merge.split(" ")) for merge in said] == merges
        assert json.loads(found) == whole | {"model": whole["model"] | {"merges": said}}  # type: ignore[operator]


@pytest.mark.parametrize(
    "merges",
    ["null", "[]", '["a b"]', '[{"a":"b"}]', '[["a","b","c","d"]]', '[["a","b"],1,["c","d"]]', '["a","b","c","d"]',
     '[["a","b"],["c",1]]', '{"a":[["b","c"]]}', '[[["a","b"]]]', '[["a","\\u0020"]]'],
)  # fmt: skip
def test_what_is_not_a_list_of_compact_pairs_is_left_alone(merges: str) -> None:
    whole = f'{{"model":{{"merges":{merges}}}}}'
    assert joined_merges(whole) == whole
    assert joined_merges('{"model":{}}') == '{"model":{}}'


def test_joined_merges_load_the_same_engine() -> None:
    pytest.importorskip("fastokens")
    pairs = json.dumps(json.loads(tiny()), ensure_ascii=False, separators=(",", ":"))
    assert joined_merges(pairs) != pairs
    texts = [CHAT, "the thesis\n  return 12", "🐍é"]
    assert [ids_of(make_engine("fastokens", one), text) for one in (pairs, tiny()) for text in texts] == [
        reference_tokenizer(tiny()).encode(text, add_special_tokens=False).ids for text in texts
    ] * 2
