"""Megabytes a second of `packtrain export`, by format, beside a plain copy of the same bytes.

    PACKTRAIN_REALDATA=folder python tests/bench/bench_export.py

Prints a Markdown table. The dataset is apps, leetcode and gsm8k, each example packed `--repeat` times; for OLMo-core,
which cuts at end-of-sequence tokens, PEPs as plain texts. Every file of an export is written, synced, read back and
compared; the rows are read and checked once before. The copy writes the export's files and syncs each, nothing else.
Rounds are interleaved, so that a busy moment strikes all.
"""

import os
import shutil
import time
from pathlib import Path
from typing import Any

from packtrain.pipeline.export.driver import export
from packtrain.pipeline.export.options import FORMATS, export_options
from packtrain.pipeline.run.driver import run

from tests.bench.corpus import FILES, MAX_LENGTH, make_parser, median, print_header, print_table, realdata, work_folder

ROUNDS = 3
WORKERS = (1, 2)
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
        print_header("Exports", ["pyarrow", "numpy"])
        rows = []
        for to, size in sizes.items():
            took = [median(seconds[to, workers]) for workers in (*WORKERS, 0)]
            rates = [f"{size / 1e6 / one:,.0f}" for one in took]
            millions = tokens[to] / 1e6
            rows.append([to, f"{millions:.1f}", f"{size / 1e6:,.0f}", *rates, f"{millions / median(cpu[to]):.0f}"])
        header = ["M tokens", "MB", "1 worker, MB/s", "2 workers, MB/s", "plain copy, MB/s", "M tokens per CPU second"]
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
