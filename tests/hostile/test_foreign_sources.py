"""Rows, files and folders of other people as inputs: read as data or refused, never unpickled, imported or followed."""

import gzip
import json
import os
import pickle
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packtrain.schemas.errors import PacktrainError

from tests.kit import TOOLS, Packed, cli, configure, corpus, packed, source, write
from tests.support.hostile import ACTIVE, EVIL, SECRET, Trap, ran

pytestmark = pytest.mark.usefixtures("tokenizer_loader")


def read(folder: Path, path: str, **keys: Any) -> Packed:
    """Pack one source of texts beside some good rows, in a new output."""
    write(folder / "good.jsonl", [{"text": f"the mules left {number}"} for number in range(9)])
    good = {**source("texts", path="good.jsonl"), "name": "good"}
    (folder / "texts.jsonl").touch()
    config = configure(folder, good, {**source("texts", path=path, **keys), "name": "theirs"})
    return packed(config, folder)


def refused(folder: Path, path: str, **keys: Any) -> str:
    """What is said of a source that is not read; nothing was finished, and no control character is in it raw."""
    with pytest.raises(PacktrainError) as caught:
        read(folder, path, **keys)
    assert not (folder / "out" / "manifest.json").exists()
    assert SECRET not in str(caught.value)
    return str(caught.value)


def taken_or_named(folder: Path, name: str) -> bool:
    """Whether the rows of a file are read or rejected like any others, or an error names the file."""
    try:
        return read(folder, name).ledger["good"]["rows_read"] == 9  # type: ignore[no-any-return]
    except PacktrainError as error:
        return name in str(error)


# Values


NUMBERS = ("1e400", "-1e400", "NaN", "Infinity", "9" * 5000, "-0", "1" + "0" * 400, "0.1e-9999", "00", "0x10")
NESTED = ("[" * 100_000 + "]" * 100_000, '{"a":' * 50_000 + "1" + "}" * 50_000)


@pytest.mark.parametrize(
    "line", [*NUMBERS, *NESTED, '"\\ud800"', '"\\u0000"', '"\ufffe"', "true", '{"__class__": "os"}']
)
def test_a_row_costs_itself_at_most(tmp_path: Path, line: str) -> None:
    """Whether it is taken or rejected, the others are packed, and what is said of it can be printed."""
    (tmp_path / "theirs.jsonl").write_text(
        f'{{"text": "before"}}\n{{"text": "a", "more": {line}}}\n{{"text": {line}}}\n{{"text": "after"}}\n'
    )
    result = read(tmp_path, "theirs.jsonl")
    assert result.ledger["theirs"]["rows_read"] == 4
    assert len(result.documents()) >= 11
    for reject in (tmp_path / "out" / "rejects.jsonl").read_text().splitlines():
        assert not ACTIVE.search(reject)
        assert len(reject) < 5000
        assert json.loads(reject)["line"] in (2, 3)


def test_the_deepest_row_is_packed(tmp_path: Path) -> None:
    """Nesting below the limit passes every reader: templates, conditions, one example per turn."""
    nested = json.loads("[" * 95 + "]" * 95)
    tools = [{"type": "function", "function": {"name": "f", "parameters": nested}}]
    write(tmp_path / "deep.jsonl", [corpus("chats", 1)[0] | {"tools": tools}])
    keys = {"format": "messages", "where": "LENGTH(tools) > 90", "expand": "per_turn"}
    deep = {"name": "deep", "path": "deep.jsonl", **keys}
    made = packed(configure(tmp_path, deep, tokenizer={"chat_template": TOOLS}, truncate={"max_length": 2048}))
    assert (len(made.documents()), made.rejects()) == (1, [])


# Containers


