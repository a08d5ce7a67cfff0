"""Compares the loader with other loaders, and with what a trainer waits for.

    python -m tests.bench.bench_loader [--work DIR] [--parts wait speed] [--rounds 5]

Prints Markdown tables. To compare with peers: `pip install mosaicml-streaming torchdata`; one that cannot be
imported is named with the reason. The data are made here: texts of lognormal length, packed by `packtrain.run` into
rows of 4,096 tokens, some 300 MB of shards in the default size, all in the page cache. One process reads them.

speed: rows to flattened int64 batches, in the order of the shards, with no worker process; peers get a collator that
does no more than it must. Contenders run in turns, for a moment each, in every round, and go on where they stopped; a
cell is the median of the rounds. The first batch of each turn is not counted. First of all each delivers one epoch,
whose tokens, ids, labels and positions must have the sums that they have in the shards.

wait: the share of a step that its consumer spends in next(), when it sleeps for the rest as long as a GPU would
compute: 60,000 tokens/s, one GPU of the H200 class with a model of 1B parameters, and 400,000, as eight would ask.
"""

import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from tests.bench.corpus import load, make_parser, median, print_header, print_table, spread, work_folder

MAX_LENGTH = 4096
ROWS_A_STEP = (1, 8, 32)
PEERS = ("mosaicml-streaming", "datasets", "trl", "torchdata")
WAIT_LIMIT = 0.01
RATES = (60_000, 400_000)
TOKEN_COLUMNS = ("input_ids", "labels", "position_ids")
COLUMNS = (*TOKEN_COLUMNS, "seq_lengths")

Batch = dict[str, Any]
"""`input_ids`, `labels`, `position_ids`, int64 (1, T) each, at least."""
Row = Mapping[str, Any]
"""The columns of one packed row, arrays or tensors."""
Passes = Callable[[int], Iterator[Batch]]
"""Rows a step → batches: at least one epoch of them, then the iterator ends and is asked for again."""


