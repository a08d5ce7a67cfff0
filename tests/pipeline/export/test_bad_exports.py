"""What cannot be exported, and places that cannot be used: exit code 2, a reason, and nothing written."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from packtrain.pipeline.dataset.open import open_dataset
from packtrain.pipeline.run.driver import run
from packtrain.schemas.fingerprint import hash_bytes
from packtrain.schemas.rows import PACKED

pytestmark = pytest.mark.xdist_group("exports")
Command = Callable[..., Any]
Made = Callable[[str], Path]


@pytest.fixture
def refused(packtrain: Command, tmp_path: Path) -> Callable[..., str]:
    """The reason why an export is refused, which must leave nothing behind."""

    def ask(*arguments: object, out: Path | None = None) -> str:
        place = out or tmp_path / "never"
        before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
        done = packtrain("export", *arguments, "--out", place)
        assert (done.code, done.out) == (2, "")
        assert "Traceback" not in done.err
        assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before
        assert place.exists() == (out is not None)
        return str(done.err)

    return ask


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("--to megatorn", "--to megatorn: choose one of megatron-bridge, megatron, mds, olmo-core, trl, datasets; did"),
        ("--to data-sets", "trl, datasets; did you mean datasets?"),
        ("--to mds --dtype uint16", "--dtype is for --to megatron or olmo-core, not for mds; leave it out"),
        ("--to megatron --dtype uint61", "choose int32 or uint16 for --to megatron; did you mean uint16?"),
        ("--to megatron --eos-id 3", "--eos-id is for --to olmo-core, not for megatron; leave it out"),
        ("--to olmo-core", "--to olmo-core needs --eos-id, the eos_token_id of the TokenizerConfig"),
        ("--to olmo-core --eos-id -1", "--eos-id -1: token ids are 0 to 2147483647"),
        ("--to megatron-bridge --pad-seq-to-mult 0", "--pad-seq-to-mult 0: give a number from 1 to 65535"),
    ],
)  # fmt: skip
def test_options(refused: Callable[..., str], made: Made, arguments: str, reason: str) -> None:
    assert reason in refused(made("bfd"), *arguments.split())


def test_a_dataset_that_is_not_one(refused: Callable[..., str], made: Made, tmp_path: Path) -> None:
    assert f"{tmp_path / 'nowhere'} does not exist" in refused(tmp_path / "nowhere", "--to", "mds")
    half = Path(shutil.copytree(made("bfd"), tmp_path / "half"))
    (half / "manifest.json").unlink()
    assert f"{half} is not finished: it has no manifest.json" in refused(half, "--to", "mds")


def test_a_damaged_dataset(refused: Callable[..., str], made: Made, tmp_path: Path) -> None:
    for shape in ("bfd", "parquet"):
        folder = Path(shutil.copytree(made(shape), tmp_path / shape))
        shard = sorted((folder / "train" / "shards").iterdir())[1]
        whole = shard.read_bytes()
        flipped = bytearray(whole)
        flipped[len(whole) // 2] ^= 4
        for data, reason in ((bytes(flipped), "does not match its hash"), (whole[:-5], "has another size")):
            shard.write_bytes(data)
            said = refused(folder, "--to", "megatron")
            assert f"{shard} " in said
            assert reason in said
            assert f"packtrain repair {folder} rebuilds it" in said
        shard.unlink()
        assert f"{shard} is missing" in refused(folder, "--to", "megatron")
        manifest = folder / "manifest.json"
        manifest.write_bytes(manifest.read_bytes().replace(b'"rows": 1', b'"rows": 2'))
        assert f"{manifest} was changed after it was written" in refused(folder, "--to", "megatron")


def with_wide_id(dataset: Path, folder: Path) -> int:
    """Copy a dataset as a tokenizer of 70,001 tokens would have given it: in one row, id 70,000 for what is trained.
    Returns the row.
    """
    shutil.copytree(dataset, folder)
    manifest = open_dataset(folder).manifest
    first, shard = manifest.splits["train"].shards[:2]
    (batch,) = open_dataset(folder).batches(shard)
    rows = batch.to_pylist()
    row = rows[-1]
    at = next(index for index, label in enumerate(row["labels"]) if label != -100)
    row["input_ids"][at] = row["labels"][at] = 70_000
    with pa.ipc.new_stream(str(folder / shard.name), PACKED) as writer:
        writer.write_batch(pa.RecordBatch.from_pylist(rows, PACKED))
    data = (folder / shard.name).read_bytes()
    now = replace(shard, bytes=len(data), hash=hash_bytes(data))
    split = manifest.splits["train"]
    shards = tuple(now if one is shard else one for one in split.shards)
    splits = manifest.splits | {"train": replace(split, shards=shards)}
    (folder / "manifest.json").write_bytes(replace(manifest, splits=splits).to_bytes())
    return first.rows + len(rows) - 1


def test_rows_that_do_not_fit(
    refused: Callable[..., str], packtrain: Command, made: Made, read_rows: Callable[..., Any], tmp_path: Path
) -> None:
    row = with_wide_id(made("bfd"), tmp_path / "wide")
    said = refused(tmp_path / "wide", "--to", "megatron", "--dtype", "uint16")
    assert f"row {row} of split train cannot be exported to megatron: token id 70,000 does not fit into uint16" in said
    assert packtrain("export", tmp_path / "wide", "--to", "megatron", "--out", tmp_path / "int32").code == 0
    inside = read_rows(made("bfd"))[0]["input_ids"][1]
    said = refused(made("bfd"), "--to", "olmo-core", "--eos-id", inside)
    assert f"a document has the end-of-sequence token {inside} inside, and OLMo-core would cut it there" in said
    said = refused(made("bfd"), "--to", "olmo-core", "--eos-id", 400_000)
    assert "a document does not end with the end-of-sequence token 400000" in said
    said = refused(made("bfd"), "--to", "megatron-bridge", "--pad-seq-to-mult", 64)
    assert "more than max_length (128); pack with pack.align: 64" in said


def test_a_manifest_that_would_lead_elsewhere(refused: Callable[..., str], made: Made, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made("bfd"), tmp_path / "evil"))
    manifest = open_dataset(folder).manifest
    for name in ("../../away", "a/b", ".hidden", "x\x1b[2J", ""):
        splits = {name: manifest.splits["train"]}
        (folder / "manifest.json").write_bytes(replace(manifest, splits=splits).to_bytes())
        said = refused(folder, "--to", "megatron")
        assert "its manifest has a split named" in said
        assert "\x1b" not in said
    plan = manifest.plan | {"tokenizer": {"pad_id": "7"}}
    (folder / "manifest.json").write_bytes(replace(manifest, plan=plan).to_bytes())
    assert "its manifest has the padding token '7', which is not an id" in refused(folder, "--to", "megatron-bridge")
    assert {path.name for path in tmp_path.iterdir()} == {"evil"}


def test_preference_pairs(refused: Callable[..., str], little: Any, tmp_path: Path) -> None:
    pair = {"prompt": "which way", "chosen": "up the hill", "rejected": "down"}
    (tmp_path / "pairs.jsonl").write_text(f"{json.dumps(pair)}\n")
    config = {
        "out": "pairs",
        "cache": str(tmp_path / "cache"),
        "tokenizer": json.loads(little.config.read_text())["tokenizer"],
        "sources": [{"name": "pairs", "format": "preference", "path": "pairs.jsonl"}],
        "run": {"workers": 1, "report": False},
    }
    run(config, base=tmp_path)
    assert "holds preference pairs, which are not packed" in refused(tmp_path / "pairs", "--to", "mds")


def test_places_that_hold_something_else(
    packtrain: Command, refused: Callable[..., str], made: Made, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    assert f"--out: {file} is a file" in refused(made("bfd"), "--to", "mds", out=file)
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("x")
    assert "has other content (thesis.tex)" in refused(made("bfd"), "--to", "mds", out=other)
    dataset = Path(shutil.copytree(made("bfd"), tmp_path / "dataset"))
    assert "has other content" in refused(made("bfd"), "--to", "mds", out=dataset)
    (dataset / "manifest.json").unlink()
    for path in [one for one in dataset.iterdir() if one.name != "_run"]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert "has other content (_run/plan.json)" in refused(made("bfd"), "--to", "mds", out=dataset)
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "train").symlink_to(other)
    assert "cannot be used" in refused(made("bfd"), "--to", "mds", out=linked)

    export = tmp_path / "export"
    assert packtrain("export", made("bfd"), "--to", "megatron", "--out", export).code == 0
    said = refused(made("wrapped"), "--to", "megatron", "--dtype", "uint16", out=export)
    assert f"{export} belongs to another export" in said
    assert 'dtype: "int32" → "uint16"' in said
    assert "  dataset: " in said
    done = packtrain("run", "--demo", "--out", export)
    assert done.code == 2
    assert "has other content" in done.err
    (export / "export.json").write_text('{"hash": "00", "made by": "another program"}')
    assert "is not the manifest of an export" in refused(made("bfd"), "--to", "megatron", out=export)


def test_verify_says_what_is_wrong_and_what_to_do(packtrain: Command, made: Made, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert packtrain("export", made("bfd"), "--to", "megatron", "--out", out).code == 0
    done = packtrain("verify", out, "--deep")
    assert done.code == 0
    assert "is sound" in done.out
    assert "every byte matches its hash" in done.out
    (out / "train" / "00001.idx").unlink()
    done = packtrain("verify", out)
    assert done.code == 1
    assert "train/00001.idx: is missing" in done.out
    assert "run the same packtrain export again" in done.out
    manifest = out / "export.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"int32"', b'"int16"'))
    done = packtrain("verify", out)
    assert done.code == 1
    assert "was changed after it was written" in done.err
    manifest.unlink()
    done = packtrain("verify", out)
    assert done.code == 2
    assert "is not finished: it has no export.json" in done.err
