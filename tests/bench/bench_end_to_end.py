"""Whole runs beside TRL's preparation, the bare `tokenizers` library and the tokenizer engine alone.

    PACKTRAIN_REALDATA=folder python tests/bench/bench_end_to_end.py [--work DIR] [--copies 11] [--runs 3]
        [--trl-copies N] [--skip-trl] [--skip-reference] [--brief]

Prints Markdown tables. Everything is a command, counted from its start to its exit with all its processes, on the
same rows: `packtrain run` with an empty cache and an empty output each time; TRL's `SFTTrainer` with packing and
two processes, which gets the rows exploded already; two processes that hold the rendered texts in memory and run
nothing but the engine that packtrain chose. "MB" are 10^6 bytes of rendered text.

The user's cache is a folder of the benchmark. It is empty before each run, so that transformers is asked for the
tokenizer and the engine is checked; "later dataset" is the same run with another cache and output, but with that user's
cache, as for any further data with the same tokenizer.

"First pass" is the corpus as it is, "repeated" so many copies of it (see `corpus`). A repeated text does not repeat a
block, so all of it is read, rendered and encoded again; but an engine that remembers words has met each of them before,
and is two to three times as fast as on new text.

Cells are medians, with the range in brackets. packtrain and the engine run in turns, so that both meet the same
load; TRL and packtrain with the reference engine (`tokenizers`) run once. On fewer copies (`--trl-copies`) TRL's
preparation is scaled up, its imports are not. TRL plans its rows within batches of 1,000 examples, so it needs more
rows for the same tokens.

`--brief` measures and prints only the first and the later dataset beside TRL. packtrain is compiled to bytecode first,
as an installed package is.
"""

import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from compileall import compile_dir
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
        read_texts,
        read_timings,
        realdata,
        run_counted,
        spread,
        work_folder,
    )
else:
    from corpus import *  # noqa: F403  # the same names: a script finds its neighbour by its own folder

PACKAGES = ("packtrain", "fastokens", "tokenizers", "trl", "transformers", "datasets", "torch", "pyarrow")
BATCH_CHARACTERS, BATCH_TEXTS = 1 << 20, 4096
"""Texts handed to an engine at once, as packtrain does."""
OTHER_LENGTH = 1024
SAMPLE = 10
"""The bare tokenizer encodes every n-th text of the repeated corpus, for this n."""
ONE_THREAD = {"FASTOKENS_BPE_THREADS": "1", "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


# The peers: each runs in processes of its own, started as `bench_end_to_end.py peer-NAME ARGUMENTS`.


def peer_trl(rows: str, folder: str, report: str) -> None:
    """TRL's preparation: load the JSONL, build a trainer around a tiny model, leave."""
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
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            num_key_value_heads=1,
        )
    )
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
        "import": imported - began,
        "load": loaded - imported,
        "prepare": prepared,
        "rows": len(trainer.train_dataset),
        "tokens": sum(pc.sum(pc.list_value_length(chunk)).as_py() for chunk in chunks),
    }
    Path(report).write_text(json.dumps(result), encoding="utf-8")


def peer_engine(name: str, texts_path: str, report: str) -> None:
    """One engine, one process, texts in memory: load it, encode, leave."""
    from packtrain.stages.tokenize.engines import make_engine

    groups = batches(read_texts(Path(texts_path)))
    engine = make_engine(name, (realdata() / TOKENIZER / "tokenizer.json").read_text(encoding="utf-8"))
    tokens = 0
    began = time.perf_counter()
    for group in groups:
        tokens += len(engine.encode(group).ids)
    ended = time.perf_counter()
    result = {
        "began": began,  # perf_counter is one clock for all processes of a machine
        "ended": ended,
        "tokens": tokens,
    }
    Path(report).write_text(json.dumps(result), encoding="utf-8")


def peer_tokenizers(texts_path: str, report: str) -> None:
    """`encode_batch_fast` alone, in CPU seconds; the tokens are not even fetched."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(realdata() / TOKENIZER / "tokenizer.json"))
    groups = batches(read_texts(Path(texts_path)))
    began = time.process_time()
    for group in groups:
        tokenizer.encode_batch_fast(group, add_special_tokens=False)
    Path(report).write_text(json.dumps({"cpu": time.process_time() - began}), encoding="utf-8")


def batches(texts: Sequence[str]) -> list[list[str]]:
    """The texts in groups as large as packtrain's."""
    groups: list[list[str]] = [[]]
    characters = 0
    for text in texts:
        if characters >= BATCH_CHARACTERS or len(groups[-1]) >= BATCH_TEXTS:
            groups.append([])
            characters = 0
        groups[-1].append(text)
        characters += len(text)
    return groups


