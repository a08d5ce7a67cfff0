"""Rows that are padded for context parallelism: what is in them, however they are made, and what the padding costs."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.pipeline.cli.views.run import packing_grid
from packtrain.pipeline.dataset.open import open_dataset
from packtrain.pipeline.dataset.padding_check import check_padding
from packtrain.pipeline.dataset.verify import verify
from packtrain.pipeline.pack import window_plan
from packtrain.pipeline.report.collect.gather import report_of
from packtrain.pipeline.report.diff.ledger_diff import packing_change
from packtrain.pipeline.report.draw.page import report_page
from packtrain.pipeline.run.driver import run
from packtrain.pipeline.run.forecast import plan
from packtrain.pipeline.run.repair import repair
from packtrain.pipeline.stream.stream import LiveWindows
from packtrain.schemas.config.config import RunConfig
from packtrain.schemas.errors import ConfigError, InputError
from packtrain.schemas.rows import IGNORE_INDEX, UNPADDED
from packtrain.schemas.units import share
from packtrain.stages.arrays import view

from tests.pipeline.conftest import Command, Little
from tests.support.examples import examples

Make = Callable[..., Path]
Rows = Callable[..., list[dict[str, Any]]]
LENGTH = 240  # of a row: a multiple of 1 to 6, of 8 and of 12
THD, RING = {"cp": 2}, {"cp": 4, "layout": "ring"}


@pytest.fixture(scope="module")
def corpus(little: Little, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small corpus, with everything that its runs share in the cache."""
    folder = tmp_path_factory.mktemp("parallel")
    little.copy(folder, out=False)
    return folder


@pytest.fixture(scope="module")
def configured(corpus: Path) -> Callable[..., dict[str, Any]]:
    """A configuration: `configured("out", pack={…}, other sections)`."""

    def make(out: str, pack: dict[str, Any], **sections: Any) -> dict[str, Any]:
        config: dict[str, Any] = json.loads((corpus / "run.yaml").read_text())
        return config | {"truncate": {"max_length": LENGTH}} | sections | {"out": str(corpus / out), "pack": pack}

    return make


@pytest.fixture(scope="module")
def made(configured: Callable[..., dict[str, Any]], corpus: Path) -> Make:
    """The folder of a dataset: `made("name", pack={…}, other sections)`; the same name gives the same folder."""

    def make(name: str, pack: dict[str, Any], **sections: Any) -> Path:
        if not (corpus / name).exists():
            run(configured(name, pack, **sections), base=corpus)
        return corpus / name

    return make


def check_rows(dataset: Path, rows: list[dict[str, Any]]) -> int:
    """Check every row against the multiples of its configuration. Returns the tokens of padding."""
    manifest = open_dataset(dataset).manifest
    alignment, pad_id, padding = manifest.alignment, manifest.plan["tokenizer"]["pad_id"], 0
    for row in rows:
        lengths, own = row["seq_lengths"], row[UNPADDED]
        assert sum(lengths) == len(row["input_ids"]) <= manifest.max_length
        assert len(row["input_ids"]) % alignment.row == 0
        assert len(own) == len(lengths)
        bounds = np.cumsum([0, *lengths]).tolist()
        for (begin, end), tokens in zip(pairwise(bounds), own, strict=True):
            last = end == bounds[-1]
            assert (end - begin) % alignment.document == 0
            assert 0 <= end - begin - tokens < (alignment.row if last else alignment.document)
            assert row["input_ids"][begin + tokens : end] == [pad_id] * (end - begin - tokens)
            assert row["labels"][begin + tokens : end] == [IGNORE_INDEX] * (end - begin - tokens)
            assert row["position_ids"][begin:end] == list(range(end - begin))
            padding += end - begin - tokens
    return padding


def pieces(rows: list[dict[str, Any]], own: str) -> list[tuple[Any, ...]]:
    """Every piece without padding, in ascending order."""
    found = []
    for row in rows:
        bounds = np.cumsum([0, *row["seq_lengths"]]).tolist()
        for begin, tokens, document, start in zip(bounds, row[own], row["doc_ids"], row["doc_starts"], strict=False):
            end = begin + tokens
            found.append((document, start, tuple(row["input_ids"][begin:end]), tuple(row["labels"][begin:end])))
    return sorted(found)


