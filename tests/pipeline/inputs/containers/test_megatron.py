"""Megatron's pairs as a source: rows that megatron-core wrote, and files that cannot be used."""

import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.pipeline.inputs import scan as sources
from packtrain.pipeline.inputs.containers import megatron as container
from packtrain.pipeline.inputs.noted_files import files_note, read_files_note
from packtrain.pipeline.inputs.scan import InputFile, prepare_block, read_rows, scan_file
from packtrain.pipeline.inputs.scan_cache import scan_inputs
from packtrain.pipeline.store.local import LocalStore
from packtrain.schemas.config.config import SourceConfig
from packtrain.schemas.errors import ConfigError, InputError
from packtrain.stages.prep import make_format
from packtrain.stages.prep.tokenized import TokenizedOptions

from tests.support.examples import examples
from tests.support.foreign_files import megatron_pair as pair

Document = list[list[int]]
"""Token ids of each sequence."""
Dataset = tuple[str, list[Document], list[Document] | None]
TYPES = {"uint8": 255, "int8": 127, "uint16": 65_535, "int16": 32_767, "int32": 2**31 - 1, "int64": 2**31 - 1}


def write(prefix: Path, documents: list[Document], dtype: str) -> Path:
    """A pair as Megatron-LM's own tools write it; returns the index."""
    found = pytest.importorskip("megatron.core.datasets.indexed_dataset", reason="megatron-core is not installed")
    import torch

    prefix.parent.mkdir(parents=True, exist_ok=True)
    builder = found.IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.dtype(dtype).type)
    for document in documents:
        for sequence in document:
            builder.add_item(torch.tensor(sequence, dtype=torch.int64))
        builder.end_document()
    builder.finalize(f"{prefix}.idx")
    return Path(f"{prefix}.idx")


def scan(path: Path, max_row_bytes: int = 1 << 20) -> InputFile:
    return scan_file("one", "in", path, max_row_bytes, path.parent / "cache")


def rows_of(file: InputFile, max_row_bytes: int = 1 << 20, **options: Any) -> list[dict[str, Any]]:
    found = [read_rows(file.where(block), block, max_row_bytes, **options) for block in file.blocks]
    return [dict(row) for rows in found for _, row in rows.records or ()]


def take_small_steps(patch: pytest.MonkeyPatch) -> None:
    """Blocks and steps of a few documents."""
    patch.setattr(sources, "BLOCK_BYTES", 120)
    patch.setattr(container, "_DOCUMENTS", 3)
    patch.setattr(container, "_SEQUENCES", 2)
    patch.setattr(container, "_CHUNK", 10)


@st.composite
def datasets(draw: st.DrawFn) -> Dataset:
    """A type, documents, and their masks or None."""
    dtype = draw(st.sampled_from(sorted(TYPES)))
    sequence = st.lists(st.integers(0, TYPES[dtype]), min_size=0, max_size=9)
    documents = draw(st.lists(st.lists(sequence, min_size=1, max_size=4), min_size=1, max_size=12))
    if draw(st.booleans()):
        return dtype, documents, None
    return dtype, documents, [[[draw(st.integers(0, 1)) for _ in one] for one in document] for document in documents]


