"""Prep alone: examples for other tools, every row accounted for, and a file that appears only when it is complete."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packtrain.pipeline.observer import Observer
from packtrain.pipeline.run.prep_only import PrepCounts, prepare_source
from packtrain.schemas.config.config import SourceConfig
from packtrain.schemas.errors import OutputError

Row = dict[str, Any]
Prepare = Callable[..., PrepCounts]


def chat(*texts: str, **more: Any) -> Row:
    roles = ("user", "assistant") * len(texts)
    return {"messages": [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)], **more}


def read(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def prep(tmp_path: Path) -> Prepare:
    """`prep(rows, format, output)`: rows are written as JSONL; bytes as they are."""

    def call(
        rows: "list[Row] | bytes", format: str, output: str, *, prompt_only: bool = False, **more: Any
    ) -> PrepCounts:
        data = rows if isinstance(rows, bytes) else b"".join(json.dumps(row).encode() + b"\n" for row in rows)
        (tmp_path / "in.jsonl").write_bytes(data)
        source = SourceConfig.model_validate({"name": "a", "format": format, "path": "in.jsonl", **more})
        return prepare_source(source, tmp_path, tmp_path / output, prompt_only=prompt_only)

    return call


def test_prompts_say_which_row_they_came_from(prep: Prepare, tmp_path: Path) -> None:
    rows: list[Row] = [{"question": "q", "id": 7}, {"question": ""}, {"question": "s"}, {"question": "s", "id": ""}]
    for row, solutions in zip(rows, ([5], "", "not JSON", {}), strict=True):  # which prompts do not need
        row["solutions"] = solutions
    prep(rows, "apps", "out.jsonl", prompt_only=True)
    found = [(row["id"], row["row"]) for row in read(tmp_path / "out.jsonl")]
    assert found == [("7", 0), (found[1][0], 2), (found[1][0], 3)]
    assert len(found[1][0]) == 16
    lines = b'{"id": 5, "prompt": "a"}\n\n{\n{"prompt": "c", "id": {"k": 1}}\n{"prompt": "d", "id": "d/1"}\n'
    prep(lines, "prompt_completion", "two.jsonl", prompt_only=True)
    assert [(row["id"], row["row"]) for row in read(tmp_path / "two.jsonl")] == [("0", 0), ("3", 3), ("4", 4)]


def test_a_file_that_appears_meanwhile_stays(tmp_path: Path) -> None:
    class Other(Observer):
        def begin(self, stage: str, total: int, unit: str) -> None:
            (tmp_path / "out.jsonl").write_text("theirs")

    (tmp_path / "in.jsonl").write_text(json.dumps({"text": "a"}))
    source = SourceConfig.model_validate({"name": "a", "format": "text", "path": "in.jsonl"})
    with pytest.raises(OutputError, match="exists"):
        prepare_source(source, tmp_path, tmp_path / "out.jsonl", observer=Other())
    assert (tmp_path / "out.jsonl").read_text() == "theirs"


def test_rows_of_prompts_are_counted_over_files(tmp_path: Path) -> None:
    for name, texts in (("a", "ab"), ("b", "cde")):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    pq.write_table(pa.table({"prompt": ["f", "g"]}), tmp_path / "c.parquet")
    paths = ["a.jsonl", "b.jsonl", "c.parquet"]
    source = SourceConfig.model_validate({"name": "a", "format": "prompt_completion", "path": paths, "max_rows": 7})
    prepare_source(source, tmp_path, tmp_path / "out.jsonl", prompt_only=True)
    found = [(row["prompt"], row["id"], row["row"]) for row in read(tmp_path / "out.jsonl")]
    assert found == [(text, str(row), row) for row, text in enumerate("abcdefg")]


def test_every_row_is_told(prep: Prepare, tmp_path: Path) -> None:
    good = json.dumps(chat("a", "b")).encode()
    long = json.dumps(chat("x" * 2000, "b")).encode()
    data = b"\n".join([b"\xef\xbb\xbf" + good, b"", b"{", long, b'{"messages": 5}', good + b"\r", b'{"other": 1}'])
    counts = prep(data, "messages", "out.jsonl", max_row_bytes=1024)
    assert (counts.rows, counts.examples) == (6, 2)
    assert counts.rejected == {"invalid_json": 1, "row_too_long": 1, "wrong_type": 1, "missing_key": 1}
    assert "in.jsonl, line 3: invalid_json: " in counts.first_reject
    assert read(tmp_path / "out.jsonl") == [chat("a", "b")] * 2
