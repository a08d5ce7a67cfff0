"""What lies exactly at a limit, which random data seldom meet; documents are token ids, so that lengths are known."""

from pathlib import Path
from typing import Any

from tests import kit


def packed(folder: Path, rows: list[kit.Row], **keys: Any) -> tuple[list[int], kit.Row]:
    """The tokens of the documents that are kept, and the ledger of the source."""
    kit.write(folder / "ids.jsonl", rows)
    made = kit.packed(kit.configure(folder, "ids", **keys))
    return [one["tokens"] for one in made.documents()], made.ledger["ids"]


def of_lengths(*lengths: int) -> list[kit.Row]:
    return [{"input_ids": [7 + place] * length} for place, length in enumerate(lengths)]


def test_limits_of_a_filter_are_kept(tmp_path: Path) -> None:
    kept, ledger = packed(tmp_path, of_lengths(4, 5, 8, 9), filter={"min_tokens": 5, "max_tokens": 8})
    assert kept == [5, 8]
    assert ledger["examples_dropped"] == {"min_tokens": 1, "max_tokens": 1}


def test_a_document_of_a_row_s_length_is_whole(tmp_path: Path) -> None:
    for overlong in ("truncate", "drop", "split"):
        limit = {"max_length": 16, "overlong": overlong}
        kept, ledger = packed(tmp_path, of_lengths(15, 16), truncate=limit, out=str(tmp_path / overlong))
        assert kept == [15, 16]
        assert ledger["tokens_packed"] == ledger["tokens_encoded"] == 31


def test_a_first_token_alone_is_nothing_to_train(tmp_path: Path) -> None:
    rows = [{"input_ids": [7] * 6, "labels": [7, *[-100] * 5]}, {"input_ids": [7] * 6, "labels": [7, 7, *[-100] * 4]}]
    kept, ledger = packed(tmp_path, rows)
    assert (len(kept), ledger["labels_trained"]) == (1, 1)
    assert ledger["examples_dropped"] == {"untrained": 1}
