"""The prediction of what transformers makes of a tokenizer.json."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.pipeline.encode.tokenizer.load import load_tokenizer
from packtrain.stages.tokenize.likely_json import likely_json
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

MODELS = [
    models.BPE(vocab={"a": 0, "b": 1, "ab": 2, "é": 3}, merges=[("a", "b")]),
    models.WordPiece(vocab={"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"),
    models.Unigram([("<unk>", 0.0), ("a", -1.5), ("▁b", -2.25)], unk_id=0),
    models.WordLevel(vocab={"a": 0, "\u2028": 1, '"': 2}, unk_token="a"),
]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3", "deepseek-coder-instruct", "olmo-gpt-neox"])
def test_it_is_right_for_real_tokenizers(name: str, realdata: Path) -> None:
    assert predicted(realdata / "tokenizers" / name) == load_tokenizer(realdata / "tokenizers" / name).json


def test_it_is_right_for_the_demo(tiny_tokenizer: Path) -> None:
    assert predicted(tiny_tokenizer) == load_tokenizer(tiny_tokenizer).json


def predicted(folder: Path) -> str | None:
    """The prediction for a folder."""
    return likely_json((folder / "tokenizer.json").read_bytes(), (folder / "tokenizer_config.json").read_bytes())


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_a_class_that_keeps_the_file_gives_what_the_library_writes(model: Any) -> None:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(), pre_tokenizers.ByteLevel(True, False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(["<x>"])
    tokenizer.add_special_tokens(["<s>"])
    expected = tokenizer.to_str()
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding()
    assert likely_json(tokenizer.to_str(pretty=True).encode()) == expected
    older = json.loads(expected)
    if isinstance(model, models.BPE):  # the form before merges could contain spaces
        older["model"]["merges"] = [" ".join(pair) for pair in older["model"]["merges"]]
        del older["model"]["ignore_merges"]
    assert likely_json(json.dumps(older, ensure_ascii=False).encode()) == expected


def test_tokens_that_the_configuration_names_are_special() -> None:
    tokenizer = Tokenizer(MODELS[0])
    tokenizer.add_tokens([f"<{name}>" for name in "abcde"])
    config = {
        "eos_token": "<a>",
        "pad_token": {"content": "<b>", "__type": "AddedToken"},
        "additional_special_tokens": ["<c>"],
        "added_tokens_decoder": {"7": {"content": "<d>", "special": True}, "8": {"content": "<e>", "special": False}},
    }
    text = likely_json(tokenizer.to_str().encode(), json.dumps(config).encode())
    assert text is not None
    assert [token["special"] for token in json.loads(text)["added_tokens"]] == [True, True, True, True, False]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["", "a b", "ByteLevel", "Sequence"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "content", "special", "merges", "vocab", "pretokenizers", "id"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@given(
    st.fixed_dictionaries(dict.fromkeys(("model", "added_tokens", "pre_tokenizer", "decoder"), JSON)),
    st.dictionaries(st.sampled_from(["tokenizer_class", "eos_token", "added_tokens_decoder"]), JSON),
)
def test_any_file_gives_a_text_or_nothing(fields: dict[str, Any], config: dict[str, Any]) -> None:
    text = likely_json(json.dumps(fields).encode(), json.dumps(config).encode())
    if text is not None:
        assert set(json.loads(text)) == {*fields, "truncation", "padding"}


@given(st.binary())
def test_any_bytes_give_nothing(content: bytes) -> None:
    assert likely_json(content) is None
    assert likely_json(content, content) is None
