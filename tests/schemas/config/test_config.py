"""The configuration: sizes, what it refuses, and what enters the identity of a run."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.schemas.config.config import RunConfig
from packtrain.schemas.config.section import parse_size

SMALLEST: dict[str, Any] = {
    "out": "out",
    "tokenizer": {"path": "tokenizer"},
    "sources": [{"name": "a", "format": "text", "path": "a.jsonl"}],
}


def config(**more: Any) -> RunConfig:
    return RunConfig.model_validate(SMALLEST | more)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("17", 17),
        ("256MiB", 256 * 2**20),
        ("256 mib", 256 * 2**20),
        ("2GiB", 2 * 2**30),
        ("1.5 KiB", 1536),
        ("2k", 2000),
        ("2KB", 2000),
        ("1e9", 10**9),
        ("1T", 10**12),
        ("3 Ti", 3 * 2**40),
        ("7B", 7),
        ("  8  ", 8),
    ],
)
def test_sizes_as_people_write_them(text: str, size: int) -> None:
    assert parse_size(text) == size


@given(st.integers(0, 2**60))
def test_a_number_is_a_number_of_bytes(size: int) -> None:
    assert parse_size(size) == size
    assert parse_size(f"{size % 2**50}") == size % 2**50  # exact as far as a float is


def test_other_values_are_left_to_the_type() -> None:
    values: list[Any] = [None, 1.5, [], {}]
    for value in values:
        assert parse_size(value) is value


def test_one_path_may_stand_for_a_list() -> None:
    assert config().sources[0].path == ("a.jsonl",)


@pytest.mark.parametrize("written", [0.02, "0.02", "2%", "2 %", {"fraction": 0.02}, {"fraction": "2%"}])
def test_a_share_is_a_number_or_percent(written: Any) -> None:
    assert config(holdout=written).holdout.fraction == 0.02


SAME_RUN: list[dict[str, Any]] = [
    {"out": "elsewhere"},
    {"cache": "elsewhere"},
    {"run": {"workers": 7, "memory": "8GiB"}},
    {"tokenizer": {"path": "elsewhere"}},  # its content is hashed instead
    {"sources": [{"name": "a", "format": "text", "path": ["elsewhere.jsonl"]}]},
    {"sources": [{"name": "a", "format": "text", "path": "a.jsonl", "apps": {"style": "classic"}}]},
]
OTHER_RUN: list[dict[str, Any]] = [
    {"seed": 1},
    {"mask": "all"},
    {"keep_untrained": True},
    {"holdout": {"fraction": 0.1}},
    {"truncate": {"max_length": 4096}},
    {"truncate": {"overlong": "drop"}},
    {"pack": {"strategy": "none"}},
    {"pack": {"shuffle": False}},
    {"pack": {"max_docs": 3}},
    {"pack": {"window_tokens": 10}},
    {"output": {"format": "parquet"}},
    {"output": {"shard_bytes": "1MiB"}},
    {"tokenizer": {"path": "tokenizer", "date": "2024-07-26"}},
    {"sources": [{"name": "b", "format": "text", "path": "a.jsonl"}]},
    {"sources": [{"name": "a", "format": "messages", "path": "a.jsonl"}]},
    {"sources": [{"name": "a", "format": "text", "path": "a.jsonl", "keys": {"text": "body"}}]},
    {"sources": [{"name": "a", "format": "text", "path": "a.jsonl", "max_row_bytes": 4096}]},
]


@pytest.mark.parametrize("more", SAME_RUN)
def test_places_and_speed_are_no_part_of_the_identity(more: dict[str, Any]) -> None:
    assert config(**more).identity() == config().identity()


@pytest.mark.parametrize("more", OTHER_RUN)
def test_what_bytes_depend_on_is(more: dict[str, Any]) -> None:
    assert config(**more).identity() != config().identity()


def test_the_json_schema_knows_sizes_and_single_paths() -> None:
    parts = RunConfig.model_json_schema()["$defs"]
    source, output = parts["SourceConfig"]["properties"], parts["OutputConfig"]["properties"]
    assert output["shard_bytes"]["type"] == ["integer", "string"]
    assert source["path"]["type"] == ["array", "string"]
    for part in (*parts.values(), RunConfig.model_json_schema()):
        assert part["additionalProperties"] is False


def test_every_key_says_what_it_does() -> None:
    parts = RunConfig.model_json_schema()["$defs"]
    undescribed = [
        f"{name}.{key}"
        for name, part in parts.items()
        for key, value in part["properties"].items()
        if not value.get("description") and "$ref" not in value
    ]
    assert undescribed == []
