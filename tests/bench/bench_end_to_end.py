"""Whole runs beside TRL's preparation, and the memory that they take.

    PACKTRAIN_REALDATA=folder python -m tests.bench.bench_end_to_end [--copies 1 11] [--runs 3] [--memory] [--skip-trl]

Prints a Markdown table. Everything is a command, timed from its start to its exit, on the same rows: APPS, LeetCode and
GSM8K as they are, or so many copies of them, of which further ones are shuffled, so that no block of the input repeats
another. `packtrain run` has two workers, an empty cache and an empty output each time; TRL's `SFTTrainer`, with packing
and two processes, runs once and gets the rows as prompt and completion already. "MB" are 10^6 bytes of messages.

The user's cache is a folder of the benchmark. It is empty before each run, so that transformers is asked for the
tokenizer and the engine is checked; "later dataset" is the same run with another cache and output, but with that user's
cache, as for any further data with the same tokenizer. packtrain is compiled to bytecode first, as an installed package
is.

Cells are medians, with the range in brackets. Memory is what processes hold for themselves, at the moment at which they
hold most together: anonymous and shared pages, without mapped files.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from compileall import compile_dir
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from tests.bench.tables import print_table, spread

PACKAGES = ("packtrain", "fastokens", "tokenizers", "trl", "transformers", "datasets", "torch", "pyarrow")
FILES = {
    "apps": ("apps", "apps/train.jsonl"),
    "leetcode": ("apps", "apps/leetcode_apps_schema.jsonl"),
    "gsm8k": ("messages", "chat/gsm8k_train.jsonl"),
}
"""Format, and path below the real data, of each source."""
MAX_LENGTH = 2048
SHARD_BYTES = 64 << 20
"""Small enough that both workers have shards to write."""
PROGRAM = Path(sys.executable).with_name("packtrain")


def realdata() -> Path:
    """The folder of real data."""
    folder = os.environ.get("PACKTRAIN_REALDATA")
    if not folder:
        raise SystemExit("set PACKTRAIN_REALDATA to the folder that holds apps/, chat/ and tokenizers/")
    return Path(folder).absolute()


def tokenizer() -> str:
    """The folder of Qwen3's tokenizer."""
    return str(realdata() / "tokenizers" / "qwen3")


def write_corpus(folder: Path, copies: int) -> None:
    """Write so many copies of the files."""
    folder.mkdir()
    for name, (_, path) in FILES.items():
        rows = (realdata() / path).read_bytes().splitlines(keepends=True)
        with (folder / f"{name}.jsonl").open("wb") as sink:
            sink.writelines(rows)
            for copy in range(1, copies):
                random.Random(copy).shuffle(rows)
                sink.writelines(rows)


def write_config(corpus: Path, home: Path) -> Path:
    """Write a configuration that keeps `out` and cache in `home`, a folder that is emptied first."""
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    sources = [
        {"name": name, "format": format, "path": f"{corpus}/{name}.jsonl"} for name, (format, _) in FILES.items()
    ]
    config = {
        "out": f"{home}/out",
        "cache": f"{home}/cache",
        "tokenizer": {"path": tokenizer()},
        "sources": sources,
        "truncate": {"max_length": MAX_LENGTH},
        "output": {"shard_bytes": SHARD_BYTES},
        "run": {"workers": 2},
    }
    path = home / "config.yaml"
    path.write_text(json.dumps(config))
    return path


def write_rows(corpus: Path, config: Path) -> tuple[Path, int]:
    """The examples as JSONL of prompt and completion, as TRL reads them, and the bytes of their messages."""
    whole, size = corpus / "rows.jsonl", 0
    with whole.open("wb") as sink:
        for name in FILES:
            part = corpus / f"{name}-prepared.jsonl"
            subprocess.run([PROGRAM, "prep", config, "--source", name, "-o", part], check=True, capture_output=True)
            for line in part.read_bytes().splitlines():
                row = json.loads(line)
                messages = row.get("messages") or row["prompt"] + row["completion"]
                size += sum(len(message["content"].encode()) for message in messages)
                sink.write(json.dumps({"prompt": messages[:-1], "completion": messages[-1:]}).encode() + b"\n")
    return whole, size


def timed(
    command: Sequence[object], environment: Mapping[str, str], log: Path, memory: bool = False
) -> tuple[float, int]:
    """The seconds of a command, and the most bytes that its processes held together; 0 if that is not looked at.

    Raises:
        SystemExit: the command failed.
    """
    os.sync()  # what an earlier command left to be written is not this one's to wait for
    peak, began = 0, time.perf_counter()
    with log.open("wb") as sink:
        whole = {**os.environ, **environment}
        process = subprocess.Popen([str(word) for word in command], stdout=sink, stderr=sink, env=whole)
        while memory and process.poll() is None:
            peak = max(peak, held_below(process.pid))
            time.sleep(0.05)
        code = process.wait()
    wall = time.perf_counter() - began
    if code:
        raise SystemExit(f"{' '.join(map(str, command))} ended with {code}:\n{log.read_text(errors='replace')[-2000:]}")
    return wall, peak


