"""Packed preference pairs as users meet them: shown, followed, streamed, compared, mixed, made again."""

import re
import signal
from collections import Counter
from pathlib import Path

import packtrain
import pytest
from packtrain.pipeline.dataset.verify import verify
from packtrain.pipeline.report.card import NAME
from packtrain.pipeline.stream.live_windows import LiveWindows
from packtrain.schemas.config.config import RunConfig
from packtrain.schemas.dataset.row_batch import RowBatch
from packtrain.schemas.tables.columns import SIDES

from tests import kit
from tests.support.mortal import mortal

SHARED = pytest.mark.parametrize("share", ["none", "row"])


def configured(folder: Path, share: str = "none", **keys: object) -> kit.Config:
    return kit.configure(folder, "choices", **kit.merged({"pack": {"share": share}}, keys))


@SHARED
def test_inspect_names_both_sides(share: str, tmp_path: Path) -> None:
    packed = kit.packed(configured(tmp_path, share, truncate={"max_length": 1024}))
    row = packed.rows()[0]
    shown = packtrain.inspect(packed.folder, 0)
    assert [document.side for document in shown.documents] == ["chosen", "rejected"] * (len(row["doc_ids"]) // 2)
    corpus = kit.corpus("choices")
    for chosen, rejected in zip(shown.documents[::2], shown.documents[1::2], strict=True):
        assert chosen.id == rejected.id
        source = corpus[int(chosen.id.rpartition(":")[2]) - 1]
        for document in (chosen, rejected):
            text = source["prompt"] + source[document.side] + "<|im_end|>"
            marked = document.text.replace("⟦", "").replace("⟧", "")
            # A piece that continues the prompt has its last token, which may be a part of a character.
            assert marked == text if not document.shared else text.endswith(marked.lstrip("\ufffd"))
            assert document.text.endswith(f"{source[document.side][2:]}<|im_end|>⟧")
        if share == "row":
            assert re.fullmatch("continues the chosen side after [0-9]+ tokens", rejected.origin)
    done = kit.cli("inspect", packed.folder, "--row", 0)
    assert f"{len(row['doc_ids']) // 2} preference pair" in done.out
    assert f"rejected of {shown.documents[1].id}: " in done.out


@SHARED
def test_an_example_is_followed_to_both_sides(share: str, tmp_path: Path) -> None:
    packed = kit.packed(configured(tmp_path, share))
    examples = {example["doc_id"]: example for example in packed.documents()}
    for doc_id in list(examples)[:5]:
        story = packtrain.explain(packed.folder, doc_id)
        assert [standing.side for standing in story.standings] == ["chosen", "rejected"]
        assert len({standing.row for standing in story.standings}) == 1
        assert sum(standing.trained for standing in story.standings) == examples[doc_id]["tokens_trained"]
        assert "in 1 row" in story.summary()
        done = kit.cli("inspect", packed.folder, "--id", story.id)
        assert "the rejected side, from token" in done.out


@SHARED
def test_card_and_report_speak_of_pairs(share: str, tmp_path: Path) -> None:
    packed = kit.packed(configured(tmp_path, share, run={"report": True}))
    card = (packed.folder / NAME).read_text()
    assert "# Packed preference pairs" in card
    assert "pairs a row" in card
    assert f"- `{SIDES}`: 0 for the chosen side of a pair" in card
    assert ("only packtrain's attention can train these rows" in card) == (share == "row")
    pairs = sum(len(row["doc_ids"]) for row in packed.rows()) / 2
    (line,) = (note for note in packed.notes if "pairs on average" in note)
    assert f"A row holds {pairs / len(packed.rows()):,.1f} pairs on average" in line
    assert "chosen" in (packed.folder / "report.html").read_text()


@SHARED
def test_a_stream_gives_the_sides_of_a_run(share: str, tmp_path: Path) -> None:
    config = configured(tmp_path, share)
    expected = Counter(
        (tuple(row["sides"]).count(1), tuple(sorted(row["doc_ids"]))) for row in kit.packed(config).rows()
    )
    windows = LiveWindows(RunConfig.model_validate(config), base=tmp_path, workers=1, window_bytes=1 << 20)
    try:
        (window,) = windows.walk(0, 0, 1)
        batch = window.lay_out(0, window.rows)
    finally:
        windows.close()
    rows = [RowBatch(batch, "it").row(number) for number in range(window.rows)]
    for row in rows:
        assert row.sides is not None
        assert row.sides.tolist() == [0, 1] * (len(row.seq_lengths) // 2)
        assert (row.doc_ids[::2] == row.doc_ids[1::2]).all()
        assert (row.parents is not None) == (share == "row")
    streamed = Counter((len(row.seq_lengths) // 2, tuple(sorted(row.doc_ids.tolist()))) for row in rows)
    # Windows have an order of their own, but plan the same rows.
    assert streamed == expected


def test_a_stream_packs_the_pairs_of_one_split(tmp_path: Path) -> None:
    config = configured(tmp_path, holdout={"fraction": 0.3})
    packed = kit.packed(config)
    for split in packed.splits:
        windows = LiveWindows(RunConfig.model_validate(config), split=split, base=tmp_path, workers=1)
        try:
            ledger = next(windows.walk(0, 0, 1)).ledger.total()
        finally:
            windows.close()
        count = packed.manifest.ledger.total().examples_packed[split]
        assert ledger.examples_packed[split] == count
        assert sum(ledger.examples_dropped.values()) == 90 - count


def test_two_limits_are_compared(tmp_path: Path) -> None:
    wide = kit.packed(configured(tmp_path, out=str(tmp_path / "wide")))
    narrow = kit.packed(configured(tmp_path, out=str(tmp_path / "narrow"), truncate={"max_length": 192}))
    difference = packtrain.diff(wide.folder, narrow.folder)
    assert difference.examples is not None
    counts = difference.examples.counts
    kept = {document["id"]: document["tokens_kept"] for document in narrow.documents()}
    changed = sum(kept.get(document["id"]) != document["tokens_kept"] for document in wide.documents())
    assert changed > 0
    assert counts["only_a"] + counts["tokens"] == sum(counts.values()) == changed


def test_what_is_stored_once_is_kept_all_the_same(tmp_path: Path) -> None:
    limit = {"max_length": 1024}
    twice = kit.packed(configured(tmp_path, out=str(tmp_path / "twice"), truncate=limit))
    once = kit.packed(configured(tmp_path, "row", out=str(tmp_path / "once"), truncate=limit))
    difference = packtrain.diff(twice.folder, once.folder)
    assert difference.examples is not None
    assert not any(difference.examples.counts.values())
    assert not difference.identical


@SHARED
def test_a_mixture_does_not_depend_on_what_is_stored_once(share: str, tmp_path: Path) -> None:
    kit.write(tmp_path / "more.jsonl", kit.corpus("choices", 60, seed=5))
    sources = [kit.source("choices", weight=1), kit.source("choices", name="more", path="more.jsonl", weight=2)]
    kit.write(tmp_path / "choices.jsonl", kit.corpus("choices"))
    copies = []
    for pack in ({"share": share}, {"share": "none"}):
        config = kit.configure(
            tmp_path, *sources, pack=pack, truncate={"max_length": 512}, out=str(tmp_path / f"{pack}")
        )
        packed = kit.packed(config)
        copies.append([(document["id"], document["copies"]) for document in packed.documents()])
        # Both sides of each copy are a pair, although documents have different numbers of copies.
        assert verify(packed.folder, deep=True).sound
    assert copies[0] == copies[1]
    assert any(count > 1 for _, count in copies[0])


def test_windows_keep_pairs_together(tmp_path: Path) -> None:
    kit.write(tmp_path / "choices.jsonl", kit.corpus("choices", 30))
    kit.write(tmp_path / "more.jsonl", kit.corpus("choices", 30, seed=5))
    sources = [kit.source("choices"), kit.source("choices", name="more", path="more.jsonl")]
    packed = kit.packed(kit.configure(tmp_path, *sources, pack={"window_tokens": 1500}))
    assert len(packed.manifest.splits["train"].windows) == 2
    assert verify(packed.folder, deep=True).sound


@SHARED
def test_copies_of_a_pair_stand_in_rows_of_their_own(share: str, tmp_path: Path) -> None:
    kit.write(tmp_path / "choices.jsonl", kit.corpus("choices", 40))
    packed = kit.packed(kit.configure(tmp_path, kit.source("choices", repeat=3), pack={"share": share}))
    assert packed.manifest.ledger.total().copies_together == copies_together(packed)
    # Six copies, and no more than two rows: some stand together, and each pair counts once for it.
    few_rows = kit.configure(
        tmp_path,
        kit.source("choices", repeat=6),
        out=str(tmp_path / "few"),
        pack={"share": share, "row_length": 1 << 16},
    )
    packed = kit.packed(few_rows)
    assert packed.manifest.ledger.total().copies_together == copies_together(packed) > 0


def copies_together(packed: kit.Packed) -> int:
    """Pairs that stand in one row with an earlier copy."""
    return sum(count - 1 for row in packed.rows() for count in Counter(row["doc_ids"][::2]).values())


@SHARED
def test_bytes_depend_on_no_worker_and_no_kill(share: str, tmp_path: Path) -> None:
    config = configured(tmp_path, share, holdout={"fraction": 0.2})
    expected = kit.tree(kit.packed(config).folder)
    two = kit.packed(kit.merged(config, {"out": str(tmp_path / "two"), "cache": str(tmp_path / "cache two"),
                                         "run": {"workers": 2}}))  # fmt: skip
    assert kit.tree(two.folder) == expected
    stopped = kit.merged(config, {"out": str(tmp_path / "stopped"), "cache": str(tmp_path / "cache stopped")})
    for at in (5, 4):
        ended = mortal(tmp_path / "puts", "run", kit.saved(stopped), at=at)
        assert ended.code == -signal.SIGKILL, ended
        assert not (tmp_path / "stopped" / "manifest.json").exists()
    assert kit.tree(kit.packed(stopped).folder) == expected


def test_a_lost_shard_of_pairs_is_made_again(tmp_path: Path) -> None:
    config = configured(tmp_path, "row")
    packed = kit.packed(config)
    expected = kit.tree(packed.folder)
    (packed.folder / packed.record["splits"]["train"]["shards"][0]["name"]).unlink()
    done = kit.cli("verify", packed.folder, "--repair", kit.saved(config))
    assert done.code == 0, done.err
    assert kit.tree(packed.folder) == expected