# --- what is in the rows ---

packs = st.fixed_dictionaries(
    {
        "strategy": st.sampled_from(["bfd", "tight", "bfd_split", "none", "wrapped"]),
        "align": st.sampled_from([1, 2, 3, 8]),
        "max_docs": st.none() | st.integers(1, 4),
        "shuffle": st.booleans(),
        "window_tokens": st.none() | st.just(4000),
    }
)
parallels = st.builds(
    lambda cp, tp, layout: {"cp": cp, "tp": tp, "layout": layout},
    st.integers(1, 4), st.integers(1, 3), st.sampled_from(["thd", "ring", "ulysses"]),
)  # fmt: skip


@examples(40)
@given(packs, parallels, st.sampled_from(["truncate", "split"]), st.sampled_from(["arrow", "parquet"]))
def test_every_dataset_keeps_its_multiples(
    tmp_path_factory: pytest.TempPathFactory,
    configured: Callable[..., dict[str, Any]],
    corpus: Path,
    read_rows: Rows,
    pack: dict[str, Any],
    parallel: dict[str, Any],
    overlong: str,
    form: str,
) -> None:
    # 144 tokens are a multiple of all that these ask for
    if pack["strategy"] == "wrapped":
        pack = pack | {"align": 1, "max_docs": None}
        parallel = parallel | {"layout": "ring" if parallel["layout"] == "thd" else parallel["layout"]}
    if pack["strategy"] in ("bfd_split", "wrapped"):
        overlong = "truncate"
    config = configured(
        "any", pack | {"parallel": parallel}, truncate={"max_length": 144, "overlong": overlong},
        output={"format": form, "shard_bytes": "64KiB"},
    )  # fmt: skip
    config["out"] = str(tmp_path_factory.mktemp("any") / "out")
    manifest = run(config, base=corpus)
    padding = sum(check_rows(Path(config["out"]), read_rows(config["out"], split)) for split in ("train", "holdout"))
    assert manifest.ledger.total().tokens_created.get("alignment", 0) == padding
    assert verify(config["out"], deep=True).findings == ()


def test_padding_changes_no_piece(made: Make, read_rows: Rows) -> None:
    """The documents of a padded dataset are those of a plain one, token for token and label for label."""
    plain = pieces(read_rows(made("plain", {})), "seq_lengths")
    for name, parallel in (("thd", THD), ("ring", RING)):
        rows = read_rows(made(name, {"parallel": parallel}))
        assert check_rows(made(name, {"parallel": parallel}), rows) > 0
        assert pieces(rows, UNPADDED) == plain


def test_parquet_holds_the_rows_of_arrow(made: Make, read_rows: Rows) -> None:
    there = made("parquet", {"parallel": THD}, output={"format": "parquet", "shard_bytes": "64KiB"})
    assert read_rows(there) == read_rows(made("thd", {"parallel": THD}))


@pytest.mark.parametrize("parallel", [THD, RING], ids=["thd", "ring"])
def test_shards_of_a_run_make_the_same_bytes(
    little: Little, configured: Callable[..., dict[str, Any]], corpus: Path, parallel: dict[str, Any]
) -> None:
    pack = {"parallel": parallel, "window_tokens": 4000}
    name = f"alone-{parallel['cp']}"
    run(configured(name, pack), base=corpus)
    shared = configured(f"shared-{parallel['cp']}", pack)
    for number in (1, 0):
        run(shared | {"run": {"workers": 1, "report": False, "shard": f"{number}/2"}}, base=corpus)
    assert little.files(Path(shared["out"])) == little.files(corpus / name)
    assert any("/shards/" in file for file in little.files(corpus / name))


