"""Megabytes a second of `packtrain export`, and of its files as sources, beside a plain copy of the same bytes.

    PACKTRAIN_REALDATA=folder python tests/bench/bench_export.py

Prints a Markdown table. The dataset is apps, leetcode and gsm8k, each example packed `--repeat` times; for OLMo-core,
which cuts at end-of-sequence tokens, PEPs as plain texts. Every file of an export is written, synced, read back and
compared; the rows are read and checked once before. The copy writes the export's files and syncs each, nothing else.
Rounds are interleaved, so that a busy moment strikes all.

As sources: `scan` hashes and cuts, `examples` reads the blocks again, checks their hashes and makes an example of each
document, in one process. The peer reads the same rows into arrays: IndexedDataset of megatron-core, StreamingDataset of
mosaicml-streaming (where they are installed), and `datasets` in numpy format.
"""

import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from packtrain.pipeline.export.driver import export
from packtrain.pipeline.export.options import FORMATS, export_options
from packtrain.pipeline.inputs.format_options import format_options
from packtrain.pipeline.inputs.scan import prepare_block, scan_source
from packtrain.pipeline.run.driver import run
from packtrain.schemas.config.config import SourceConfig
from packtrain.stages.prep import make_format

from tests.bench.corpus import FILES, MAX_LENGTH, make_parser, median, print_header, print_table, realdata, work_folder

ROUNDS = 3
WORKERS = (1, 2)
PHASES = ("scan", "examples", "peer")
EOS_ID = 151_645
"""<|im_end|>, with which Qwen3's tokenizer ends a text."""


def main() -> None:
    """Runs the benchmark."""
    parser = make_parser(__doc__)
    parser.add_argument("--repeat", type=int, default=8, help="how often each example is packed")
    arguments = parser.parse_args()
    with work_folder(arguments.work) as work:
        chats = pack(work, "chats", [source(*one) for one in FILES], arguments.repeat)
        texts = pack(
            work, "texts", [source("peps", "text", "longdoc/peps.jsonl")], arguments.repeat, strategy="wrapped"
        )
        seconds: dict[tuple[str, int], list[float]] = {}
        cpu: dict[str, list[float]] = {}
        read: dict[tuple[str, str], list[float]] = {}
        sizes: dict[str, int] = {}
        tokens: dict[str, int] = {}
        for _ in range(ROUNDS):
            for to in FORMATS:
                dataset = texts if to == "olmo-core" else chats
                options = export_options(to, eos_id=EOS_ID if to == "olmo-core" else None)
                out = work / to
                for workers in WORKERS:
                    shutil.rmtree(out, ignore_errors=True)
                    os.sync()
                    began, spent = time.perf_counter(), time.process_time()
                    outcome = export(dataset, out, options, workers=workers)
                    if workers == 1:  # in this process
                        cpu.setdefault(to, []).append(time.process_time() - spent)
                    seconds.setdefault((to, workers), []).append(time.perf_counter() - began)
                    sizes[to] = sum(file.bytes for file in outcome.manifest.files)
                    tokens[to] = sum(split.tokens for split in outcome.manifest.splits.values())
                os.sync()
                seconds.setdefault((to, 0), []).append(copy(out, work / "copy"))
                for what, one in read_back(out, to).items():
                    read.setdefault((to, what), []).append(one)
        print_header("Exports", ["pyarrow", "numpy"])
        rows = []
        for to, size in sizes.items():
            took = [median(seconds[to, workers]) for workers in (*WORKERS, 0)]
            rates = [f"{size / 1e6 / one:,.0f}" for one in took]
            millions = tokens[to] / 1e6
            rows.append([to, f"{millions:.1f}", f"{size / 1e6:,.0f}", *rates, f"{millions / median(cpu[to]):.0f}"])
        header = ["M tokens", "MB", "1 worker, MB/s", "2 workers, MB/s", "plain copy, MB/s", "M tokens per CPU second"]
        print_table(["format", *header], rows)
        print_header("Exports as sources", ["pyarrow", "numpy"])
        rows = []
        for to in dict.fromkeys(to for to, _ in read):
            megabytes = sizes[to] / 1e6
            medians = {what: median(read[to, what]) for what in PHASES if (to, what) in read}
            medians["copy"] = median(seconds[to, 0])
            rates = [f"{megabytes / medians[what]:,.0f}" if what in medians else "" for what in (*PHASES, "copy")]
            rows.append([to, f"{megabytes:,.0f}", *rates, f"{tokens[to] / 1e6 / medians['examples']:.0f}"])
        header = ["MB", "scan, MB/s", "examples, MB/s", "peer, MB/s", "plain copy, MB/s", "M tokens/s to examples"]
        print_table(["format", *header], rows)


