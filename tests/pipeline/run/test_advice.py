"""What a finished run advises: every number is what a run with that setting really gives."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline.dataset.open_dataset import open_dataset

from tests import kit


@pytest.fixture
def packed(tmp_path: Path) -> Callable[..., tuple[str, Any]]:
    """Packs pairs of many lengths, some twice; gives what was said, and the ledger's total."""
    pairs = kit.corpus("pairs")
    path = str(kit.write(tmp_path / "many.jsonl", pairs + pairs[:7]))

    def pack(length: int, **keys: Any) -> tuple[str, Any]:
        out = str(tmp_path / f"out-{length}")
        config = kit.configure(
            tmp_path, kit.source("pairs", path=path), out=out, truncate={"max_length": length}, **keys
        )
        done = kit.cli("run", kit.saved(config))
        assert done.code == 0, done
        return done.out, open_dataset(out).manifest.ledger.total()

    return pack


@pytest.mark.parametrize("duplicates", ["keep", "drop"])
def test_trained_tokens_that_the_length_loses_are_said_first(
    packed: Callable[..., tuple[str, Any]], duplicates: str
) -> None:
    said, total = packed(64, duplicates=duplicates)
    # Of duplicates, tokens are dropped for another reason than the length.
    lost = total.asked_truncated + (total.asked_dropped if duplicates == "keep" else 0)
    least = "" if duplicates == "keep" else "at least "
    (line,) = re.findall(r".* of the trained tokens are lost.*", said)
    assert said.index(line) < said.index("Packing") < said.index("truncation left nothing")
    assert re.fullmatch(
        rf"at max_length 64, {least}\d\d?(\.\d)? % of the trained tokens are lost "
        rf"\({lost:,} of {total.asked_encoded:,}\)",
        line,
    )
    assert f"{100 * lost / total.asked_encoded:.1f}".removesuffix(".0") in line
    assert "are lost" not in packed(8192)[0]
