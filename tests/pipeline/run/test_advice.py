"""What a finished run advises: every number is what a run with that setting really gives."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packtrain.pipeline.dataset.manifests import read_manifest
from packtrain.pipeline.run.advice import on_rows
from packtrain.pipeline.store.local import LocalStore
from packtrain.schemas.config.config import RunConfig
from packtrain.stages.pack.plan import plan_rows


@pytest.fixture
def packed(
    packtrain: Callable[..., Any], tmp_path: Path, tiny_tokenizer: Path, new_cache: Callable[[], Path]
) -> Callable[..., tuple[str, Any]]:
    """Packs chats of many lengths, some twice; gives what was said, and the ledger's total."""
    cache = new_cache()
    lines = []
    for number in range(60):
        turns = []
        for turn in range(number % 3 + 1):
            turns += [
                {"role": "user", "content": f"Question {number} {turn} " + "why " * (number * 3 % 70)},
                {"role": "assistant", "content": f"Answer {number} {turn}."},
            ]
        lines.append(json.dumps({"messages": turns}) + "\n")
    (tmp_path / "chats.jsonl").write_text("".join(lines + lines[:7]))

    def pack(*options: object) -> tuple[str, Any]:
        out = tmp_path / f"out-{len(list(tmp_path.iterdir()))}"
        done = packtrain(
            "run", "--input", tmp_path / "chats.jsonl", "--tokenizer", tiny_tokenizer, "--out", out,
            "--workers", 1, "--set", f"cache={cache}", "--set", "run.report=false", *options,
        )  # fmt: skip
        assert done.code == 0, done
        manifest = read_manifest(LocalStore(out))
        assert manifest is not None
        return done.out, manifest.ledger.total()

    return pack


@pytest.mark.parametrize("duplicates", ["keep", "drop"])
def test_trained_tokens_that_the_length_loses_are_said_first(
    packed: Callable[..., tuple[str, Any]], duplicates: str
) -> None:
    said, total = packed("--max-length", 64, "--set", f"duplicates={duplicates}")
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
    assert "are lost" not in packed("--max-length", 2048)[0]


def test_rows_that_tight_may_save() -> None:
    """What the bounds allow, over all windows; nothing where that is little, or another strategy is set."""

    def config(**pack: Any) -> RunConfig:
        source = {"name": "s", "format": "text", "path": "unused"}
        keys = {"out": "unused", "tokenizer": {"path": "unused"}, "sources": [source], "pack": pack}
        return RunConfig.model_validate(keys)

    lengths = np.clip(np.exp(np.random.default_rng(4).standard_normal(2000) + np.log(800)), 1, 4096).astype(int)
    limited = plan_rows(lengths, 4096, max_docs=4).certificate
    tight = plan_rows(lengths, 4096, "tight", max_docs=4).certificate
    said = on_rows(config(max_docs=4), [limited] * 2)
    assert limited.rows > tight.rows >= limited.bound
    percent = 100 * (1 - limited.bound / limited.rows)
    assert said == (
        f"the rows are {2 * limited.rows:,}, and no plan needs fewer than {2 * limited.bound:,}; "
        f"pack.strategy=tight may save up to {percent:.2f} % of them"
    )
    assert on_rows(config(strategy="tight"), [limited]) is None
    assert on_rows(config(), [plan_rows(lengths, 4096).certificate]) is None
    assert on_rows(config(), []) is None
