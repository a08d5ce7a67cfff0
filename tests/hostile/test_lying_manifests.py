"""Manifests whose hash is right and whose numbers are not: readers refuse them in words, and `verify` finds them."""

import itertools
import json
import os
import resource
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from packtrain.schemas.errors import IntegrityError
from packtrain.schemas.jsontext import indented_json

from tests.kit import Config, cli, configure, packed, saved
from tests.support.hostile import forge, patience

Change = Callable[[dict[str, Any]], Any]


def lie(folder: Path, change: Change) -> None:
    """Change a manifest, and write it as packtrain would, with its hash."""
    forge(folder, change)
    content = json.loads((folder / "manifest.json").read_bytes())
    (folder / "manifest.json").write_bytes(indented_json(content, 1))


def shard(manifest: dict[str, Any]) -> dict[str, Any]:
    """The record of the first shard."""
    return manifest["splits"]["train"]["shards"][0]  # type: ignore[no-any-return]


def add(key: str, more: int) -> Change:
    """Change a count of the first shard."""
    return lambda manifest: shard(manifest).update({key: shard(manifest)[key] + more})


def listed_twice(manifest: dict[str, Any]) -> None:
    manifest["splits"]["train"]["shards"].append(dict(shard(manifest)))


LIES: dict[str, Change] = {
    **{
        f"{key} {number}": add(key, number)
        for key, number in itertools.product(("rows", "max_docs"), (1, 2**40, 2**63))
    },
    **{f"{key} 1": add(key, 1) for key in ("tokens", "trained", "highest_id")},
    "no rows": lambda manifest: shard(manifest).update(rows=0),
    "fewer documents": add("max_docs", -1),
    "a lower id": add("highest_id", -1),
    "bytes": lambda manifest: shard(manifest).update(bytes=2**62),
    "all counts": lambda manifest: shard(manifest).update(bytes=2**45, rows=2**40, tokens=2**41, trained=0),
    "padding": lambda manifest: manifest["plan"]["config"]["pack"].update(align=10**12),
    "max_length": lambda manifest: manifest["plan"]["config"]["truncate"].update(max_length=2**30),
    "shorter rows": lambda manifest: manifest["plan"]["config"]["truncate"].update(max_length=100),
    "row_length": lambda manifest: manifest["plan"]["config"]["pack"].update(row_length=2**30),
    "a shard twice": listed_twice,
    "a file twice": lambda manifest: manifest["files"].append(dict(manifest["files"][0])),
    "the plan's rows": lambda manifest: manifest["splits"]["train"]["windows"][0].update(rows=1),
    "the plan's bound": lambda manifest: manifest["splits"]["train"]["windows"][0].update(bound=1),
    "the plan's tokens": lambda manifest: manifest["splits"]["train"]["windows"][0].update(tokens=10**9),
    "a huge ledger": lambda manifest: manifest["ledger"]["texts"].update(rows_read=10**400),
    "weights": lambda manifest: manifest["ledger"]["texts"].update(weight_trained=5.0),
}


def tokens_of_the_ledger(manifest: dict[str, Any]) -> None:
    """As many tokens in every count, so that the equations close."""
    for key in ("tokens_encoded", "tokens_packed", "labels_masked"):
        manifest["ledger"]["texts"][key] += 7


LIES["the ledger's tokens"] = tokens_of_the_ledger


@pytest.mark.parametrize("name", LIES)
def test_verify_finds_a_lie_and_no_reader_takes_memory(foreign: Path, name: str) -> None:
    pytest.importorskip("torch")
    lie(foreign, LIES[name])
    for command in (("verify",), ("verify", "--deep")):
        done = cli(command[0], foreign, *command[1:])
        assert done.code == 1, done
        assert "Traceback" not in done.err
        assert "has been reformatted" not in done.out
    with patience(120), little_memory():
        for reader in (("loader", "--steps", "2", "--rows-per-step", "2"), ("inspect", "--row", "0"), ("report",)):
            done = cli(reader[0], foreign, *reader[1:])
            assert done.code in (0, 1, 2), done
            assert "Traceback" not in done.err


