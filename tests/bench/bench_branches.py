"""Measures what `pack.share: row` saves: tokens, the time to pack, and the time of a training step.

    python -m tests.bench.bench_branches [--chats 400] [--row-length 8192] [--hidden 512] [--layers 2] [--skip-steps]

Prints Markdown tables. Chats have one example a turn; problems have all their solutions. A step is the forward and
backward pass of one row, by one CPU thread, of a small Qwen3 with random weights, whose head is computed where tokens
are trained; beside it, the same documents expanded and packed by best-fit decreasing.
"""

import argparse
import os
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import packtrain
import torch
from packtrain.schemas.dataset.row_batch import Row
from packtrain.training import PackedLoader, collate, use_packed
from packtrain.training.branches import expanded
from packtrain.training.targets import find_targets, token_losses
from transformers import AutoModelForCausalLM, Qwen3Config

from tests.bench.tables import print_table

PACKAGES = ("packtrain", "torch", "transformers")
VOCABULARY = 4096
"""Of the model: tokens are taken modulo this, so that its head does not dominate."""


def sources(data: Path, chats: int, folder: Path) -> dict[str, dict[str, Any]]:
    """The sources of real data that are there, by name."""
    out: dict[str, dict[str, Any]] = {}
    for name, file in (("sgd", "chat/sgd_dev.jsonl"), ("tau-bench", "chat/tau_bench_gpt4o_airline.jsonl")):
        if (data / file).exists():
            lines = (data / file).read_text().splitlines()
            lines = lines[:: max(1, len(lines) // chats)][:chats]  # evenly from the file, whose chats grow longer
            (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
            out[name] = {"path": str(folder / f"{name}.jsonl"), "format": "messages", "expand": "per_turn"}
    problems = [str(path) for path in (data / "apps" / "train.jsonl",) if path.exists()]
    if problems:
        out["apps"] = {"path": problems[0], "format": "apps"}
    return out


def pack(source: dict[str, Any], tokenizer: Path, folder: Path, share: str, row_length: int) -> tuple[Any, float]:
    """The manifest of a run, and its seconds. Parts are in the cache already, so that only packing is timed."""
    config = {
        "sources": [{"name": "source", **source}],
        "tokenizer": {"path": str(tokenizer)},
        "mask": "completion",
        "truncate": {"max_length": row_length, "overlong": "drop"},
        "pack": {"share": share},
        "cache": str(folder / "cache"),
        "run": {"workers": 1, "report": False},
    }
    begin = time.perf_counter()
    manifest = packtrain.run({**config, "out": str(folder / share)})
    return manifest, time.perf_counter() - begin


def small_model(hidden: int, layers: int) -> Any:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=hidden, num_attention_heads=hidden // 64, head_dim=64,
        num_key_value_heads=max(1, hidden // 128), num_hidden_layers=layers, intermediate_size=3 * hidden,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config).float().train()


def step_seconds(model: Any, batch: dict[str, Any]) -> tuple[float, float]:
    """Processor seconds of a forward and backward pass, and the summed loss."""
    small = {**batch, "input_ids": batch["input_ids"] % VOCABULARY}
    # A label that was taken modulo the vocabulary is still that of its token.
    small["labels"] = torch.where(batch["labels"] < 0, batch["labels"], batch["labels"] % VOCABULARY)
    model.zero_grad()
    begin = time.process_time()
    wanted = find_targets(small)
    inputs = {name: value for name, value in small.items() if name != "labels"}
    losses = token_losses(model(**inputs, logits_to_keep=wanted.index).logits[0], wanted.tokens)
    losses.sum().backward()
    return time.process_time() - begin, float(losses.detach().sum())


def examples_of(row: Row) -> list[dict[str, Any]]:
    """The documents of an expanded row, each as a row of its own."""
    bounds = [0, *row.seq_lengths.cumsum().tolist()]
    return [
        {
            "input_ids": row.input_ids[begin:end],
            "labels": row.labels[begin:end],
            "position_ids": row.position_ids[begin:end],
            "seq_lengths": [end - begin],
        }
        for begin, end in pairwise(bounds)
    ]


def measure_step(folder: Path, row_length: int, hidden: int, layers: int) -> list[str]:
    """The step of one shared row beside that of its documents, packed without sharing."""
    torch.set_num_threads(1)
    model = small_model(hidden, layers)
    attention = use_packed(model)
    corpus = PackedLoader(folder, rows_per_step=1, attention=attention).corpus
    fullest = max(range(len(corpus)), key=lambda index: len(corpus.row(index).input_ids))
    row = corpus.row(fullest)
    whole = expanded(row)
    shared_batch = PackedLoader(folder, rows_per_step=1, attention=attention).batch_of([fullest])
    documents = sorted(examples_of(whole), key=lambda example: -len(example["input_ids"]))
    rows: list[list[dict[str, Any]]] = []
    room: list[int] = []
    for document in documents:
        size = len(document["input_ids"])
        fitting = [(left, number) for number, left in enumerate(room) if left >= size]
        number = min(fitting)[1] if fitting else len(rows)
        if not fitting:
            rows.append([])
            room.append(row_length)
        rows[number].append(document)
        room[number] -= size
    step_seconds(model, collate(rows[-1]))  # the first pass allocates
    shared, shared_loss = step_seconds(model, shared_batch)
    plain, plain_loss = 0.0, 0.0
    for examples in rows:
        seconds, loss = step_seconds(model, collate(examples))
        plain += seconds
        plain_loss += loss
    tokens, stored = len(whole.input_ids), len(row.input_ids)
    return [
        f"{tokens:,}", f"{stored:,}", f"{tokens / stored:.2f}", f"{plain:.1f} s", f"{shared:.1f} s",
        f"{plain / shared:.2f}", f"{abs(shared_loss - plain_loss) / plain_loss:.1e}",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chats", type=int, default=400)
    parser.add_argument("--row-length", type=int, default=8192)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--skip-steps", action="store_true", help="measure tokens and packing only")
    options = parser.parse_args()
    data = Path(os.environ["PACKTRAIN_REALDATA"])
    tokenizer = data / "tokenizers" / "qwen3"
    stored: list[list[str]] = []
    steps: list[list[str]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for name, source in sources(data, options.chats, Path(scratch)).items():
            folder = Path(scratch) / name
            pack(source, tokenizer, folder / "first", "none", options.row_length)
            (folder / "first" / "cache").rename(folder / "cache")
            plain, plain_seconds = pack(source, tokenizer, folder, "none", options.row_length)
            shared, shared_seconds = pack(source, tokenizer, folder, "row", options.row_length)
            expanded_tokens = plain.ledger.total().tokens_packed
            tokens = shared.ledger.total().tokens_packed
            rows = [manifest.splits["train"].rows for manifest in (plain, shared)]
            stored.append(
                [
                    name, f"{expanded_tokens:,}", f"{tokens:,}", f"{expanded_tokens / tokens:.2f}", f"{rows[0]:,}",
                    f"{rows[1]:,}", f"{plain_seconds:.1f} s", f"{shared_seconds:.1f} s",
                ]
            )  # fmt: skip
            if options.skip_steps:
                continue
            steps.append([name, *measure_step(folder / "row", options.row_length, options.hidden, options.layers)])
    head = ("data", "tokens", "stored", "factor", "rows", "rows that share", "packing", "packing, shared")
    print_table(f"Stored tokens, rows of {options.row_length:,}", PACKAGES, head, stored)
    if options.skip_steps:
        return
    head = ("data", "tokens of a row's documents", "stored", "factor", "step", "step, shared", "speed", "loss differs")
    print_table(f"Forward and backward, hidden {options.hidden}, {options.layers} layers", PACKAGES, head, steps)


if __name__ == "__main__":
    main()
