"""Files that are not what they are called: the message says what they seem to be, on which line, and what to do."""

import ast
import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from packtrain.pipeline.inputs.containers.misfits import LOOKED_AT, looks_like
from packtrain.pipeline.inputs.scan import sample_rows, scan_file
from packtrain.pipeline.run.forecast import plan
from packtrain.schemas.errors import InputError

Command = Callable[..., Any]
ROWS = [{"question": f"q {number}, why", "answer": f"a\t{number}"} for number in range(50)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


def separated(delimiter: str) -> bytes:
    out = io.StringIO()
    writer = csv.DictWriter(out, ["question", "answer"], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(ROWS)
    return out.getvalue().encode()


FILES: dict[str, tuple[bytes, str]] = {
    "csv": (separated(","), "looks like comma-separated values, 2 in a line: call the file .csv"),
    "tsv": (separated("\t"), "looks like tab-separated values, 2 in a line: call the file .tsv"),
    "semicolons": (separated(";"), "semicolon-separated values, 2 in a line: write it with commas"),
    "pretty": (json.dumps(ROWS[0], indent=2).encode(), "objects that go over several lines: `jq -c .`"),
    "pretty, many": (
        "\n".join(json.dumps(row, indent=2) for row in ROWS).encode(), "objects that go over several lines"
    ),
    "wrapped": (json.dumps({"version": 1, "data": ROWS}, indent=1).encode(), "`data` has the rows: `jq -c '.data[]'`"),
    "wrapped, long": (json.dumps({"data": ROWS * 99}, indent=1).encode(), "objects that go over several lines"),
    "no newlines": (LINES.replace("\n", "").encode(), "several objects in a line: `jq -c .`"),
    "commas": (LINES.replace("\n", ",\n").encode(), "a comma after each object: `sed 's/,$//'`"),
    "array inside": (json.dumps(ROWS)[1:].encode(), "is the inside of a JSON array"),
    "python": ("".join(f"{row}\n" for row in ROWS).encode(), "objects as Python prints them: write them with"),
    "yaml": (yaml.safe_dump(ROWS, sort_keys=False).encode(), "looks like YAML"),
    "numbers": (b"1\n2\n", "has a number in a line: each line must be an object"),
    "texts": (b'"a"\n"b"\n', "has a text in a line: each line must be an object"),
    "prose": (b"the mules left\nbefore the sun was up\n", "is text, not JSON"),
    "html": (b"<!DOCTYPE html>\n<html><body>404</body></html>\n", "is a page of HTML or XML: often an error"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "`git lfs pull` fetches it"),
    "program": (b"\x7fELF\x02\x01\x01" + bytes(range(256)) * 9, "is a program: check the path"),
    "noise": (bytes((number * 97 + number // 7) % 256 for number in range(5000)), "holds binary data: give JSONL"),
    "zeros": (bytes(4096), "has only zero bytes: a crash or a full disk"),
    "utf-16": (LINES.encode("utf-16-le"), "looks like UTF-16LE text: `iconv -f UTF-16LE -t UTF-8`"),
    "utf-16be": (LINES.encode("utf-16-be"), "looks like UTF-16BE text"),
    "latin": (LINES.replace("q", "é").encode("latin-1"), "is not in UTF-8 (byte 2 of the shown text is 0xe9)"),
    "cut": (LINES.encode()[:30], "Input data was truncated"),
}  # fmt: skip
"""Name → its bytes, and what must be said."""


@pytest.mark.parametrize("name", FILES)
def test_what_it_seems_to_be_is_said_with_its_place(packtrain: Command, tmp_path: Path, name: str) -> None:
    data, says = FILES[name]
    path = tmp_path / "rows.jsonl"
    path.write_bytes(data)
    done = packtrain("prep", "--input", path, "-o", tmp_path / "out.jsonl")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"packtrain: sources.data: {path}, line 1: ")
    assert says in done.err
    lines = len([*data.split(b"\n")]) - data.endswith(b"\n")
    count = "its only line is not a JSON object" if lines == 1 else f"none of its {lines:,} lines is a JSON object"
    assert done.err.endswith(f"({count})\n")
    assert "fit no format" not in done.err
    assert len(done.err.splitlines()) == 1
    assert done.err.rstrip("\n").isprintable()


def test_what_jq_and_sed_would_make_of_it_can_be_read(tmp_path: Path) -> None:
    """What the messages ask for, done by hand: the files are those rows."""
    assert json.loads(FILES["wrapped"][0])["data"] == ROWS
    assert [json.loads(line.removesuffix(b",")) for line in FILES["commas"][0].splitlines()] == ROWS
    assert [ast.literal_eval(line) for line in FILES["python"][0].decode().splitlines()] == ROWS
    for name in ("csv", "tsv"):
        (tmp_path / f"rows.{name}").write_bytes(FILES[name][0])
        file = scan_file("data", "rows", tmp_path / f"rows.{name}", 1 << 20, tmp_path / "cache")
        assert sample_rows(file, 99) == ROWS


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("rows.jsonl", b"\n \n\r\n", "none of its 3 lines has content; remove it, or fill it"),
        ("rows.csv", b"question,answer\n", "has a header but no rows; remove it"),
        ("rows.csv", b"a,b\n1\n2\n", "line 1: wrong_columns: the row has 1 fields, but the header names 2"),
        ("rows.jsonl", b"\n\nprose\n", "rows.jsonl, line 3: `prose` is not a JSON object"),
    ],
)
def test_nothing_is_no_format_either(packtrain: Command, tmp_path: Path, name: str, data: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(data)
    done = packtrain("prep", "--input", tmp_path / name, "-o", tmp_path / "out.jsonl")
    assert done.code == 2
    assert says in done.err
    assert "fit no format" not in done.err


@pytest.fixture
def config(tmp_path: Path, tiny_tokenizer: Path, new_cache: Callable[[Path], Path]) -> dict[str, Any]:
    return {
        "out": str(tmp_path / "packed"),
        "cache": str(new_cache(tiny_tokenizer)),
        "tokenizer": {"path": str(tiny_tokenizer), "engine": "tokenizers"},
        "sources": [{"name": "rows", "path": str(tmp_path / "rows.jsonl")}],
        "run": {"workers": 1, "report": False},
    }


@pytest.mark.parametrize("rows", [None, 100])
@pytest.mark.parametrize("format", ["auto", "text"])
def test_a_plan_says_the_same(tmp_path: Path, config: dict[str, Any], rows: int | None, format: str) -> None:
    """Of a sample, whose files have other names and lines, the input is named."""
    (tmp_path / "rows.jsonl").write_bytes(separated(",") * 40)
    config["sources"][0]["format"] = format
    with pytest.raises(InputError) as caught:
        plan(config, rows=rows)
    said = str(caught.value)
    assert "looks like comma-separated values, 2 in a line: call the file .csv" in said
    assert str(tmp_path / "rows.jsonl") in said if format == "auto" else "rows.jsonl" in said
    assert ("line 1" in said) == (rows is None)
    assert "packtrain-sample" not in said


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_any_bytes_get_an_answer(data: bytes) -> None:
    said = looks_like(data[:LOOKED_AT])
    assert said == "" or said.split()[0] in ("is", "has", "holds", "looks")


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=20) | st.lists(st.integers()), min_size=1))
def test_lines_of_objects_are_not_taken_for_anything_else(row: dict[str, Any]) -> None:
    assert looks_like(f"{json.dumps(row)}\n{json.dumps(row)}\n".encode()) == ""