def test_a_pickle_in_a_parquet_file_is_not_opened(tmp_path: Path) -> None:
    """Its schema may name a type that pyarrow used to make by unpickling."""
    metadata = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": pickle.dumps(Trap(tmp_path)),
    }
    schema = pa.schema(
        [pa.field("text", pa.string(), metadata=metadata)], metadata={b"pandas": b"{", b"huggingface": b"["}
    )
    table = pa.table({"text": ["one", "two"]}, schema=schema)
    pq.write_table(table, tmp_path / "theirs.parquet")
    with pa.OSFile(str(tmp_path / "theirs.arrow"), "wb") as file, pa.ipc.new_stream(file, schema) as stream:
        stream.write_table(table)
    for name in ("theirs.parquet", "theirs.arrow"):
        (tmp_path / name.replace(".", "-")).mkdir()
        (tmp_path / name).replace(tmp_path / name.replace(".", "-") / name)
        assert taken_or_named(tmp_path / name.replace(".", "-"), name)
        assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "name", ["data.pkl", "data.pt", "data.pickle", "data.npy", "data.bin", "data.jsonl", "data.arrow"]
)
def test_a_pickle_is_not_opened_under_any_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(pickle.dumps([Trap(tmp_path)]))
    assert taken_or_named(tmp_path, name)
    assert not (tmp_path / "ran").exists()


def test_archives_are_not_unpacked(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"text": "x"}\n')
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(tmp_path / "x.jsonl", "../escaped.jsonl")
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "x.jsonl", "../escaped.jsonl")
    for name in ("a.zip", "a.tar.gz"):
        assert name in refused(tmp_path, name)
    assert not (tmp_path.parent / "escaped.jsonl").exists()


def test_a_compressed_file_that_never_ends_fills_no_memory(tmp_path: Path) -> None:
    """A line of 200 MB in 200 kB costs its row."""
    (tmp_path / "theirs.jsonl.gz").write_bytes(
        gzip.compress(b'{"text": "' + b"a" * 200_000_000 + b'"}\n{"text": "b"}\n', 1)
    )
    result = read(tmp_path, "theirs.jsonl.gz")
    assert [reject["reason"] for reject in result.rejects()] == ["row_too_long"]


# Folders and names


def test_code_in_a_folder_of_data_is_not_run(tmp_path: Path) -> None:
    """Neither a loading script of `datasets`, nor a module whose name an import could find."""
    folder = tmp_path / "theirs"
    write(folder / "data.jsonl", [{"text": "x"}])
    for name in ("theirs.py", "data.py", "conftest.py", "sitecustomize.py", "json.py", "numpy.py", "__init__.py"):
        (folder / name).write_text(ran(tmp_path))
    (folder / "dataset_infos.json").write_text(json.dumps({"default": {"builder_name": "theirs"}}))
    result = read(tmp_path, "theirs")
    assert len(result.documents()) == 10
    assert not (tmp_path / "ran").exists()
    done = cli("verify", tmp_path / "out", "--deep", cwd=folder)
    assert (done.code, (tmp_path / "ran").exists()) == (0, False)


def test_a_saved_dataset_names_no_files_outside_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "secret.arrow").write_text(SECRET)
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved/state.json").write_text(json.dumps({"_data_files": [{"filename": "../secret.arrow"}]}))
    assert "copy or save it again" in refused(tmp_path, "saved")
    (tmp_path / "saved/state.json").unlink()
    (tmp_path / "saved/dataset_dict.json").write_text(json.dumps({"splits": ["../saved"]}))
    assert "has the splits (none)" in refused(tmp_path, "saved")


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "loop.jsonl").symlink_to("loop.jsonl")
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    (tmp_path / "folder" / "a.jsonl").write_text('{"text": "x"}\n')
    for name in ("one", "two"):
        (tmp_path / "folder" / "deep" / name).symlink_to("..")
    for path in ("pipe.jsonl", "loop.jsonl", "folder", "/dev/zero", "/proc/self/mem", "file:///dev/zero"):
        assert Path(path).name in refused(tmp_path, path)


def test_names_of_columns_are_text(tmp_path: Path) -> None:
    table = pa.table({"text": ["one", "two"], EVIL: ["a", "b"], "../x": [1, 2], "__proto__": [1.5, None], "": ["", ""]})
    pq.write_table(table, tmp_path / "theirs.parquet")
    assert len(read(tmp_path, "theirs.parquet").documents()) == 11
    pq.write_table(table.drop_columns("text"), tmp_path / "none.parquet")
    (tmp_path / "out" / "manifest.json").unlink()
    done = cli("run", "--input", tmp_path / "none.parquet", "--out", tmp_path / "other", "--tokenizer", tmp_path)
    assert done.code == 2
    assert not ACTIVE.search(done.out + done.err)


# Samples