@pytest.mark.slow
@given(datasets(), st.integers(1, 12))
@examples(60)
def test_what_megatron_core_wrote_comes_back(data: Dataset, kept: int) -> None:
    dtype, documents, masks = data
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        take_small_steps(patch)
        place = Path(folder)
        path = write(place / "train" / "x", documents, dtype)
        if masks is not None:
            write(place / "train-mask" / "x", masks, "uint8")
        file = scan(path)
        expected = []
        for number, document in enumerate(documents):
            row = {"input_ids": [token for one in document for token in one]}
            if masks is not None:
                row["loss_mask"] = [flag for one in masks[number] for flag in one]
            row["seq_lengths"] = [len(one) for one in document]
            row["document_length"] = [len(row["input_ids"])]
            expected.append(row)
        assert rows_of(file) == expected
        assert rows_of(file, columns=("seq_lengths",)) == [{"seq_lengths": row["seq_lengths"]} for row in expected]
        assert file.lines == len(documents)
        assert container.document_count(path) == len(documents)
        assert container.some_documents(path, 1, 3) == expected[1:4]
        noted = read_files_note(files_note([file]))
        assert noted == [file]

        # A file to which these were appended has the same blocks, but for the last one.
        kept = min(kept, len(documents))
        write(place / "first" / "x", documents[:kept], dtype)
        if masks is not None:
            write(place / "first-mask" / "x", masks[:kept], "uint8")
        first = scan(place / "first" / "x.idx")
        assert first.blocks[:-1] == file.blocks[: len(first.blocks) - 1]
        assert first.blocks[-1].start == file.blocks[len(first.blocks) - 1].start


def test_sequences_and_documents_as_examples(tmp_path: Path) -> None:
    def made(path: Path, **keys: str) -> list[tuple[list[int], list[bool] | None]]:
        form = make_format("tokenized", TokenizedOptions(**keys))
        file = scan(path)
        return [
            (np.asarray(one.ids).tolist(), None if one.trained is None else np.asarray(one.trained).tolist())
            for block in file.blocks
            for one in prepare_block(path, block, form, 1 << 20).examples
        ]

    path = pair(tmp_path / "plain")
    assert made(path) == [([31, 32], None)]
    assert made(path, lengths_key="seq_lengths") == [([11, 12, 13], None), ([21], None), ([31, 32], None)]
    assert made(path, lengths_key="document_length") == [([11, 12, 13, 21], None), ([31, 32], None)]
    pair(tmp_path / "plain-mask", code=1, data=bytes([0, 1, 1, 1, 0, 1]), pointers=[0, 3, 4])
    assert made(path, lengths_key="seq_lengths") == [
        ([11, 12, 13], [False, True, True]),
        ([21], None),
        ([31, 32], [False, True]),
    ]


def test_sequences_that_lie_in_any_order(tmp_path: Path) -> None:
    path = pair(tmp_path / "x", pointers=[12, 0, 4])
    assert [row["input_ids"] for row in rows_of(scan(path))] == [[21, 31, 32, 11], [12, 13]]


def test_a_document_that_is_too_long(tmp_path: Path) -> None:
    """Its bytes: 4 tokens of int32, and 2 sequences of 12 bytes in the index."""
    path = pair(tmp_path / "x")
    assert [len(rows_of(scan(path, most), most)) for most in (39, 40)] == [1, 2]
    file = scan(path, 39)
    ((number, reason, _detail),) = read_rows(path, file.blocks[0], 39).rejects
    assert (number, reason) == (0, "row_too_long")