def source(name: str, format: str, path: str) -> dict[str, Any]:
    """A source of a configuration."""
    return {"name": name, "format": format, "path": str(realdata() / path)}


def pack(work: Path, name: str, sources: list[dict[str, Any]], repeat: int, strategy: str = "bfd") -> Path:
    """A packed dataset."""
    config = {
        "out": name,
        "tokenizer": {"path": str(realdata() / "tokenizers/qwen3")},
        "sources": [one | {"repeat": repeat} for one in sources],
        "truncate": {"max_length": MAX_LENGTH},
        "pack": {"strategy": strategy},
        "output": {"shard_bytes": "32MiB"},  # a worker takes a shard at a time
        "run": {"report": False},
    }
    run(config, base=work)
    return work / name


def read_back(out: Path, to: str) -> dict[str, float]:
    """Seconds to scan an export's training rows, to make examples of them, and of the peer; {} for other formats."""
    path = {"megatron": "train", "mds": "train", "trl": "data/train-*.parquet"}.get(to)
    if path is None:
        return {}
    source = {"name": "s", "format": "tokenized", "path": str(out / path), "keys": {"lengths": "seq_lengths"}}
    config = SourceConfig.model_validate(source)
    form = make_format("tokenized", format_options(config))
    with tempfile.TemporaryDirectory() as cache:
        began = time.perf_counter()
        files = scan_source(config, out, Path(cache))
        scanned = time.perf_counter()
        for file in files:
            for block in file.blocks:
                prepare_block(file.where(block), block, form, config.max_row_bytes)
        found = {"scan": scanned - began, "examples": time.perf_counter() - scanned}
    with suppress(ImportError):
        found["peer"] = peer(out, to)
    return found


def peer(out: Path, to: str) -> float:
    """Seconds in which the format's own library reads the training rows into arrays."""
    if to == "megatron":
        from megatron.core.datasets.indexed_dataset import IndexedDataset

        began = time.perf_counter()
        for index in sorted(out.glob("train*/*.idx")):
            rows = IndexedDataset(str(index.with_suffix("")))
            for number in range(len(rows)):
                rows[number]
    elif to == "mds":
        from streaming import StreamingDataset

        began = time.perf_counter()
        samples = StreamingDataset(local=str(out), split="train", shuffle=False, batch_size=1)
        for number in range(samples.num_samples):
            samples[number]
    else:
        import datasets

        with tempfile.TemporaryDirectory() as cache:
            began = time.perf_counter()
            files = [str(file) for file in sorted(out.glob("data/train-*"))]
            table = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=cache)
            for row in table.with_format("numpy"):
                row["input_ids"]
    return time.perf_counter() - began


def copy(out: Path, to: Path) -> float:
    """Seconds to copy the files of a folder, each synced."""
    files = [path for path in out.rglob("*") if path.is_file()]
    began = time.perf_counter()
    for path in files:
        target = to / path.relative_to(out)
        target.parent.mkdir(parents=True, exist_ok=True)
        with path.open("rb") as read, target.open("wb") as written:
            shutil.copyfileobj(read, written, 1 << 22)
            written.flush()
            os.fsync(written.fileno())
    took = time.perf_counter() - began
    shutil.rmtree(to)
    return took


if __name__ == "__main__":
    main()
