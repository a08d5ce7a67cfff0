"""JSON arrays and text files: cut, read and refused."""

import gzip
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.pipeline.inputs import scan as sources
from packtrain.pipeline.inputs.blocks import InputFile
from packtrain.pipeline.inputs.find import find_inputs
from packtrain.pipeline.inputs.read import block_examples, read_rows
from packtrain.pipeline.inputs.scan import scan_inputs
from packtrain.pipeline.inputs.source_formats import resolve_format
from packtrain.pipeline.store.local import LocalStore
from packtrain.schemas.config.config import SourceConfig
from packtrain.stages.prep import Options, PreparedBlock


def source(*paths: Path, **more: Any) -> SourceConfig:
    return SourceConfig.model_validate({"name": "one", "format": "text", "path": [str(path) for path in paths], **more})


def scan(path: Path, **more: Any) -> list[InputFile]:
    return scan_inputs([source(path, **more)], path.parent, LocalStore(path.parent / ".cache"))


def prepared(file: InputFile, max_row_bytes: int = 1 << 24) -> list[PreparedBlock]:
    return [block_examples(block, ("text", Options()), max_row_bytes) for block in file.blocks]


def texts(file: InputFile) -> list[str | None]:
    return [one.text for each in prepared(file) for one in each.examples]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


# JSON arrays

words = st.text(st.sampled_from('a"\\[]{},:\n é'), max_size=12)
values = st.recursive(
    words | st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)


@given(
    rows=st.lists(st.dictionaries(words, values, max_size=3), min_size=1, max_size=8),
    indent=st.none() | st.integers(0, 3),
    ascii=st.booleans(),
)
def test_elements_are_lines(folder: Path, rows: list[dict[str, Any]], indent: int | None, ascii: bool) -> None:
    data = f" \n{json.dumps(rows, indent=indent, ensure_ascii=ascii)}\n".encode()
    (folder / "in.json").write_bytes(data)
    (file,) = scan(folder / "in.json")
    lines = [line for block in file.blocks for _, line in read_rows(block, 1 << 20).lines or ()]
    assert [json.loads(line) for line in lines] == rows


def test_a_long_element_costs_its_row_and_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "BLOCK_BYTES", 200)
    rows = [{"text": "a"}, {"text": "b" * 5000}, {"text": "c"}]
    (tmp_path / "in.json").write_text(json.dumps(rows))
    (file,) = scan(tmp_path / "in.json", max_row_bytes=1024)
    made = prepared(file, 1024)
    assert [one.text for each in made for one in each.examples] == ["a", "c"]
    assert [reason for each in made for _, reason, _ in each.rejects] == ["row_too_long"]


# Text files


def test_a_text_file_is_one_document(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_bytes("Eins.\n\nZwei: ü\r\n".encode())
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf<html> as text [1] \n"))
    (tmp_path / "c.txt").write_bytes(b"caf\xe9")
    files = scan(tmp_path)
    assert [file.shown for file in files] == ["a.txt.gz", "b.txt", "c.txt"]
    assert [texts(file) for file in files] == [["<html> as text [1] \n"], ["Eins.\n\nZwei: ü\r\n"], []]
    assert [reason for one in prepared(files[2]) for _, reason, _ in one.rejects] == ["invalid_utf8"]
    assert {file.lines for file in files} == {1}
    assert resolve_format(source(tmp_path, format="auto"), tmp_path, files).name == "text"


def test_texts_of_a_folder_are_read_where_nothing_else_is_data(tmp_path: Path) -> None:
    (tmp_path / "README.txt").write_text("about the data")
    assert [Path(one.name).name for one in find_inputs(source(tmp_path), tmp_path, tmp_path)] == ["README.txt"]
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    assert [Path(one.name).name for one in find_inputs(source(tmp_path), tmp_path, tmp_path)] == ["a.jsonl"]
