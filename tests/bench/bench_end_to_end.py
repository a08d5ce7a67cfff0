"""Whole runs beside TRL's preparation, and the memory that they take.

    PACKTRAIN_REALDATA=folder python -m tests.bench.bench_end_to_end [--copies 1 11] [--runs 3] [--memory] [--skip-trl]

Prints a Markdown table. Everything is a command, counted from its start to its exit with all its processes, on the same
rows: `packtrain run` with two workers, an empty cache and an empty output each time; TRL's `SFTTrainer` with packing
and two processes, once, which gets the rows as prompt and completion already. "MB" are 10^6 bytes of messages, of so
many copies of the corpus.

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
import shutil
import statistics
import sys
import tempfile
import time
from compileall import compile_dir
from pathlib import Path
from typing import Any

from tests.bench.corpus import (
    MAX_LENGTH,
    PROGRAM,
    TOKENIZER,
    Cost,
    build,
    print_header,
    print_table,
    realdata,
    run_counted,
    spread,
)

PACKAGES = ("packtrain", "fastokens", "tokenizers", "trl", "transformers", "datasets", "torch", "pyarrow")


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
    tokenizer = AutoTokenizer.from_pretrained(realdata() / TOKENIZER)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes, **heads))
    settings = SFTConfig(
        output_dir=f"{folder}/trainer",
        packing=True,
        max_length=MAX_LENGTH,
        dataset_num_proc=2,
        use_cpu=True,
        bf16=False,
        report_to=[],
    )
    trainer = TimedTrainer(model=model, args=settings, train_dataset=dataset, processing_class=tokenizer)
    result = {"preparation": prepared, "rows": len(trainer.train_dataset)}
    Path(folder, "report.json").write_text(json.dumps(result), encoding="utf-8")


def run_trl(work: Path, rows: Path) -> tuple[Cost, float, int]:
    """The cost of a run of TRL, the seconds of its preparation alone, and the rows that it makes."""
    folder = work / "trl"
    folder.mkdir()
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "home"), "HF_DATASETS_CACHE": str(folder / "cache")}
    command = [sys.executable, "-m", "tests.bench.bench_end_to_end", "trl", rows, folder]
    cost = run_counted(command, work / "trl.log", offline)
    report = json.loads((folder / "report.json").read_bytes())
    shutil.rmtree(folder)
    return cost, report["preparation"], report["rows"]


def measure(work: Path, copies: int, runs: int, with_trl: bool, memory: bool) -> list[list[str]]:
    """Rows of the table: packtrain `runs` times on so many copies, and TRL once."""
    corpus = build(work, copies)
    rows, size = corpus.prompts_and_completions()
    home, user = work / "run", work / "user"
    costs: dict[str, list[Cost]] = {"packtrain, new tokenizer": [], "packtrain, later dataset": []}
    manifests = set()
    for _ in range(runs):
        shutil.rmtree(user, ignore_errors=True)
        for cost in costs.values():
            command = [PROGRAM, "run", corpus.config(home)]
            cost.append(run_counted(command, home / "log.txt", {"PACKTRAIN_CACHE": str(user)}, memory))
            manifests.add((home / "out" / "manifest.json").read_bytes())
    if len(manifests) > 1:
        raise SystemExit("the runs differ")
    splits = json.loads(manifests.pop())["splits"].values()
    count = sum(shard["rows"] for split in splits for shard in split["shards"])
    theirs = run_trl(work, rows) if with_trl else None
    shutil.rmtree(home)
    shutil.rmtree(corpus.folder)
    table = []
    for name, found in costs.items():
        wall = statistics.median(cost.wall for cost in found)
        cells = [spread([cost.wall for cost in found]), spread([cost.cpu for cost in found])]
        cells.append(f"{max(cost.peak for cost in found) / (1 << 20):,.0f}")
        ratios = [f"{theirs[0].wall / wall:.1f}", f"{theirs[1] / wall:.1f}"] if theirs else ["", ""]
        table.append([f"{size / 1e6:,.0f}", name, *cells, *ratios, f"{count:,}"])
    if theirs:
        cells = [f"{theirs[0].wall:.1f}", f"{theirs[0].cpu:.1f}", "", "1", f"{theirs[1] / theirs[0].wall:.1f}"]
        table.append([f"{size / 1e6:,.0f}", "TRL", *cells, f"{theirs[2]:,}"])
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
    print_header(f"Whole runs, medians of {asked.runs}", PACKAGES)
    header = ["MB", "command", "wall s", "CPU s", "peak MiB", "x TRL", "x TRL's preparation alone", "rows"]
    print_table(header, table, left=2)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if sys.argv[1:2] == ["trl"]:
        trl(*sys.argv[2:])
    else:
        main()
