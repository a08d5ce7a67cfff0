"""What a finished run advises: every number is what a run with that setting really gives."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packtrain.pipeline.dataset.manifests import read_manifest
from packtrain.pipeline.run.closing_advice import on_lost, on_rows
from packtrain.pipeline.store.local import LocalStore
from packtrain.schemas.config.config import RunConfig
from packtrain.schemas.ledger import SourceLedger
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
            "--workers", 1, "--set", f"cache={cache}", "--no-report", *options,
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


def test_what_is_cut_before_anything_trained(packed: Callable[..., tuple[str, Any]]) -> None:
    said, total = packed("--max-length", 64)
    dropped = total.examples_dropped["cut_untrained"]
    assert f"truncation left nothing to train in {dropped} of 67 examples, which were dropped; " in said
    assert "truncation left nothing" not in packed("--max-length", 2048)[0]


def test_duplicates_are_counted_and_kept(packed: Callable[..., tuple[str, Any]]) -> None:
    said, total = packed("--max-length", 2048)
    assert sum(total.examples_packed.values()) == 67
    assert "7 of 67 packed examples (10.4%) are duplicates of an earlier one; duplicates=drop drops" in said
    said, total = packed("--max-length", 2048, "--set", "duplicates=drop")
    assert total.examples_dropped == {"duplicate": 7}
    assert "say the same" not in said


def test_the_default_mask_is_named_where_none_was_chosen(packed: Callable[..., tuple[str, Any]]) -> None:
    named = "mask completion, the default, trains the last answer of a chat; mask=assistant trains all\n"
    cached = "blocks of the input are in the cache, already encoded\n"
    said, last = packed()
    assert named in said
    assert cached not in said
    said, same = packed("--set", "mask=completion")
    assert named not in said
    assert f"all {cached}" in said, "the mask does not affect encoding"
    assert same == last
    said, every = packed("--set", "mask=assistant")
    assert named not in said
    assert every.labels_trained > last.labels_trained


def test_a_limit_that_leaves_nothing_is_named(
    packtrain: Callable[..., Any], tmp_path: Path, tiny_tokenizer: Path
) -> None:
    chat = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."}]
    (tmp_path / "chats.jsonl").write_text("no JSON\n" + 9 * (json.dumps({"messages": chat}) + "\n"))
    done = packtrain(
        "run", "--input", tmp_path / "chats.jsonl", "--tokenizer", tiny_tokenizer, "--out", tmp_path / "out",
        "--max-length", 3, "--no-report",
    )  # fmt: skip
    assert done.code == 2
    assert "9 gave examples (invalid_json 1); of 9 examples, all were left out (cut_untrained 9)" in done.err
    assert "A packed row is too short for them: raise truncate.max_length (--max-length)" in done.err


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("cut_empty", "at max_length 64, 50 % of the trained tokens are lost (50 of 100)"),
        ("max_tokens", "at max_length 64, at least 10 % of the trained tokens are lost (10 of 100)"),
    ],
)
def test_only_what_follows_from_the_length_is_counted_as_lost_to_it(reason: str, said: str) -> None:
    sources = [{"name": "a", "format": "text", "path": "a.jsonl"}]
    config = RunConfig.model_validate(
        {"out": "out", "tokenizer": {"path": "t"}, "sources": sources, "truncate": {"max_length": 64}}
    )
    total = SourceLedger(asked_encoded=100, asked_truncated=10, asked_dropped=40, tokens_dropped={reason: 60})
    assert on_lost(config, total) == said
    assert on_lost(config, SourceLedger(asked_encoded=100, asked_truncated=1)) is None
    single = {"untrained": 40}
    total = SourceLedger(asked_encoded=100, asked_dropped=40, examples_dropped=single, tokens_dropped=single)
    assert on_lost(config, total) is None


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