def held_below(root: int) -> int:
    """Bytes that a process and those below it hold for themselves. Mapped files are the page cache's."""
    held = 0
    with suppress(psutil.Error):
        for one in (psutil.Process(root), *psutil.Process(root).children(recursive=True)):
            with suppress(OSError):  # it has just ended
                for line in Path(f"/proc/{one.pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
                    if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                        held += int(line.split()[1]) * 1024
    return held


def trl(rows: str, folder: str) -> None:
    """TRL's preparation, in a process of its own: load the JSONL, build a trainer around a tiny model, leave."""
    from datasets import load_dataset
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
    from trl import SFTConfig, SFTTrainer

    prepared = 0.0

    class TimedTrainer(SFTTrainer):  # type: ignore[misc]
        def _prepare_dataset(self, *arguments: Any, **keywords: Any) -> Any:
            nonlocal prepared
            started = time.perf_counter()
            try:
                return super()._prepare_dataset(*arguments, **keywords)
            finally:
                prepared += time.perf_counter() - started

    imported = time.perf_counter()
    dataset = load_dataset("json", data_files=rows, split="train", cache_dir=f"{folder}/cache")
    prepared += time.perf_counter() - imported
    known = AutoTokenizer.from_pretrained(tokenizer())
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(known), **sizes, **heads))
    settings = SFTConfig(
        output_dir=f"{folder}/trainer",
        packing=True,
        max_length=MAX_LENGTH,
        dataset_num_proc=2,
        use_cpu=True,
        bf16=False,
        report_to=[],
    )
    trainer = TimedTrainer(model=model, args=settings, train_dataset=dataset, processing_class=known)
    result = {"preparation": prepared, "rows": len(trainer.train_dataset)}
    Path(folder, "report.json").write_text(json.dumps(result), encoding="utf-8")


def run_trl(work: Path, rows: Path) -> tuple[float, float, int]:
    """The seconds of a run of TRL, those of its preparation alone, and the rows that it makes."""
    folder = work / "trl"
    folder.mkdir()
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": f"{folder}/home", "HF_DATASETS_CACHE": f"{folder}/cache"}
    command = [sys.executable, "-m", "tests.bench.bench_end_to_end", "trl", rows, folder]
    wall, _ = timed(command, offline, work / "trl.log")
    report = json.loads((folder / "report.json").read_bytes())
    shutil.rmtree(folder)
    return wall, report["preparation"], report["rows"]


def measure(work: Path, copies: int, runs: int, with_trl: bool, memory: bool) -> list[list[str]]:
    """Rows of the table: packtrain `runs` times on so many copies, and TRL once."""
    corpus, home, user = work / f"corpus-{copies}", work / "run", work / "user"
    write_corpus(corpus, copies)
    rows, size = write_rows(corpus, write_config(corpus, home))
    costs: dict[str, list[tuple[float, int]]] = {"packtrain, new tokenizer": [], "packtrain, later dataset": []}
    manifests = set()
    for _ in range(runs):
        shutil.rmtree(user, ignore_errors=True)
        for cost in costs.values():
            command = [PROGRAM, "run", write_config(corpus, home)]
            cost.append(timed(command, {"PACKTRAIN_CACHE": str(user)}, home / "log.txt", memory))
            manifests.add((home / "out" / "manifest.json").read_bytes())
    (manifest,) = manifests
    count = sum(shard["rows"] for split in json.loads(manifest)["splits"].values() for shard in split["shards"])
    theirs = run_trl(work, rows) if with_trl else None
    shutil.rmtree(corpus)
    table = []
    for name, found in costs.items():
        walls = [wall for wall, _ in found]
        ratios = [f"{one / statistics.median(walls):.1f}" for one in theirs[:2]] if theirs else ["", ""]
        peak = max(peak for _, peak in found) / (1 << 20)
        table.append([f"{size / 1e6:,.0f}", name, spread(walls), f"{peak:,.0f}", *ratios, f"{count:,}"])
    if theirs:
        wall, prepared, made = theirs
        table.append([f"{size / 1e6:,.0f}", "TRL", f"{wall:.1f}", "", "1", f"{prepared / wall:.1f}", f"{made:,}"])
    return table


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--copies", type=int, nargs="+", default=[1, 11], help="corpora, in copies of the files")
    parser.add_argument("--runs", type=int, default=3, help="of packtrain")
    parser.add_argument("--memory", action="store_true", help="look at it, which costs a little time")
    parser.add_argument("--skip-trl", action="store_true", help="packtrain alone")
    asked = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for folder in ("schemas", "stages", "pipeline"):
        compile_dir(Path(__file__).parents[2] / folder, quiet=1)
    with tempfile.TemporaryDirectory(prefix="packtrain-bench-") as name:
        table = [
            row
            for copies in asked.copies
            for row in measure(Path(name), copies, asked.runs, not asked.skip_trl, asked.memory)
        ]
    header = ["MB", "command", "wall s", "peak MiB", "x TRL", "x TRL's preparation alone", "rows"]
    print_table(f"Whole runs, medians of {asked.runs}", PACKAGES, header, table)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if sys.argv[1:2] == ["trl"]:
        trl(*sys.argv[2:])
    else:
        main()