# The measurements.


@dataclass
class Ours:
    """Identical runs of packtrain."""

    costs: list[Cost] = field(default_factory=list)
    timings: list[dict[str, float]] = field(default_factory=list)
    manifest: str = ""
    """The hash of the last run's manifest."""
    engine: str = ""
    tokens: int = 0
    """Encoded."""
    rows: int = 0
    """Packed."""
    packed: int = 0
    """Tokens in them."""

    @property
    def walls(self) -> list[float]:
        return [cost.wall for cost in self.costs]

    @property
    def cpus(self) -> list[float]:
        return [cost.cpu for cost in self.costs]

    def stage(self, *names: str) -> list[float]:
        """Seconds in these stages, run by run."""
        return [sum(timings.get(name, 0.0) for name in names) for timings in self.timings]

    def add(self, cost: Cost, out: Path) -> None:
        """One more run, finished in `out`."""
        manifest = read_manifest(out)
        self.costs.append(cost)
        self.timings.append(read_timings(out))
        self.manifest, self.engine = manifest.hash, manifest.plan["encode"]["engine"]
        total = manifest.ledger.total()
        self.tokens = total.tokens_encoded + sum(total.tokens_created.values())
        self.packed = total.tokens_packed
        self.rows = sum(split.rows for split in manifest.splits.values())


@dataclass
class Trl:
    """One run of TRL, scaled to the whole corpus."""

    cost: Cost
    preparation: float
    """Seconds of load_dataset and `_prepare_dataset`."""
    load: float
    rows: int
    packed: int
    """Tokens."""
    copies: int
    """Copies that it ran on."""


@dataclass
class Alone:
    """Runs of the engine alone."""

    costs: list[Cost] = field(default_factory=list)
    loops: list[float] = field(default_factory=list)
    """Wall seconds of the encoding loops, from the first one's start to the last one's end."""
    tokens: int = 0

    @property
    def walls(self) -> list[float]:
        return [cost.wall for cost in self.costs]


@dataclass
class Measured:
    """Everything measured on one corpus."""

    corpus: Corpus
    two: Ours = field(default_factory=Ours)
    later: Ours = field(default_factory=Ours)
    one: Ours = field(default_factory=Ours)
    reference: Ours = field(default_factory=Ours)
    again: list[Cost] = field(default_factory=list)
    other: Ours = field(default_factory=Ours)
    engine: Alone = field(default_factory=Alone)
    bare: list[float] = field(default_factory=list)
    """CPU seconds of the bare tokenizers."""
    bare_every: int = 1
    trl: Trl | None = None

    @property
    def megabytes(self) -> float:
        return self.corpus.text_bytes / 1e6


def measure(
    work: Path, corpus: Corpus, runs: int, trl_copies: int, with_reference: bool, *, brief: bool = False
) -> Measured:
    """Run everything on one corpus; if brief, only two workers, the first and a later dataset, and TRL."""
    measured = Measured(corpus)
    measured.bare_every = 1 if corpus.copies == 1 else SAMPLE
    home, user = work / "run", work / "user"
    os.environ["PACKTRAIN_CACHE"] = str(user)
    for number in range(runs):
        say(f"{corpus.name}: round {number + 1} of {runs}")
        shutil.rmtree(user, ignore_errors=True)
        measured.two.add(packtrain_run(corpus.config(home)), home / "out")
        config = corpus.config(home)
        measured.later.add(packtrain_run(config), home / "out")
        if measured.later.manifest != measured.two.manifest:
            raise SystemExit("the later dataset differs from the first")
        if brief:
            continue
        measured.again.append(packtrain_run(config))
        cost = packtrain_run(config, "--out", str(home / "other"), "--max-length", str(OTHER_LENGTH))
        measured.other.add(cost, home / "other")
        run_engine(work, measured)
        shutil.rmtree(user, ignore_errors=True)
        measured.one.add(packtrain_run(corpus.config(home), workers=1), home / "out")
        run_bare(work, measured)
    if with_reference and not brief:
        say(f"{corpus.name}: packtrain with the reference engine")
        shutil.rmtree(user, ignore_errors=True)
        cost = packtrain_run(corpus.config(home), "--set", "tokenizer.engine=tokenizers")
        measured.reference.add(cost, home / "out")
    shutil.rmtree(home)
    if trl_copies:
        say(f"{corpus.name}: TRL")
        measured.trl = run_trl(work, corpus, trl_copies)
    return measured


