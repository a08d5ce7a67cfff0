"""Inspect: documents of a row are separated, every id is at its place, and a damaged file is named."""

import shutil
from itertools import chain
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from packtrain.pipeline.dataset.decode import load_decoder, pieces
from packtrain.pipeline.dataset.open_dataset import open_dataset
from packtrain.schemas.rows import IGNORE_INDEX
from tokenizers import Tokenizer

from tests import kit


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished dataset of prompts and completions, two splits."""
    return kit.packed(kit.configure(tmp_path_factory.mktemp("inspect"), "pairs", holdout={"fraction": 0.2})).folder


def test_pieces_are_the_row_cut_at_its_documents(packed: Path) -> None:
    dataset = open_dataset(packed)
    for split, record in dataset.manifest.splits.items():
        for row in range(record.rows):
            batch = dataset.row(row, split)
            found = pieces(dataset, row, split)
            assert list(chain.from_iterable(piece.ids for piece in found)) == batch.column("input_ids")[0].as_py()
            trained = [weight > 0 for piece in found for weight in piece.weights]
            assert trained == [label != IGNORE_INDEX for label in batch.column("labels")[0].as_py()]
            assert [piece.doc_id for piece in found] == batch.column("doc_ids")[0].as_py()
            for piece in found:
                runs = list(piece.stretches())
                assert list(chain.from_iterable(ids for *_, ids in runs)) == piece.ids
                assert [weight > 0 for weight, *_ in runs] == [False, True], "a prompt, then a completion"


@pytest.mark.parametrize("which", ["documents.parquet", "train/shards/*.arrow"])
def test_a_damaged_file_is_named(packed: Path, tmp_path: Path, which: str) -> None:
    copy = Path(shutil.copytree(packed, tmp_path / "copy"))
    path = max(copy.glob(which))
    path.write_bytes(path.read_bytes()[:-200])
    done = kit.cli("inspect", copy, "--row", open_dataset(copy).manifest.splits["train"].rows - 1)
    assert done.code == 1
    assert path.name in "".join(done.err.split())


def test_a_table_of_documents_that_was_changed_is_not_read(packed: Path, tmp_path: Path) -> None:
    """Over some damage of its metadata, pyarrow ends the process."""
    copy = Path(shutil.copytree(packed, tmp_path / "copy"))
    table = pq.read_table(copy / "documents.parquet")
    pq.write_table(
        table.set_column(1, table.schema.field(1), [table["id"].to_pylist()[::-1]]), copy / "documents.parquet"
    )
    done = kit.cli("inspect", copy, "--row", 0)
    assert (done.code, "verify --repair" in " ".join(done.err.split())) == (1, True)


def test_a_character_across_two_runs_stands_whole_in_the_later() -> None:
    decoder = load_decoder(kit.demo_tokenizer())
    ids = Tokenizer.from_file(str(kit.demo_tokenizer() / "tokenizer.json")).encode("a日本").ids
    halves = [decoder.spans([ids[:cut], ids[cut:]]) for cut in range(1, len(ids))]
    assert len(halves) > 3, "the characters are several tokens each"
    assert all("".join(pair) == "a日本" for pair in halves)
    assert not any("\ufffd" in text for pair in halves for text in pair)