def refused(packtrain: Command, file: Path, tokenizer: Path, *more: str) -> str:
    """What `run` says of it."""
    out = file.with_name("out")
    done = packtrain("run", *more, "--input", file, "--tokenizer", tokenizer, "--out", out)
    assert done.code == 2
    said: str = done.err
    return said


def test_columns_are_named_where_one_is_missing(packtrain: Command, tmp_path: Path, tiny_tokenizer: Path) -> None:
    (tmp_path / "in.csv").write_text("body,rest\nx,y\n")
    said = refused(packtrain, tmp_path / "in.csv", tiny_tokenizer, "--format", "text")
    assert "the row has no `text`. Its columns are `body`, `rest`." in said


@pytest.mark.parametrize("more", [["--format", "text"], []])
def test_a_row_of_too_few_fields_is_told_once(
    packtrain: Command, tmp_path: Path, tiny_tokenizer: Path, more: list[str]
) -> None:
    (tmp_path / "in.csv").write_text("text,b\na\nb,c,d\n")
    said = refused(packtrain, tmp_path / "in.csv", tiny_tokenizer, *more)
    assert said.count("the row has 1 fields") == 1
    assert "JSON" not in said


def test_a_table_that_is_not_in_utf8_says_so(packtrain: Command, tmp_path: Path, tiny_tokenizer: Path) -> None:
    (tmp_path / "in.csv").write_bytes("text\nqué\n".encode("latin-1"))
    said = refused(packtrain, tmp_path / "in.csv", tiny_tokenizer, "--format", "text")
    assert "holds the byte 0xe9, which is not UTF-8" in said