def run_engine(work: Path, measured: Measured) -> None:
    """Two processes, half of the texts each."""
    alone = measured.engine
    halves = measured.corpus.write_texts()
    reports = [work / f"engine-{index}.json" for index in range(len(halves))]
    commands = [
        shlex.join(own_command("peer-engine", measured.two.engine, half, report))
        for half, report in zip(halves, reports, strict=True)
    ]
    script = " & ".join(commands) + " & wait"
    alone.costs.append(run_counted(["sh", "-c", script], work / "engine.log", ONE_THREAD))
    loops = [read_report(report, work / "engine.log") for report in reports]
    alone.loops.append(max(loop["ended"] for loop in loops) - min(loop["began"] for loop in loops))
    alone.tokens = int(sum(loop["tokens"] for loop in loops))


def run_bare(work: Path, measured: Measured) -> None:
    """The bare tokenizers on one process."""
    (texts,) = measured.corpus.write_texts(halves=1, every=measured.bare_every)
    report = work / "bare.json"
    run_counted(own_command("peer-tokenizers", texts, report), work / "bare.log", ONE_THREAD)
    measured.bare.append(read_report(report, work / "bare.log")["cpu"] * measured.bare_every)


def run_trl(work: Path, corpus: Corpus, copies: int) -> Trl:
    """TRL on so many copies, scaled to those of the corpus."""
    ran = corpus if copies >= corpus.copies else build(work, copies)
    factor = corpus.copies / ran.copies
    rows = ran.write_rows()
    folder = work / "trl"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "home"), "HF_DATASETS_CACHE": str(folder / "cache")}
    report = work / "trl.json"
    cost = run_counted(own_command("peer-trl", rows, folder, report), work / "trl.log", offline)
    result = read_report(report, work / "trl.log")
    shutil.rmtree(folder)
    rows.unlink()
    preparation = result["load"] + result["prepare"]
    fixed = cost.wall - preparation  # imports and the model: the same for any corpus
    return Trl(
        Cost(fixed + preparation * factor, cost.cpu * factor, cost.others),
        preparation * factor,
        result["load"] * factor,
        int(result["rows"] * factor),
        int(result["tokens"] * factor),
        ran.copies,
    )


def own_command(peer: str, *arguments: "str | Path") -> list[str]:
    """This script as a peer."""
    return [sys.executable, str(Path(__file__).absolute()), peer, *map(str, arguments)]


def read_report(path: Path, log: Path) -> dict[str, float]:
    """What a peer wrote.

    Raises:
        SystemExit: it wrote nothing.
    """
    if not path.exists():
        raise SystemExit(f"{path.stem} did not finish:\n{log.read_text(encoding='utf-8', errors='replace')[-2000:]}")
    report: dict[str, float] = json.loads(path.read_bytes())
    path.unlink()
    return report


# The tables.


def print_wholes(all_measured: Sequence[Measured]) -> None:
    print("#### From the command's start to its exit\n")
    rows = []
    for measured in all_measured:
        corpus, trl = measured.corpus.name, measured.trl
        kinds = [
            ("packtrain, 2 workers", measured.two),
            ("the same, later dataset", measured.later),
            ("packtrain, 1 worker", measured.one),
            ("packtrain, 2 workers, engine `tokenizers`", measured.reference),
        ]
        for name, ours in kinds:
            if not ours.costs:
                continue
            wall = median(ours.walls)
            ratios = [f"{trl.cost.wall / wall:.1f}", f"{trl.preparation / wall:.1f}"] if trl else ["", ""]
            others = f"{median([cost.others for cost in ours.costs]):.1f}"
            rate = f"{measured.megabytes / wall:.1f}"
            rows.append([corpus, name, spread(ours.walls), spread(ours.cpus), rate, *ratios, others])
        if trl:
            scaled = "" if trl.copies == measured.corpus.copies else f" (x{trl.copies}, scaled)"
            rate = f"{measured.megabytes / trl.cost.wall:.1f}"
            cost = [f"{trl.cost.wall:.1f}", f"{trl.cost.cpu:.1f}", rate]
            rows.append([corpus, f"TRL, 2 processes{scaled}", *cost, "1", "", f"{trl.cost.others:.1f}"])
            rate = f"{measured.megabytes / trl.preparation:.1f}"
            name = f"of which load_dataset and _prepare_dataset{scaled}"
            rows.append([corpus, name, f"{trl.preparation:.1f}", "", rate, "", "1", ""])
    header = ["corpus", "command", "wall s", "CPU s", "MB/s", "x TRL", "x TRL's preparation alone", "others' cores"]
    print_table(header, rows, left=2)


