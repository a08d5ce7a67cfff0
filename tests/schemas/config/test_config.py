"""The configuration: short forms, and what enters the identity of a run."""

from typing import Any

import pytest
from packtrain.schemas.config.config import RunConfig

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


def test_options_of_apps_are_part_of_the_identity_only_where_they_may_count() -> None:
    formats = {format: config(sources=[SMALLEST["sources"][0] | {"format": format}]) for format in ("text", "apps")}
    assert "apps" not in formats["text"].identity()["sources"][0]
    assert "apps" in formats["apps"].identity()["sources"][0]