def make_data(work: Path, tokens: int) -> Path:
    """A packed dataset of known sizes and random words; made once per work folder."""
    import packtrain
    from tokenizers import Tokenizer

    tokenizer = Path(str(files("packtrain.pipeline.demo") / "tokenizer"))
    rows = work / "loader-rows.jsonl"
    if not rows.exists():
        vocabulary = Tokenizer.from_file(str(tokenizer / "tokenizer.json")).get_vocab()
        words = np.array(sorted(word for word in vocabulary if word.isascii() and word.isalpha()))
        random_ = np.random.default_rng(0)
        left = tokens
        with rows.with_suffix(".part").open("w", encoding="utf-8") as file:
            while left > 0:
                size = int(np.clip(random_.lognormal(6.2, 1.1), 16, 3900))
                # A word and the space before it are some two tokens.
                file.write(json.dumps({"text": " ".join(random_.choice(words, size // 2))}) + "\n")
                left -= size
        rows.with_suffix(".part").rename(rows)
    config = {
        "out": str(work / "loader-data"),
        "cache": str(work / "loader-cache"),
        "tokenizer": {"path": str(tokenizer)},
        "sources": [{"name": "words", "format": "text", "path": str(rows)}],
        "truncate": {"max_length": MAX_LENGTH},
        "run": {"report": False},
    }
    packtrain.run(config)
    return work / "loader-data"


# Contenders.


def flatten(rows: Sequence[Row]) -> Batch:
    """A collator for rows of int32 arrays: joined and converted in one pass, with what varlen attention needs."""
    batch: Batch = {
        name: torch.from_numpy(np.concatenate([row[name] for row in rows], dtype=np.int64)).unsqueeze(0)
        for name in TOKEN_COLUMNS
    }
    lengths = np.concatenate([row["seq_lengths"] for row in rows])
    bounds = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    return {**batch, "cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": int(lengths.max())}


def ours(folder: Path, **options: Any) -> Passes:
    """PackedLoader, whose epochs are so many that no measurement reaches the last."""
    from packtrain.training import PackedLoader

    return lambda rows: iter(PackedLoader(folder, rows_per_step=rows, epochs=1000, **options))


def loaded(folder: Path, columns: Sequence[str] = COLUMNS) -> Any:
    """The folder as `datasets` reads it."""
    return importlib.import_module("datasets").load_from_disk(str(folder)).select_columns(list(columns))


def through(make: Any, dataset: Any, collate: Any) -> Passes:
    """A loader of torch's kind over a dataset."""
    return lambda rows: iter(make(dataset, batch_size=rows, collate_fn=collate, num_workers=0))


def by_hand(folder: Path) -> Passes:
    """Batches of Arrow, converted by somebody's own lines."""
    table = loaded(folder).with_format("arrow")

    def passes(rows: int) -> Iterator[Batch]:
        for part in table.iter(batch_size=rows):
            columns = {
                name: np.concatenate([chunk.flatten().to_numpy() for chunk in part.column(name).chunks])
                for name in COLUMNS
            }
            yield flatten([columns])

    return passes


def hf(folder: Path) -> Passes:
    """`datasets`, map-style, through torch's DataLoader."""
    return through(torch.utils.data.DataLoader, loaded(folder).with_format("numpy"), flatten)


def trl(folder: Path) -> Passes:
    """The collator of TRL's SFTTrainer with `padding_free`, over the folder as `datasets` reads it."""
    trainer = importlib.import_module("trl.trainer.sft_trainer")
    collate = trainer.DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
    table = loaded(folder, ("input_ids", "labels", "seq_lengths"))
    return through(torch.utils.data.DataLoader, table, collate)


def torchdata(folder: Path) -> Passes:
    """torchdata's StatefulDataLoader over `datasets`."""
    loader = importlib.import_module("torchdata.stateful_dataloader").StatefulDataLoader
    return through(loader, loaded(folder).with_format("numpy"), flatten)


def mosaic(folder: Path, work: Path) -> Passes:
    """MosaicML streaming on MDS shards of the same rows."""
    streaming = importlib.import_module("streaming")
    out = work / "mds"
    with streaming.MDSWriter(out=str(out), columns=dict.fromkeys(COLUMNS, "ndarray:int32"), exist_ok=True) as writer:
        for row in loaded(folder).with_format("numpy"):
            writer.write({name: np.asarray(row[name], np.int32) for name in COLUMNS})

    def passes(rows: int) -> Iterator[Batch]:
        streaming.base.util.clean_stale_shared_memory()
        dataset = streaming.StreamingDataset(local=str(out), shuffle=False, batch_size=rows, num_canonical_nodes=1)
        return through(torch.utils.data.DataLoader, dataset, flatten)(rows)

    return passes


def contenders(folder: Path, work: Path) -> tuple[dict[str, Passes], dict[str, str]]:
    """Everything that can run here by its name; and why the others cannot."""
    makers: dict[str, Callable[[], Passes]] = {
        "packtrain": partial(ours, folder, order="sequential"),
        "packtrain, `prefetch=0`": partial(ours, folder, order="sequential", prefetch=0),
        "packtrain, order full": partial(ours, folder, order="full", first_epoch_sequential=False),
        "datasets, numpy format, map-style": partial(hf, folder),
        "datasets, arrow format, converted by hand": partial(by_hand, folder),
        "datasets, TRL's padding-free collator": partial(trl, folder),
        "torchdata StatefulDataLoader over datasets": partial(torchdata, folder),
        "MosaicML streaming": partial(mosaic, folder, work),
    }
    made: dict[str, Passes] = {}
    missing: dict[str, str] = {}
    for name, make in makers.items():
        try:
            made[name] = make()
        except ImportError as error:
            missing[name] = str(error)
    return made, missing


# Speed.


def endless(passes: Passes, rows: int) -> Iterator[Batch]:
    """Its batches, pass after pass."""
    return chain.from_iterable(passes(rows) for _ in count())


def tokens_a_second(batches: Iterator[Batch], moment: float) -> float:
    """Measured over one turn of `moment` seconds, from the first batch's arrival on."""
    next(batches)
    tokens = taken = 0.0
    began = time.perf_counter()
    for batch in batches:
        tokens += batch["input_ids"].shape[1]
        if (taken := time.perf_counter() - began) > moment:
            break
    return tokens / taken


def summed(columns: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
    """(4,) tokens, and sums of ids, trained labels and positions, which do not depend on the order of rows."""
    ids, labels, positions = (np.asarray(column, np.int64) for column in columns)
    return np.array([ids.size, ids.sum(), labels[labels >= 0].sum(), positions.sum()])


def check(made: Mapping[str, Passes], folder: Path) -> None:
    """Check that every contender delivers the rows of the shards.

    Raises:
        SystemExit: one does not.
    """
    shards = json.loads((folder / "manifest.json").read_bytes())["splits"]["train"]["shards"]
    expected, rows = np.zeros(4, np.int64), 0
    for shard in shards:
        with pa.memory_map(str(folder / shard["name"])) as source:
            for batch in pa.ipc.open_stream(source):
                expected += summed([batch.column(name).flatten().to_numpy() for name in TOKEN_COLUMNS])
                rows += batch.num_rows
    for name, passes in made.items():
        batches = islice(endless(passes, 1), rows)
        found = sum(summed([batch[column] for column in TOKEN_COLUMNS]) for batch in batches)
        if not np.array_equal(found, expected):
            raise SystemExit(f"{name} gives {found}, but the shards hold {expected}")


def print_speed(folder: Path, work: Path, rounds: int, moment: float) -> None:
    """Tokens a second of every contender, for every number of rows a step."""
    made, missing = contenders(folder, work)
    check(made, folder)
    print_header(f"Rows of {MAX_LENGTH:,} tokens to int64 batches, {rounds} rounds", ("packtrain", "torch", "numpy"))
    print("Peers: " + ", ".join(installed(name) for name in PEERS) + ".\n")
    for name, reason in missing.items():
        print(f"Left out: {name}, {reason}.\n")
    cells: dict[str, list[str]] = {name: [] for name in made}
    for rows in ROWS_A_STEP:
        rates: dict[str, list[float]] = {name: [] for name in made}
        running = {name: endless(passes, rows) for name, passes in made.items()}
        for _ in range(rounds):
            for name, batches in running.items():
                rates[name].append(tokens_a_second(batches, moment) / 1e6)
        print(f"{rows} rows a step; {load()}", file=sys.stderr, flush=True)
        for name in made:
            cells[name].append(spread(rates[name], 0))
    header = ["M tokens/s", *(f"{rows} rows a step" for rows in ROWS_A_STEP)]
    print_table(header, [[name, *of_one] for name, of_one in cells.items()])


def installed(name: str) -> str:
    """A package and its version, if there is one."""
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return f"{name} (not installed)"


# Waiting.


def print_wait(folder: Path, seconds: float) -> None:
    """The share of a step spent in next()."""
    table = []
    for order in ("sequential", "full"):
        for rate in RATES:
            for ahead in (2, 0):
                batches = ours(folder, order=order, first_epoch_sequential=False, prefetch=ahead)(8)
                waits, slept = wait_times(batches, rate, seconds)
                share = sum(waits) / (sum(waits) + slept)
                row = [f"{order}, prefetch={ahead}", f"{rate:,}", f"{slept / len(waits) * 1e3:.0f}"]
                row += [f"{median(waits) * 1e3:.3f}", f"{max(waits) * 1e3:.3f}", f"{share:.3%}"]
                table.append([*row, "yes" if share < WAIT_LIMIT else "NO"])
    print_header("Waiting for a batch of 8 rows, warm page cache", ("packtrain", "torch", "numpy"))
    header = ["order", "tokens/s of the consumer", "ms it computes", "ms it waits", "longest, ms", "share"]
    print_table([*header, f"< {WAIT_LIMIT:.0%}"], table)


def wait_times(batches: Iterator[Batch], rate: int, seconds: float) -> tuple[list[float], float]:
    """Seconds in each next() but the first, and seconds slept in all."""
    waits: list[float] = []
    slept = 0.0
    batch = next(batches)
    while slept < seconds:
        began = time.perf_counter()
        time.sleep(batch["input_ids"].shape[1] / rate)
        woke = time.perf_counter()
        batch = next(batches)
        waits.append(time.perf_counter() - woke)
        slept += woke - began
    return waits, slept


def main() -> None:
    """Runs the benchmark."""
    parser = make_parser(__doc__)
    names = ("wait", "speed")  # waiting first, while the process holds nothing of the peers
    parser.add_argument("--parts", nargs="+", choices=names, default=names)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=28_000_000, help="of the dataset")
    parser.add_argument("--moment", type=float, default=0.4, help="seconds of one contender's turn")
    arguments = parser.parse_args()
    with work_folder(arguments.work) as work:
        folder = make_data(work, arguments.tokens)
        if "wait" in arguments.parts:
            print_wait(folder, 10 * arguments.moment)
        if "speed" in arguments.parts:
            print_speed(folder, work, arguments.rounds, arguments.moment)


if __name__ == "__main__":
    main()