def test_layouts_written_a_few_pieces_at_a_time(
    made: Make, configured: Callable[..., dict[str, Any]], corpus: Path, little: Little, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = little.files(made("ring", {"parallel": RING}))
    monkeypatch.setattr(window_plan, "PIECES_AT_ONCE", 7)
    few = configured("few", {"parallel": RING})
    run(few, base=corpus)
    assert little.files(Path(few["out"])) == whole


def test_a_repair_brings_the_same_bytes(
    configured: Callable[..., dict[str, Any]], corpus: Path, little: Little, sparing_repairs: None
) -> None:
    config = configured("repaired", {"parallel": RING})
    run(config, base=corpus)
    out = Path(config["out"])
    before = little.files(out)
    shard = sorted((out / "train" / "shards").iterdir())[0]
    shard.unlink()
    (out / "train" / "rows.arrow").unlink()
    repair(out)
    assert little.files(out) == before


def test_a_stream_pads_as_a_run_does(configured: Callable[..., dict[str, Any]], corpus: Path) -> None:
    config = configured("streamed", {"parallel": THD})
    for source in config["sources"]:
        source["path"] = str(corpus / source["path"])
    windows = LiveWindows(config | {"cache": str(corpus / "cache")}, workers=0)
    counted = 0
    for window in windows.walk(0, 0, 1):
        window.ledger.check()
        batch = window.lay_out(0, window.rows)
        found = list(check_padding(batch, RunConfig.model_validate(config).pack.alignment, _pad_id(batch)))
        assert found == []
        lengths, own = (view(batch.column(name).flatten()) for name in ("seq_lengths", UNPADDED))
        assert window.ledger.total().tokens_created["alignment"] == int((lengths - own).sum()) > 0
        counted += window.rows
    windows.close()
    assert counted > 30


def _pad_id(batch: pa.RecordBatch) -> int:
    """The last token of the first piece that has padding."""
    lengths, own = (view(batch.column(name).flatten()) for name in ("seq_lengths", UNPADDED))
    first = int(np.argmax(lengths > own))
    return int(view(batch.column("input_ids").flatten())[int(lengths[: first + 1].sum()) - 1])


# --- other readers ---


def test_trls_collator_needs_lengths_with_padding(made: Make) -> None:
    """Its positions and bounds come from `seq_lengths` alone, so these must add up to the row.

    With lengths that leave the padding out, it fails, or gives positions that are shifted against the tokens.
    """
    collator = pytest.importorskip("trl.trainer.sft_trainer").DataCollatorForLanguageModeling
    rows = list(pytest.importorskip("datasets").load_from_disk(str(made("thd", {"parallel": THD})))["train"])[:4]
    shorter = [row | {"seq_lengths": row[UNPADDED]} for row in rows]
    flat = collator(pad_token_id=0, padding_free=True)
    batch = flat(rows)
    assert batch["position_ids"].tolist() == [[place for row in rows for place in row["position_ids"]]]
    lengths = [length for row in rows for length in row["seq_lengths"]]
    assert batch["cu_seq_lens_q"].tolist() == np.cumsum([0, *lengths]).tolist()
    assert batch["labels"].tolist() == [[label for row in rows for label in row["labels"]]]
    with pytest.raises(IndexError, match="shape of the mask"):
        flat(shorter)
    padded = collator(pad_token_id=0, return_position_ids=True)
    for row, right, wrong in zip(rows, padded(rows)["position_ids"], padded(shorter)["position_ids"], strict=True):
        count = len(row["position_ids"])
        assert right.tolist()[:count] == row["position_ids"]
        assert wrong.tolist()[:count] != row["position_ids"]


# --- damage, and configurations that cannot be ---


@pytest.mark.parametrize("parallel", [THD, RING], ids=["thd", "ring"])
def test_every_changed_length_is_found(made: Make, parallel: dict[str, Any]) -> None:
    """Of the rows alone: a length that says more or less than what is there. One that is higher by padding that looks
    like a token is left to the hash."""
    dataset = open_dataset(made("thd" if parallel is THD else "ring", {"parallel": parallel}))
    alignment, pad_id = dataset.manifest.alignment, dataset.manifest.plan["tokenizer"]["pad_id"]
    (batch, *_) = dataset.batches(dataset.manifest.splits["train"].shards[0])
    own = view(batch.column(UNPADDED).flatten())
    lengths = view(batch.column("seq_lengths").flatten())
    assert list(check_padding(batch, alignment, pad_id)) == []
    for place in range(0, len(own), 7):
        others = {0, -1, own[place] - 1, own[place] - alignment.row, lengths[place] + 1, 2**31 - 1} - {own[place]}
        for other in others:
            changed = own.copy()
            changed[place] = other
            assert list(check_padding(_with(batch, changed), alignment, pad_id)), (place, int(other))


def _with(batch: pa.RecordBatch, values: Any) -> pa.RecordBatch:
    """The batch with other unpadded lengths."""
    column = batch.column(UNPADDED)
    values = pa.ListArray.from_arrays(column.offsets, pa.array(values, pa.int32()), type=column.type)
    return batch.set_column(batch.schema.get_field_index(UNPADDED), batch.schema.field(UNPADDED), values)


@pytest.mark.parametrize(
    ("pack", "length", "message"),
    [
        ({"parallel": {"cp": 4}}, 2050, r"\(2050\) must be a multiple of 8 for .*cp 4, layout thd\); take 2048"),
        ({"parallel": {"cp": 3, "layout": "ring"}}, 512, "multiple of 3 for .*; take 510 or 513"),
        ({"parallel": {"cp": 4, "layout": "ring"}, "align": 6}, 512, "multiple of 12 for pack.align and pack.parallel"),
        ({"parallel": {"cp": 2, "tp": 3}}, 512, r"multiple of 12 for pack.parallel \(cp 2, tp 3, layout thd\)"),
        ({"parallel": {"cp": 2}, "strategy": "wrapped"}, 512, "wrapped cuts anywhere: .* take layout ring"),
        ({"parallel": {"cp": 2, "layout": "rings"}}, 512, "'thd', 'ring' or 'ulysses'"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(
    configured: Callable[..., dict[str, Any]], corpus: Path, pack: dict[str, Any], length: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run(configured("refused", pack, truncate={"max_length": length}), base=corpus)
    assert not (corpus / "refused").exists()


def test_an_overlong_document_names_a_length_that_fits(configured: Callable[..., dict[str, Any]], corpus: Path) -> None:
    """The length that the error proposes is one that the configuration allows."""
    config = configured("long", {"parallel": {"cp": 3}}, truncate={"max_length": 30, "overlong": "error"})
    with pytest.raises(InputError, match=r"raise the length \(truncate: \{max_length: \d+\}\)") as error:
        run(config, base=corpus)
    proposed = int(str(error.value).rpartition("max_length: ")[2].split("}")[0])
    assert proposed % 6 == 0
    run(config | {"truncate": {"max_length": proposed, "overlong": "error"}}, base=corpus)


# --- what it costs ---


@pytest.mark.parametrize(
    ("parallel", "strategy"),
    [(THD, "bfd"), ({"cp": 4}, "bfd_split"), (RING, "bfd"), (RING, "wrapped"), (THD, "tight"), (THD, "none")],
)
def test_the_cost_is_counted(
    made: Make,
    configured: Callable[..., dict[str, Any]],
    corpus: Path,
    read_rows: Rows,
    parallel: dict[str, Any],
    strategy: str,
) -> None:
    """A report's numbers are those of the rows, and of a run without padding; a plan knows them before."""
    pack = {"parallel": parallel, "strategy": strategy}
    name = "-".join(map(str, ["cost", *parallel.values(), strategy]))
    plain = open_dataset(made(f"without-{strategy}", {"strategy": strategy})).manifest.splits["train"]
    ahead = plan(configured(name, pack), base=corpus)
    folder = made(name, pack)
    cost = report_of(folder).packing
    assert cost is not None
    assert cost.padding is not None
    there = open_dataset(folder).manifest
    rows = there.splits["train"].rows
    padding = check_rows(folder, read_rows(folder))
    assert cost.padding.tokens == padding
    assert padding > 0 or strategy == "wrapped"  # only its last row is not full
    assert cost.padding.share == pytest.approx(cost.padding.tokens / rows / LENGTH)
    assert cost.padding.rows_more == rows - plain.rows
    assert (cost.padding.document, cost.padding.row) == (there.alignment.document, there.alignment.row)
    assert cost.sentence.endswith(cost.padding.sentence)
    if strategy != "none":
        assert ahead.packing is not None
        assert ahead.packing.padding is not None
        expected = ahead.packing.padding
        assert expected.rows_more == cost.padding.rows_more
        exact = there.alignment.row == there.alignment.document
        assert expected.tokens == cost.padding.tokens if exact else expected.tokens >= cost.padding.tokens
        assert ("at most" in expected.sentence) != exact


def test_a_run_says_what_padding_costs(
    configured: Callable[..., dict[str, Any]], corpus: Path, packtrain: Command
) -> None:
    (corpus / "said.yaml").write_text(json.dumps(configured("said", {"parallel": {"cp": 4}})))
    done = packtrain("run", corpus / "said.yaml")
    assert done.code == 0
    total = open_dataset(corpus / "said").manifest.ledger.total().tokens_created["alignment"]
    said = " ".join(done.out.split())
    assert f"For pack.parallel (cp 4, layout thd), packtrain pads pieces to multiples of 8: {total:,} tokens" in said
    assert "rows more than without it" in said
    assert "┃ padding ┃" in done.out


def test_fill_is_one_number(
    configured: Callable[..., dict[str, Any]], corpus: Path, read_rows: Rows, packtrain: Command
) -> None:
    """Tokens of documents over the rows' capacity: counted from the rows, and the same wherever it is shown."""
    config = configured("fill", {"parallel": THD}, holdout={"fraction": 0})
    ahead = plan(config, base=corpus)
    (corpus / "fill.yaml").write_text(json.dumps(config))
    assert packtrain("run", corpus / "fill.yaml").code == 0
    folder = corpus / "fill"
    rows = read_rows(folder)
    tokens, slots = sum(sum(row[UNPADDED]) for row in rows), sum(len(row["input_ids"]) for row in rows)
    fill = tokens / (len(rows) * LENGTH)
    assert tokens < slots, "there is padding"
    shown = json.loads(packtrain("run", corpus / "fill.yaml", "--json").out)["splits"]["train"]
    assert shown["fill"] == fill
    assert shown["tokens"] == slots
    table = packing_grid(open_dataset(folder).manifest)
    cells = dict(zip(table.head, table.rows[0], strict=True))
    assert (cells["fill"], cells["padding"]) == (f"{fill:.2%}", f"{(slots - tokens) / (len(rows) * LENGTH):.2%}")
    report = report_of(folder)
    assert report.packing is not None
    assert report.packing.splits[0].fill == fill
    assert dict(report_page(report).facts)["fill"] == share(fill, 2)
    assert share(fill) in report.packing.sentence
    # The share that is trained leaves padding out, too, so that a plan and a run say the same.
    labels = sum(label != IGNORE_INDEX for row in rows for label in row["labels"])
    assert cells["trained"] == f"{labels / tokens:.1%}"
    assert report.training is not None
    assert ahead.training is not None
    for training in (report.training, ahead.training):
        assert sum(one.labels for one in training.sources) == labels
        assert sum(one.tokens for one in training.sources) == tokens
        assert training.sentence.startswith(f"The loss falls on {share(labels / tokens)} of the packed tokens")
    assert ahead.choice is not None
    swept = [one for one in ahead.choice.points if (one.strategy, one.max_length) == ("bfd", LENGTH)]
    assert [one.fill for one in swept] == [pytest.approx(fill)]
    card = (folder / "README.md").read_text()
    assert f" {share(fill)} |" in card
    change = packing_change(open_dataset(folder).manifest, open_dataset(folder).manifest)
    assert [one.a for one in change if one.name == "fill"] == [fill]
    seen = json.loads(packtrain("loader", folder, "--rows-per-step", 1, "--steps", len(rows), "--json").out)["seen"]
    assert sum(one["fill"] for one in seen) / len(rows) == pytest.approx(fill)
    row = json.loads(packtrain("inspect", folder, "--row", 0, "--json").out)
    assert row["fill"] == sum(rows[0][UNPADDED]) / LENGTH