def print_corpora(all_measured: Sequence[Measured]) -> None:
    rows = []
    for measured in all_measured:
        corpus = measured.corpus
        rows.append(
            [
                corpus.name,
                f"{corpus.input_bytes / 1e6:.1f}",
                f"{measured.megabytes:.1f}",
                f"{corpus.examples:,}",
                f"{measured.two.tokens:,}",
                f"{measured.engine.tokens:,}",
                f"{measured.two.packed:,}",
                f"{measured.trl.packed:,}" if measured.trl else "",
                f"{measured.two.rows:,}",
                f"{measured.trl.rows:,}" if measured.trl else "",
            ]
        )
    header = ["corpus", "JSONL MB", "text MB", "examples", "tokens", "engine's tokens"]
    header += ["packed tokens", "TRL's packed tokens", "rows", "TRL's rows"]
    print_table(header, rows)


def print_cpu(all_measured: Sequence[Measured]) -> None:
    print("#### CPU seconds of everything, beside encoding alone with `tokenizers`\n")
    rows = []
    for measured in all_measured:
        bare, ours = median(measured.bare), median(measured.two.cpus)
        note = "all texts" if measured.bare_every == 1 else f"each {measured.bare_every}th text, scaled"
        cells = [measured.corpus.name, note, spread(measured.bare), f"{measured.megabytes / bare:.2f}"]
        rows.append([*cells, spread(measured.two.cpus), f"{ours / bare:.2f}"])
    header = ["corpus", "`encode_batch_fast`", "its CPU s", "its MB per CPU s", "packtrain's CPU s", "share"]
    print_table(header, rows, left=2)


def print_engine(all_measured: Sequence[Measured]) -> None:
    print("#### Beside the engine alone, on two processes with the texts in memory\n")
    rows = []
    for measured in all_measured:
        size, ours = measured.megabytes, measured.two
        stages, encode = median(ours.stage("encode", "pack")), median(ours.stage("encode"))
        alone = measured.engine
        loop, whole = median(alone.loops), median(alone.walls)
        for what, theirs, mine in (
            ("encoding loops / encode and pack stages", loop, stages),
            ("encoding loops / encode stage", loop, encode),
            ("start to exit", whole, median(ours.walls)),
        ):
            cells = [measured.corpus.name, ours.engine, f"MB/s, {what}"]
            rows.append([*cells, f"{size / theirs:.0f}", f"{size / mine:.0f}", f"{theirs / mine:.2f}"])
        used, spent = median([cost.cpu for cost in alone.costs]), median(ours.cpus)
        cells = [measured.corpus.name, ours.engine, "MB per CPU s, start to exit"]
        rows.append([*cells, f"{size / used:.1f}", f"{size / spent:.1f}", f"{used / spent:.2f}"])
    print_table(["corpus", "engine", "what", "engine alone", "packtrain", "share"], rows, left=3)


def print_stages(all_measured: Sequence[Measured]) -> None:
    print("#### Where the time goes: wall seconds by stage\n")
    runs = [
        (f"{measured.corpus.name}, {name}", ours)
        for measured in all_measured
        for name, ours in (("2 workers", measured.two), ("later", measured.later), ("1 worker", measured.one))
    ]
    names = list(dict.fromkeys(name for _, ours in runs for timings in ours.timings for name in timings))
    stages = [name for name in names if not is_sum(name)]
    rows = [[name, *(f"{median(ours.stage(name)):.2f}" for _, ours in runs)] for name in stages]
    rest = [
        median([wall - inside for wall, inside in zip(ours.walls, ours.stage(*stages), strict=True)])
        for _, ours in runs
    ]
    rows.append(["start, manifest, exit", *(f"{seconds:.2f}" for seconds in rest)])
    rows.append(["all", *(f"{median(ours.walls):.2f}" for _, ours in runs)])
    rows += [[name, *(f"{median(ours.stage(name)):.2f}" for _, ours in runs)] for name in names if is_sum(name)]
    print_table(["stage", *(name for name, _ in runs)], rows)


def is_sum(name: str) -> bool:
    """Whether a timing is a sum over workers: it is listed beside the stages, and is not a stage."""
    return "summed" in name


