"""Megabytes a second, one core: scanning a container (hash and cut), and reading its rows into examples.

    PACKTRAIN_REALDATA=folder python tests/bench/bench_sources.py

Prints a Markdown table. The data is the same conversations in every container; a megabyte is one of plain JSONL. To
show how far a reader is from what is possible, `peer` reads the file with the library that people use for it, to Python
dicts (json for lines, pyarrow's to_pylist for tables).
"""

import gzip
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from packtrain.pipeline.inputs.scan import InputFile, prepare_block, scan_file
from packtrain.stages.prep import make_format

ROUNDS = 5
COPIES = 12


def main() -> None:
    """Runs the benchmark."""
    lines = (Path(os.environ["PACKTRAIN_REALDATA"]) / "chat/gsm8k_train.jsonl").read_bytes().splitlines()
    rows = [json.loads(line) for line in lines]
    for number, row in enumerate(rows):
        row["messages"][0]["content"] = f"{number}: {row['messages'][0]['content']}"
    rows *= COPIES
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = write(folder, rows)
        size = files["JSONL"].stat().st_size / 1e6
        times: dict[str, list[list[float]]] = {kind: [[], [], [], []] for kind in files}
        for number in range(ROUNDS):
            for kind, path in files.items():  # interleaved, so that a busy moment strikes all
                cache = folder / f"cache-{kind}-{number}"
                scans, again, reads, peers = times[kind]
                scan = partial(scan_file, "s", "in", path, 1 << 24, cache)
                file = timed(scans, scan)
                timed(again, scan)
                timed(reads, partial(read, file))
                timed(peers, partial(peer, path, kind))
        print(f"{size:.0f} MB of JSONL, {len(rows):,} rows")
        print("| container | file, MB | scan | scan again | rows to examples | peer, to dicts |")
        print("|---|---|---|---|---|---|")
        for kind, columns in times.items():
            cells = " | ".join(f"{size / statistics.median(column):.0f}" for column in columns)
            print(f"| {kind} | {files[kind].stat().st_size / 1e6:.1f} | {cells} |")


def write(folder: Path, rows: list[dict[str, Any]]) -> dict[str, Path]:
    """The rows in every container."""
    data = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    table = pa.Table.from_pylist(rows)
    paths = {
        "JSONL": folder / "in.jsonl",
        "gzip": folder / "in.jsonl.gz",
        "zstd": folder / "in.jsonl.zst",
        "Parquet": folder / "in.parquet",
        "Parquet, one row group": folder / "one.parquet",
        "Arrow": folder / "in.arrow",
    }
    paths["JSONL"].write_bytes(data)
    paths["gzip"].write_bytes(gzip.compress(data, 6))
    with pa.CompressedOutputStream(str(paths["zstd"]), "zstd") as stream:
        stream.write(data)
    pq.write_table(table, paths["Parquet"], row_group_size=5000, compression="zstd")
    pq.write_table(table, paths["Parquet, one row group"], compression="zstd")
    with pa.ipc.new_stream(str(paths["Arrow"]), table.schema) as writer:
        writer.write_table(table, max_chunksize=1000)
    return paths


def read(file: InputFile) -> int:
    """All rows of a file as examples."""
    form = make_format("messages")
    return sum(len(prepare_block(file.where(block), block, form, 1 << 24).examples) for block in file.blocks)


def peer(path: Path, kind: str) -> int:
    """All rows of a file as dicts, by the usual library."""
    if kind == "JSONL":
        with path.open("rb") as plain:
            return sum(1 for line in plain if json.loads(line))
    if kind == "gzip":
        with gzip.open(path) as packed:
            return sum(1 for line in packed if json.loads(line))
    if kind == "zstd":
        with pa.CompressedInputStream(pa.OSFile(str(path)), "zstd") as stream:
            return sum(1 for line in stream.read().splitlines() if json.loads(line))
    if kind.startswith("Parquet"):
        return sum(len(batch.to_pylist()) for batch in pq.ParquetFile(path).iter_batches(use_threads=False))
    with pa.memory_map(str(path)) as source:
        return sum(len(batch.to_pylist()) for batch in pa.ipc.open_stream(source))


def timed(into: list[float], call: Callable[[], Any]) -> Any:
    """The call's result; its seconds are put into a list."""
    began = time.perf_counter()
    result = call()
    into.append(time.perf_counter() - began)
    return result


if __name__ == "__main__":
    main()