@contextmanager
def little_memory() -> Iterator[None]:
    """Lets this process take two more gigabytes and no more."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (2 << 30), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_two_names_of_one_content_are_found(foreign: Path) -> None:
    def copied(manifest: dict[str, Any]) -> None:
        record = dict(shard(manifest))
        record["name"] = record["name"].replace("00000", "77777")
        (foreign / record["name"]).write_bytes((foreign / shard(manifest)["name"]).read_bytes())
        manifest["splits"]["train"]["shards"].append(record)

    lie(foreign, copied)
    done = cli("verify", foreign, "--deep")
    assert done.code == 1
    assert "shards with the same content" in done.out.replace("\n", " ")


def test_sizes_of_rows_are_those_of_the_rows(foreign: Path) -> None:
    """A file beside the shards, whose hash the manifest has been given."""
    from packtrain.schemas.fingerprint import hash_bytes

    path = next(foreign.rglob("rows.arrow"))
    table = pa.ipc.open_file(path.read_bytes()).read_all()
    squares = table.column("squares").to_numpy().copy()
    squares[0] += 1
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as file:
        file.write_table(table.set_column(1, table.schema.field(1), pa.array(squares)))
    data = sink.getvalue().to_pybytes()
    path.write_bytes(data)

    def noted(manifest: dict[str, Any]) -> None:
        for record in manifest["files"]:
            if record["name"].endswith("rows.arrow") and path == foreign / record["name"]:
                record.update(bytes=len(data), hash=hash_bytes(data))

    lie(foreign, noted)
    done = cli("verify", foreign, "--deep")
    assert (done.code, "its column squares is not that of the rows" in done.out.replace("\n", " ")) == (1, True)


# Shards


@pytest.mark.parametrize("bit", [7, 6])
def test_a_flipped_bit_of_a_token_id_is_said(foreign: Path, bit: int) -> None:
    """The sign bit, or one that makes an id of a billion: inspect and report say so, and verify names it."""
    path = next(foreign.glob("train/shards/*.arrow"))
    data = bytearray(path.read_bytes())
    ids = pa.ipc.open_stream(bytes(data)).read_all()["input_ids"][0].as_py()[:6]
    data[data.find(struct.pack("<6i", *ids)) + 3] |= 1 << bit
    path.write_bytes(data)
    for command in (("inspect", "--row", "0"), ("report",), ("verify",)):
        done = cli(command[0], foreign, *command[1:])
        assert done.code in (0, 1), done
        assert "Traceback" not in done.err
    assert done.code == 1
    assert "row 0" in done.out or "highest token id" in done.out


COMPRESSED = ("zstd", "lz4")


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_shard_that_unpacks_to_gigabytes_is_refused(foreign: Path, codec: str) -> None:
    pytest.importorskip("torch")
    path = next(foreign.glob("train/shards/*.arrow"))
    table = pa.ipc.open_stream(path.read_bytes()).read_all()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as stream:
        stream.write_table(table)
    path.write_bytes(sink.getvalue())
    lie(foreign, lambda manifest: shard(manifest).update(bytes=path.stat().st_size, tokens=8, trained=0, rows=8))
    for command in (("inspect", "--row", "0"), ("loader", "--steps", "1"), ("verify",)):
        done = cli(command[0], foreign, *command[1:])
        assert done.code == 1, done
        assert "it is compressed, which packtrain never does" in (done.out + done.err).replace("\n", " ")


def test_a_shard_that_leads_to_itself_is_said(foreign: Path) -> None:
    pytest.importorskip("torch")
    from packtrain.training import PackedLoader

    path = next(foreign.glob("train/shards/*.arrow"))
    path.unlink()
    path.symlink_to(path)
    with pytest.raises(IntegrityError, match="cannot be read"):
        list(PackedLoader(foreign, rows_per_step=1, rank=0, world_size=1))
    os.truncate(foreign / "manifest.json", 1 << 40)
    with pytest.raises(IntegrityError, match="and may have"):
        PackedLoader(foreign, rows_per_step=1, rank=0, world_size=1)


# Folders without a dataset


@pytest.mark.parametrize("kind", ["link out", "pipe", "link to itself"])
def test_an_output_folder_with_other_content_is_called_that(tmp_path: Path, kind: str) -> None:
    config: Config = configure(tmp_path, "texts")
    inner = Path(config["out"]) / ".venv" / "bin"
    inner.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(inner / "x")
    else:
        (inner / "x").symlink_to("/usr/bin/env" if kind == "link out" else inner / "x")
    done = cli("run", saved(config))
    assert done.code == 2
    assert "has other content (.venv)" in done.err.replace("\n", " ")
    (inner / "x").unlink()
    assert packed(config).rows()
    assert json.loads((Path(config["out"]) / "manifest.json").read_bytes())
