"""Whole runs beside TRL's preparation.

    PACKTRAIN_REALDATA=folder python -m tests.bench.bench_end_to_end [--copies 1 11] [--runs 3] [--trl-copies N]

Prints a Markdown table. Everything is a command, counted from its start to its exit with all its processes, on the same
rows: `packtrain run` with two workers, an empty cache and an empty output each time; TRL's `SFTTrainer` with packing
and two processes, which gets the rows as prompt and completion already. "MB" are 10^6 bytes of messages.

The user's cache is a folder of the benchmark. It is empty before each run, so that transformers is asked for the
tokenizer and the engine is checked; "later dataset" is the same run with another cache and output, but with that user's
cache, as for any further data with the same tokenizer.

Cells are medians, with the range in brackets. TRL runs once. On fewer copies (`--trl-copies`) its preparation is scaled
up, its imports are not. packtrain is compiled to bytecode first, as an installed package is.
"""

import json
import os
import shutil
import sys
import time
from compileall import compile_dir
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.corpus import (
    MAX_LENGTH,
    TOKENIZER,
    Corpus,
    Cost,
    build,
    load,
    make_parser,
    median,
    packtrain_run,
    print_header,
    print_table,
    read_manifest,
    realdata,
    run_counted,
    spread,
    work_folder,
)

PACKAGES = ("packtrain", "fastokens", "tokenizers", "trl", "transformers", "datasets", "torch", "pyarrow")


def trl(rows: str, folder: str, report: str) -> None:
    """TRL's preparation, in a process of its own: load the JSONL, build a trainer around a tiny model, leave."""
    began = time.perf_counter()
    import pyarrow.compute as pc
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
    loaded = time.perf_counter()
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
    chunks = trainer.train_dataset.data.column("input_ids").chunks
    result = {
        "load": loaded - imported,
        "prepare": prepared,
        "rows": len(trainer.train_dataset),
        "tokens": sum(pc.sum(pc.list_value_length(chunk)).as_py() for chunk in chunks),
        "import": imported - began,
    }
    Path(report).write_text(json.dumps(result), encoding="utf-8")


@dataclass
class Trl:
    """One run of TRL, scaled to the whole corpus."""

    cost: Cost
    preparation: float
    """Seconds of load_dataset and `_prepare_dataset`."""
    rows: int
    tokens: int
    copies: int
    """Copies that it ran on."""


@dataclass
class Measured:
    """Everything measured on one corpus."""

    corpus: Corpus
    first: list[Cost] = field(default_factory=list)
    later: list[Cost] = field(default_factory=list)
    rows: int = 0
    tokens: int = 0
    trl: Trl | None = None


def measure(work: Path, corpus: Corpus, runs: int, trl_copies: int) -> Measured:
    """Run packtrain `runs` times on one corpus, and TRL once unless it gets no copies."""
    measured = Measured(corpus)
    home, user = work / "run", work / "user"
    os.environ["PACKTRAIN_CACHE"] = str(user)
    for number in range(runs):
        print(f"{corpus.name}: round {number + 1} of {runs}; {load()}", file=sys.stderr, flush=True)
        shutil.rmtree(user, ignore_errors=True)
        measured.first.append(packtrain_run(corpus.config(home)))
        manifest = (home / "out" / "manifest.json").read_bytes()
        measured.later.append(packtrain_run(corpus.config(home)))
        if (home / "out" / "manifest.json").read_bytes() != manifest:
            raise SystemExit("the later dataset differs from the first")
    shards = [shard for split in read_manifest(home / "out")["splits"].values() for shard in split["shards"]]
    measured.rows = sum(shard["rows"] for shard in shards)
    measured.tokens = sum(shard["tokens"] for shard in shards)
    shutil.rmtree(home)
    if trl_copies:
        print(f"{corpus.name}: TRL", file=sys.stderr, flush=True)
        measured.trl = run_trl(work, corpus, min(trl_copies, corpus.copies))
    return measured


def run_trl(work: Path, corpus: Corpus, copies: int) -> Trl:
    """TRL on so many copies, scaled to those of the corpus."""
    ran = corpus if copies == corpus.copies else build(work, copies, corpus.lines)
    factor = corpus.copies / ran.copies
    folder, report, log = work / "trl", work / "trl.json", work / "trl.log"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "home"), "HF_DATASETS_CACHE": str(folder / "cache")}
    rows = ran.prompts_and_completions()
    command = [sys.executable, "-m", "tests.bench.bench_end_to_end", "trl", *map(str, (rows, folder, report))]
    cost = run_counted(command, log, offline)
    result = json.loads(report.read_bytes())
    shutil.rmtree(folder)
    preparation = result["load"] + result["prepare"]
    fixed = cost.wall - preparation  # imports and the model: the same for any corpus
    return Trl(
        Cost(fixed + preparation * factor, cost.cpu * factor, cost.others),
        preparation * factor,
        int(result["rows"] * factor),
        int(result["tokens"] * factor),
        ran.copies,
    )


def print_measured(all_measured: list[Measured]) -> None:
    """The table."""
    rows = []
    for measured in all_measured:
        corpus, peer = measured.corpus, measured.trl
        megabytes = corpus.text_bytes / 1e6
        for name, costs in (("packtrain, new tokenizer", measured.first), ("packtrain, later dataset", measured.later)):
            wall = median([cost.wall for cost in costs])
            cells = [
                spread([cost.wall for cost in costs]),
                spread([cost.cpu for cost in costs]),
                f"{megabytes / wall:.1f}",
            ]
            ratios = [f"{peer.cost.wall / wall:.1f}", f"{peer.preparation / wall:.1f}"] if peer else ["", ""]
            others = f"{median([cost.others for cost in costs]):.1f}"
            rows.append([corpus.name, name, *cells, *ratios, f"{measured.rows:,}", f"{measured.tokens:,}", others])
        if peer:
            scaled = "" if peer.copies == corpus.copies else f" (x{peer.copies}, scaled)"
            cells = [f"{peer.cost.wall:.1f}", f"{peer.cost.cpu:.1f}", f"{megabytes / peer.cost.wall:.1f}"]
            counts = [f"{peer.rows:,}", f"{peer.tokens:,}", f"{peer.cost.others:.1f}"]
            rows.append([corpus.name, f"TRL{scaled}", *cells, "1", f"{peer.cost.wall / peer.preparation:.1f}", *counts])
    header = ["corpus", "command", "wall s", "CPU s", "MB/s", "x TRL", "x TRL's preparation alone"]
    print_table([*header, "rows", "tokens", "others' cores"], rows, left=2)


def main() -> None:
    """Runs the benchmark."""
    parser = make_parser(__doc__)
    parser.add_argument("--copies", type=int, nargs="+", default=[1, 11], help="corpora, in copies of the files")
    parser.add_argument("--runs", type=int, default=3, help="of packtrain")
    parser.add_argument("--trl-copies", type=int, default=1 << 30, help="copies that TRL runs on at most; 0 skips it")
    arguments = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for folder in ("schemas", "stages", "pipeline"):
        compile_dir(Path(__file__).parents[2] / folder, quiet=1)
    with work_folder(arguments.work) as work:
        measured = []
        for copies in arguments.copies:
            corpus = build(work, copies, arguments.lines)
            measured.append(measure(work, corpus, arguments.runs, arguments.trl_copies))
        print_header(f"Whole runs, medians of {arguments.runs}", PACKAGES)
        print_measured(measured)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if sys.argv[1:2] == ["trl"]:
        trl(*sys.argv[2:])
    else:
        main()
