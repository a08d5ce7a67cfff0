"""Compares the loader with other loaders.

    python -m tests.bench.bench_loader [--rounds 5] [--tokens 28000000]

Prints a Markdown table: million tokens a second, from rows to flattened int64 batches, in the order of the shards, in
one process. The data are made here: texts of lognormal length, packed by `packtrain.run` into rows of 4,096 tokens,
some 300 MB of shards in the default size, all in the page cache.

Contenders run in turns, for a moment each, in every round, and go on where they stopped; a cell is the median of the
rounds. Peers get a collator that does no more than it must. The first batch of each turn is not counted. First of all
each delivers one epoch, whose tokens, ids, labels and positions must have the sums that they have in the shards.
"""

import argparse
import importlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from tests import kit
from tests.bench.tables import print_table, spread

MAX_LENGTH = 4096
ROWS_A_STEP = (1, 8, 32)
TOKEN_COLUMNS = ("input_ids", "labels", "position_ids")
COLUMNS = (*TOKEN_COLUMNS, "seq_lengths")

Batch = dict[str, Any]
"""`input_ids`, `labels`, `position_ids`, int64 (1, T) each, at least."""
Row = Mapping[str, Any]
"""The columns of one packed row, arrays or tensors."""
Passes = Callable[[int], Iterator[Batch]]
"""Rows a step → batches: at least one epoch of them, then the iterator ends and is asked for again."""


def make_data(work: Path, tokens: int) -> Path:
    """A packed dataset of known sizes and random words."""
    from tokenizers import Tokenizer

    vocabulary = Tokenizer.from_file(str(kit.demo_tokenizer() / "tokenizer.json")).get_vocab()
    words = np.array(sorted(word for word in vocabulary if word.isascii() and word.isalpha()))
    random, left = np.random.default_rng(0), tokens
    with (work / "rows.jsonl").open("w", encoding="utf-8") as file:
        while left > 0:
            size = int(np.clip(random.lognormal(6.2, 1.1), 16, 3900))
            # A word and the space before it are some two tokens.
            file.write(json.dumps({"text": " ".join(random.choice(words, size // 2))}) + "\n")
            left -= size
    config = kit.configure(work, kit.source("texts", path="rows.jsonl"), truncate={"max_length": MAX_LENGTH})
    del config["output"]
    return kit.packed(config).folder


# Contenders


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

    return lambda rows: iter(PackedLoader(folder, rows_per_step=rows, epochs=1000, order="sequential", **options))


def loaded(folder: Path, columns: Sequence[str] = COLUMNS) -> Any:
    """The folder as `datasets` reads it."""
    return importlib.import_module("datasets").load_from_disk(str(folder)).select_columns(list(columns))


def through_torch(dataset: Any, collate: Any = flatten) -> Passes:
    """torch's DataLoader over a dataset."""
    return lambda rows: iter(torch.utils.data.DataLoader(dataset, batch_size=rows, collate_fn=collate))


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


def trl(folder: Path) -> Passes:
    """The collator of TRL's SFTTrainer with `padding_free`, over the folder as `datasets` reads it."""
    trainer = importlib.import_module("trl.trainer.sft_trainer")
    collate = trainer.DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
    return through_torch(loaded(folder, ("input_ids", "labels", "seq_lengths")), collate)


def contenders(folder: Path) -> dict[str, Passes]:
    """Everything that can run here by its name."""
    return {
        "packtrain": ours(folder),
        "packtrain, `prefetch=0`": ours(folder, prefetch=0),
        "datasets, numpy format, map-style": through_torch(loaded(folder).with_format("numpy")),
        "datasets, arrow format, converted by hand": by_hand(folder),
        "datasets, TRL's padding-free collator": trl(folder),
    }


# Measuring


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


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=28_000_000, help="of the dataset")
    parser.add_argument("--moment", type=float, default=0.4, help="seconds of one contender's turn")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="packtrain-bench-") as name:
        folder = make_data(Path(name), asked.tokens)
        made = contenders(folder)
        check(made, folder)
        cells: dict[str, list[str]] = {name: [] for name in made}
        for rows in ROWS_A_STEP:
            rates: dict[str, list[float]] = {name: [] for name in made}
            running = {name: endless(passes, rows) for name, passes in made.items()}
            for _ in range(asked.rounds):
                for name, batches in running.items():
                    rates[name].append(tokens_a_second(batches, asked.moment) / 1e6)
            for name in made:
                cells[name].append(spread(rates[name], 0))
    title, packages = (
        f"Rows of {MAX_LENGTH:,} tokens to int64 batches",
        ("packtrain", "torch", "numpy", "datasets", "trl"),
    )
    header = ["M tokens/s", *(f"{rows} rows a step" for rows in ROWS_A_STEP)]
    print_table(title, packages, header, [[name, *of_one] for name, of_one in cells.items()])


if __name__ == "__main__":
    main()
