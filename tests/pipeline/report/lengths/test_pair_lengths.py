"""The comparison of lengths of preference pairs, against runs of each length."""

import os
import re
from pathlib import Path
from typing import Any

import packtrain
import pytest
from packtrain.pipeline.run.plan import plan
from packtrain.schemas.report.length_choice import Choice

from tests import kit

LENGTHS = (80, 160, 1024)
CASES: dict[str, kit.Config] = {
    "packed": {},
    "from the end, tight": {"truncate": {"keep": "end"}, "pack": {"strategy": "tight"}},
    "dropped": {"truncate": {"overlong": "drop"}, "holdout": {"fraction": 0.3}},
    "prompts once": {"pack": {"share": "row"}},
    "prompts once, from the end": {"pack": {"share": "row"}, "truncate": {"keep": "end"}},
    "aligned, in longer rows": {"pack": {"align": 32, "row_length": 1024}},
    "aligned, few": {"pack": {"align": 8, "max_docs": 5}},
    "not packed": {"pack": {"strategy": "none"}},
    "not packed, from the end": {"pack": {"strategy": "none"}, "truncate": {"keep": "end"}},
}


def choice_of(config: kit.Config, *lengths: int) -> Choice:
    choice = plan(config, lengths or LENGTHS, base=Path(config["out"]).parent).choice
    assert choice is not None
    return choice


def at_length(base: kit.Config, length: int, **keys: Any) -> kit.Config:
    out = str(Path(base["out"]).parent / f"at-{length}-{len(keys)}")
    return kit.merged(base, {"truncate": {"max_length": length}, "out": out, **keys})


@pytest.mark.parametrize("case", CASES)
def test_a_plan_says_what_runs_of_each_length_do(case: str, tmp_path: Path) -> None:
    base = kit.configure(tmp_path, "choices", **CASES[case])
    choice = choice_of(base)
    assert choice.pairs is not None
    assert choice.pairs.are_packed == ("not packed" not in case)
    for point in choice.points:
        manifest = packtrain.run(at_length(base, point.max_length), base=tmp_path).manifest
        total = manifest.ledger.total()
        train = manifest.splits["train"]
        # Pairs that the cut makes equal are counted as if they were kept.
        equal = total.examples_dropped.get("cut_equal", 0)
        packed = total.examples_packed["train"]
        assert packed <= point.documents <= packed + equal
        assert point.documents + point.documents_lost == choice.documents
        assert point.documents_lost <= sum(
            total.examples_dropped.get(reason, 0) for reason in ("cut_empty", "overlong")
        )
        if equal:
            continue
        assert point.tokens == train.tokens - train.padding
        assert point.labels == train.trained
        assert point.rows == train.rows
        if choice.pairs.are_packed:
            assert point.bound == sum(window.bound for window in train.windows)
    # Of one length as of another, all tokens are kept or lost; a point has those that rows store.
    factors = [(point.sharing_factor or 1) if "once" in case else 1 for point in choice.points]
    in_all = {
        round(point.tokens * factor) + point.tokens_lost for point, factor in zip(choice.points, factors, strict=True)
    }
    assert len(in_all) == 1
    assert any(point.documents_lost for point in choice.points) or "end" in case
    assert not choice.points[-1].documents_lost


def test_what_other_keys_keep_is_that_of_runs_with_them(tmp_path: Path) -> None:
    base = kit.configure(tmp_path, "choices", truncate={"max_length": 72})
    choice = choice_of(base)
    assert choice.pairs is not None
    expected = list[int]()
    for keys in ({"truncate": {"max_length": 72, "keep": "end"}}, {"pack": {"share": "row"}}):
        config = kit.merged(base, {**keys, "out": str(tmp_path / f"changed-{len(expected)}")})
        dropped = packtrain.run(config, base=tmp_path).manifest.ledger.total().examples_dropped
        expected.append(dropped.get("cut_empty", 0))
    assert [choice.pairs.left_out_with_end, choice.pairs.left_out_with_share] == expected
    once = choice_of(kit.merged(base, {"pack": {"share": "row"}}))
    assert once.pairs is not None
    assert once.pairs.left_out_with_share is None


def test_plans_runs_and_reports_say_it(tmp_path: Path) -> None:
    config = kit.configure(tmp_path, "choices", truncate={"max_length": 72}, run={"report": True})
    planned = " ".join(kit.cli("plan", kit.saved(config)).out.split())
    ended = " ".join(kit.cli("run", kit.saved(config)).out.split())
    reported = " ".join(kit.cli("report", config["out"]).out.split())
    for text in (planned, ended, reported):
        needs = r"prompt twice: at 72, \d+ pairs are left out; with truncate.keep=end, none; with pack.share"
        assert re.search(needs, text), text
        assert re.search(r"max_length \d+ keeps", text)
        assert re.search(r"pack.share=row would store \d\.\d times fewer tokens: prompts of pairs once", text)
        assert "document" not in text.partition("Advice:")[2].partition("What happened")[0].partition("pack.share")[0]
    assert "Bars: pairs by length" in (Path(config["out"]) / "report.html").read_text()
    apart = kit.merged(config, {"pack": {"strategy": "none"}, "out": str(tmp_path / "apart")})
    planned = " ".join(kit.cli("plan", kit.saved(apart)).out.split())
    assert "twice" not in planned
    assert "pack.share" not in planned


@pytest.mark.skipif("PACKTRAIN_REALDATA" not in os.environ, reason="needs real data")
def test_real_pairs(tmp_path: Path) -> None:
    """Of 598 pairs, 2,048 tokens hold all but 37; if the prompt is stored once, all but 2."""
    real = Path(os.environ["PACKTRAIN_REALDATA"])
    source = {"name": "pairs", "path": str(real / "preference/dpo_pairs.jsonl")}
    config = kit.configure(tmp_path, source, tokenizer={"path": str(real / "tokenizers/qwen3")})
    choice = choice_of(kit.merged(config, {"truncate": {"max_length": 2048}}), 4096, 8192)
    assert choice.pairs is not None
    assert [point.documents_lost for point in choice.points] == [37, 2, 0]
    assert (choice.pairs.left_out_with_end, choice.pairs.left_out_with_share) == (0, 2)
    assert choice.advice is not None
    assert choice.advice.max_length == 8192