def print_again(all_measured: Sequence[Measured]) -> None:
    print("#### Not doing the work twice, and doing it on two cores: wall seconds\n")
    rows = []
    for measured in all_measured:
        first, one = median(measured.two.walls), median(measured.one.walls)
        stages = ("encode", "pack")
        scaling = median(measured.one.stage(*stages)) / median(measured.two.stage(*stages))
        again = spread([cost.wall for cost in measured.again])
        other = spread(measured.other.walls)
        costs = measured.two.costs + measured.one.costs
        others = f"{median([cost.others for cost in costs]):.1f}"
        cells = [measured.corpus.name, spread(measured.two.walls), again, other]
        rows.append([*cells, f"{one / first:.2f}", f"{scaling:.2f}", others])
    header = ["corpus", "first run", "the same again", f"only max_length {OTHER_LENGTH}, another out"]
    print_table([*header, "1 worker / 2", "the same, encode and pack", "others' cores"], rows)


def print_targets(all_measured: Sequence[Measured]) -> None:
    print("#### Targets\n")
    rows = []
    for measured in all_measured:
        name, wall = measured.corpus.name, median(measured.two.walls)
        if measured.trl:
            least = (9, 18) if measured.megabytes < 100 else (30, 30)
            for which, ours, times in zip(("first", "later"), (measured.two, measured.later), least, strict=True):
                ratio = measured.trl.cost.wall / median(ours.walls)
                rows.append(target(name, f"x TRL with two processes, {which} dataset", ratio, times))
            preparation = measured.trl.preparation / wall
            rows.append(target(name, "x TRL's preparation alone, against our whole command", preparation, 15))
            if measured.reference.costs:
                ratio = measured.trl.cost.wall / median(measured.reference.walls)
                rows.append(target(name, "x TRL with the reference engine", ratio, 2.5))
        share = median(measured.two.cpus) / median(measured.bare)
        rows.append([name, "CPU of the bare tokenizers", f"{share:.2f}", "<= 0.33", "yes" if share <= 1 / 3 else "NO"])
        stages = median(measured.two.stage("encode", "pack"))
        alone = measured.engine
        loops, whole = median(alone.loops) / stages, median(alone.walls) / wall
        rows.append(target(name, "rate of the engine: its loops, our encode and pack", loops, 0.6))
        rows.append(target(name, "rate of the engine: start to exit", whole, 0.6))
    print_table(["corpus", "what", "measured", "target", "met"], rows, left=2)


def target(corpus: str, what: str, value: float, least: float) -> list[str]:
    """A line of the table of targets."""
    return [corpus, what, f"{value:.2f}", f">= {least}", "yes" if value >= least else "NO"]


def say(text: str) -> None:
    """Progress, apart from the tables."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}; {load()}", file=sys.stderr, flush=True)


def main() -> None:
    """Runs the benchmark."""
    parser = make_parser(__doc__)
    parser.add_argument("--copies", type=int, default=11, help="of the repeated corpus; 0 leaves it out")
    parser.add_argument("--runs", type=int, default=3, help="rounds of packtrain, engine and tokenizers")
    parser.add_argument("--trl-copies", type=int, help="copies that TRL runs on, scaled; default all")
    parser.add_argument("--skip-trl", action="store_true", help="minutes less")
    parser.add_argument("--skip-reference", action="store_true", help="packtrain's own engine alone")
    parser.add_argument("--brief", action="store_true", help="first and later dataset beside TRL, one table")
    parser.add_argument("--skip-first", action="store_true", help="the repeated corpus alone")
    arguments = parser.parse_args()
    copies = [*([] if arguments.skip_first else [1]), *([arguments.copies] if arguments.copies else [])]
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for folder in ("schemas", "stages", "pipeline"):
        compile_dir(Path(__file__).parents[2] / folder, quiet=1)
    with work_folder(arguments.work) as work:
        began = load()
        all_measured = []
        for count in copies:
            corpus = build(work, count)
            trl_copies = 0 if arguments.skip_trl else arguments.trl_copies or count
            all_measured.append(
                measure(work, corpus, arguments.runs, trl_copies, not arguments.skip_reference, brief=arguments.brief)
            )
            shutil.rmtree(corpus.folder)
        print_header(f"Whole runs, medians of {arguments.runs}", PACKAGES)
        print(f"Before: {began}. Others' cores: what the rest of the machine used while a command ran.\n")
        print_corpora(all_measured)
        print_wholes(all_measured)
        if arguments.brief:
            return
        print_cpu(all_measured)
        print_engine(all_measured)
        print_stages(all_measured)
        print_again(all_measured)
        print_targets(all_measured)


PEERS: dict[str, Callable[..., None]] = {
    "peer-trl": peer_trl,
    "peer-engine": peer_engine,
    "peer-tokenizers": peer_tokenizers,
}

if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in PEERS:
        PEERS[sys.argv[1]](*sys.argv[2:])
    else:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        main()
