"""The configuration: short forms, and what enters the identity of a run."""

from typing import Any

import pytest
import yaml
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


@pytest.mark.parametrize("written", [0.02, "0.02", "2%", "2 %", {"fraction": 0.02}, {"fraction": "2%"}])
def test_a_share_is_a_number_or_percent(written: Any) -> None:
    assert config(holdout=written).holdout.fraction == 0.02


SIZES = {
    "0": 0, "17": 17, "256MiB": 256 * 2**20, "256 mib": 256 * 2**20, "2GiB": 2 * 2**30, "1.5 KiB": 1536, "2k": 2000,
    "2KB": 2000, "1T": 10**12, "3 Ti": 3 * 2**40, "7B": 7, "  8  ": 8,
}  # fmt: skip


def test_sizes_as_people_write_them() -> None:
    assert {text: parse_size(text) for text in SIZES} == SIZES


@given(st.text(max_size=12) | st.from_regex(r"[0-9.]+ ?[kmgtp]?i?b?"))
def test_any_text_is_a_size_or_refused(text: str) -> None:
    try:
        assert parse_size(text) >= 0
    except ValueError as error:
        assert "is not a size" in str(error)  # noqa: PT017 - which of both happens is the test


@pytest.mark.parametrize(
    ("variable", "says"), [("[" * 96 + "]" * 96, "nested too deeply"), (f"0x{'f' * 4000}", "4300 digits")]
)
def test_variables_of_a_template_are_what_a_manifest_can_hold(variable: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        config(tokenizer={"path": "t", "variables": {"a": yaml.safe_load(variable)}})
    assert config(tokenizer={"path": "t", "variables": {"a": yaml.safe_load("[" * 95 + "]" * 95)}})