DAMAGED: dict[str, tuple[dict[str, Any], str]] = {
    "another mark": ({"mark": b"MMIDIDY\0\0"}, "does not begin with MMIDIDX, the mark of a Megatron index; copy it"),
    "another version": ({"version": 2}, "is of version 2, and only version 1 is known"),
    "an unknown type": ({"code": 9}, "has the unknown type code 9"),
    "floats": ({"code": 7}, "is of float32 numbers, which are not token ids"),
    "a negative length": ({"lengths": [3, -1, 2]}, "gives sequence 1 the length -1"),
    "a pointer before the file": ({"pointers": [0, -4, 16]}, "puts sequence 1 (1 tokens of int32) at byte -4 of"),
    "a pointer after the file": ({"pointers": [0, 12, 20]}, "at byte 20 of the .bin, which has 24 bytes"),
    "a .bin that is cut short": ({"data": bytes(20)}, "puts sequence 2 (2 tokens of int32) at byte 16 of the .bin"),
    "a pointer that overflows": ({"pointers": [0, 12, 2**63 - 4]}, "at byte 9,223,372,036,854,775,804 of the .bin"),
    "bounds that go back": ({"bounds": [0, 3, 2]}, "has bounds that go back: 3, then 2 (document 1)"),
    "bounds from elsewhere": ({"bounds": [1, 2, 3]}, "begins its first document at sequence 1, not 0"),
    "bounds beyond": ({"bounds": [0, 2, 4]}, "ends its last document at sequence 4, and has 3 sequences"),
    "sequences of no document": ({"bounds": [0, 2]}, "ends its last document at sequence 2, and has 3 sequences"),
    "sequences that overlap": ({"pointers": [0, 0, 0], "lengths": [3, 3, 1]}, "has sequences that overlap: they take"),
    "no bounds": ({"bounds": []}, "has no document bounds"),
    "more bytes": ({"more": b"x"}, "has 1 bytes more than its 3 sequences and 3 bounds take"),
    "modes": ({"more": b"xxx"}, "is that of a multimodal dataset, with a mode for each sequence"),
    "no .bin": ({"data": None}, "has no data.bin beside it, which holds its tokens"),
    "no documents": ({"lengths": [], "pointers": [], "bounds": [0]}, "is empty; remove it"),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_damage_is_named(tmp_path: Path, what: str) -> None:
    changes, reason = DAMAGED[what]
    path = pair(tmp_path / "x", **changes)
    with pytest.raises(InputError) as caught:
        scan(path)
    assert str(caught.value).startswith(f"{path} ")
    assert reason in str(caught.value)
    assert caught.value.exit_code == 2


def test_an_index_that_is_cut_short_anywhere(tmp_path: Path) -> None:
    path = pair(tmp_path / "x")
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(InputError):
            scan(path)


def test_flipped_bits_end_in_an_error_or_in_rows(tmp_path: Path) -> None:
    """None ends the process, reads outside of the files, or raises an unreadable error."""
    path = pair(tmp_path / "x")
    data, chance = path.read_bytes(), random.Random(3)
    refused: list[str] = []
    for _ in range(400):
        broken = bytearray(data)
        broken[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(broken)
        try:
            rows = rows_of(scan(path))
        except InputError as error:
            refused.append(str(error))
        else:
            assert sum(len(row["input_ids"]) for row in rows) <= 6
    assert len(refused) > 200
    assert all(str(path) in said for said in refused)


@pytest.mark.parametrize("name", ["x/data.bin", "x-mask/data.idx", "x-mask/data.bin"])
@pytest.mark.parametrize("kind", [os.mkfifo, os.mkdir])
def test_a_pipe_or_a_folder_in_place_of_a_file(tmp_path: Path, name: str, kind: Callable[[Path], None]) -> None:
    """A pipe without a writer would make the scan wait for ever."""
    path = pair(tmp_path / "x")
    pair(tmp_path / "x-mask", code=1, data=bytes([1] * 6), pointers=[0, 3, 4])
    (tmp_path / name).unlink()
    kind(tmp_path / name)
    with pytest.raises(InputError):
        scan(path)


def test_documents_without_sequences_are_not_all_one_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "BLOCK_BYTES", 120)
    path = pair(tmp_path / "x", lengths=[], pointers=[], bounds=[0] * 101)
    blocks = scan(path).blocks
    assert sum(block.lines for block in blocks) == 100
    assert max(block.lines for block in blocks) == 10


MASKS: dict[str, tuple[dict[str, Any], str]] = {
    "fewer sequences": ({"lengths": [4, 2], "pointers": [0, 4], "bounds": [0, 1, 2]}, "has 2 sequences, and .* has 3"),
    "fewer documents": ({"bounds": [0, 3]}, "has 1 documents, and .* whose mask it is, has 2"),
    "other lengths": ({"lengths": [2, 2, 2], "pointers": [0, 2, 4]}, "gives sequence 0 the length 2, and .* 3"),
    "other bounds": ({"bounds": [0, 1, 3]}, "has other document bounds than"),
    "damaged": ({"version": 3}, "is of version 3"),
    "of floats": ({"code": 6}, "is of float64 numbers"),
    "no .bin": ({"data": None}, "has no mask: .*x-mask has no data.idx with a data.bin; put them there, or rename"),
    "another name": ({"name": "other"}, "has no mask"),
}


@pytest.mark.parametrize("what", MASKS)
def test_a_mask_that_does_not_fit(tmp_path: Path, what: str) -> None:
    path = pair(tmp_path / "x")
    changes, reason = MASKS[what]
    mask: dict[str, Any] = {"code": 1, "data": bytes([1] * 6), "pointers": [0, 3, 4]}
    pair(tmp_path / "x-mask", **(mask | changes))
    with pytest.raises(InputError, match=reason):
        scan(path)


def test_files_that_change_after_the_scan(tmp_path: Path) -> None:
    path = pair(tmp_path / "x")
    pair(tmp_path / "x-mask", code=1, data=bytes([1] * 6), pointers=[0, 3, 4])
    file = scan(path)
    for changed in (path.with_suffix(".bin"), tmp_path / "x-mask" / "data.bin"):
        before = changed.read_bytes()
        for data in (bytes([before[0] ^ 1]) + before[1:], before[:-1], None):
            changed.unlink() if data is None else changed.write_bytes(data)
            with pytest.raises(InputError):
                rows_of(file)
        changed.write_bytes(before)
    assert len(rows_of(file)) == 2


def source(path: Path | str) -> SourceConfig:
    return SourceConfig.model_validate({"name": "s", "format": "tokenized", "path": str(path)})


@pytest.fixture
def cached(tmp_path: Path) -> Callable[[Path], list[InputFile]]:
    return lambda path: scan_inputs([source(path)], tmp_path, LocalStore(tmp_path / "cache"))


def test_a_change_of_any_file_is_noticed(tmp_path: Path, cached: Callable[[Path], list[InputFile]]) -> None:
    """Though a note of the scan is kept, and sizes stay the same."""
    path = pair(tmp_path / "x")
    pair(tmp_path / "x-mask", code=1, data=bytes([1] * 6), pointers=[0, 3, 4])
    seen: set[tuple[str, int]] = set()
    for changed in (None, path.with_suffix(".bin"), tmp_path / "x-mask" / "data.bin"):
        if changed is not None:
            changed.write_bytes(bytes([0]) + changed.read_bytes()[1:])
        for one in (path, path.with_suffix(".bin"), tmp_path / "x-mask" / "data.bin", tmp_path / "x-mask" / "data.idx"):
            os.utime(one, ns=(10**18, 10**18 + len(seen)))
        (file,) = cached(path)
        assert cached(path) == [file]
        seen.add((file.hash, file.mtime_ns))
    assert len(seen) == len({hash for hash, _ in seen}) == 3
    assert file.size == sum(one.stat().st_size for one in tmp_path.glob("x*/*.*"))


def test_folders_and_names(tmp_path: Path, cached: Callable[[Path], list[InputFile]]) -> None:
    train = tmp_path / "export" / "train"
    train.parent.mkdir()
    for name in ("a", "b"):
        pair(train, name)
        pair(train.with_name("train-mask"), name, code=1, data=bytes([1] * 6), pointers=[0, 3, 4])
    (train / "notes.txt").write_text("not data")
    assert [file.path.name for file in cached(train)] == ["a.idx", "b.idx"]
    assert [file.path.name for file in cached(tmp_path / "export")] == ["a.idx", "b.idx"]
    (train / "rows.jsonl").write_text('{"text": "a"}\n')
    assert [file.path.name for file in cached(train)] == ["rows.jsonl"]
    with pytest.raises(ConfigError):
        cached(tmp_path / "export" / "*" / "*.idx")
    with pytest.raises(ConfigError):
        cached(train / "a.bin")
    with pytest.raises(ConfigError):
        cached(train / "a")
