"""Counts the rows of `tight` beside those of `bfd` and the bound, over a fixed grid of real and made lengths.

    python -m tests.bench.bench_tight [--max-docs 4] [--only APPS] [--most 200000]

Prints a Markdown table of the cases in which the two strategies differ or the optimum is not proved, and a summary.
Real lengths are a quarter of the characters of the documents that PACKTRAIN_REALDATA holds; without it only made
lengths are planned, which come from a seed. Documents longer than C count as C tokens, as both strategies plan them.
Seconds are processor time of one call.
"""

import argparse
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from packtrain.stages.pack.plan_rows import plan_rows

from tests.bench.corpus import print_table

CAPACITIES = tuple(1 << power for power in range(10, 18))
NUMBERS = (200, 2_000, 20_000, 200_000, 1_000_000)

Lengths = NDArray[np.int64]


def cases(most: int, only: str) -> Iterator[tuple[str, Lengths, int]]:
    """(name, lengths, capacity) over the grid. It is fixed: what is tuned is tuned without changing it."""
    for name, lengths in real_lengths().items():
        for capacity in CAPACITIES:
            if only in name:
                yield name, np.minimum(lengths, capacity), capacity
    for (name, family), number, capacity in itertools.product(FAMILIES.items(), NUMBERS, CAPACITIES):
        if only in name and number <= most:
            random = np.random.default_rng([number, capacity])
            yield name, np.clip(np.rint(family(random, number, capacity)), 1, capacity).astype(np.int64), capacity


def lognormal(random: np.random.Generator, number: int, mean: float, sigma: float) -> NDArray[np.float64]:
    drawn: NDArray[np.float64] = np.exp(random.standard_normal(number) * sigma + np.log(mean) - sigma**2 / 2)
    return drawn


def bimodal(random: np.random.Generator, number: int, capacity: int) -> NDArray[np.float64]:
    """Seven short answers to three long documents, which fill more than half of a row."""
    long = random.normal(0.6 * capacity, 0.08 * capacity, number)
    return np.where(random.random(number) < 0.3, long, lognormal(random, number, 250, 0.5))


FAMILIES: dict[str, Callable[[np.random.Generator, int, int], NDArray[np.float64]]] = {
    "lognormal, mean 1,475": lambda random, number, capacity: lognormal(random, number, 1475, 1.0),
    "lognormal, mean 0.4 C": lambda random, number, capacity: lognormal(random, number, 0.4 * capacity, 1.0),
    "bimodal": bimodal,
    "uniform": lambda random, number, capacity: random.integers(1, capacity + 1, number).astype(np.float64),
    "near half": lambda random, number, capacity: random.normal(capacity / 2, capacity / 20, number),
}
FILES = {
    "APPS": "apps/train.jsonl",
    "LeetCode": "apps/leetcode_apps_schema.jsonl",
    "GSM8K": "chat/gsm8k_train.jsonl",
    "OASST": "chat/oasst_en100_paths.jsonl",
    "SGD": "chat/sgd_dev.jsonl",
    "tau-bench": "chat/tau_bench_gpt4o_airline.jsonl",
    "PEPs": "longdoc/peps.jsonl",
}


def real_lengths() -> dict[str, Lengths]:
    """A quarter of the characters of each document, by corpus; empty without PACKTRAIN_REALDATA."""
    root = os.environ.get("PACKTRAIN_REALDATA")
    found = {}
    for name, path in FILES.items() if root else ():
        with Path(str(root), path).open(encoding="utf-8") as lines:
            sizes = [size for line in lines for size in characters(json.loads(line))]
        found[name] = np.maximum(np.array(sizes, dtype=np.int64) // 4, 1)
    return found


def characters(row: Any) -> Iterator[int]:
    """The size of each document of a row: of each solution with its problem, of the text, or of the conversation."""
    if "solutions" in row:
        for solution in json.loads(row["solutions"] or "[]"):
            yield len(row["question"]) + len(row["starter_code"]) + len(solution)
    elif "text" in row:
        yield len(row["text"])
    else:
        tools = len(json.dumps(row["tools"])) if row.get("tools") else 0
        calls = sum(len(json.dumps(one["tool_calls"])) for one in row["messages"] if one.get("tool_calls"))
        yield tools + calls + sum(len(one["role"]) + len(one.get("content") or "") + 2 for one in row["messages"])


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--max-docs", type=int, help="the most documents of a row")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--most", type=int, default=NUMBERS[-1], help="the most made documents")
    asked = parser.parse_args()
    rows: list[list[str]] = []
    found: list[tuple[int, int, int]] = []
    more: list[float] = []
    for name, lengths, capacity in cases(asked.most, asked.only):
        begin = time.process_time()
        plain = plan_rows(lengths, capacity, "bfd", max_docs=asked.max_docs)
        middle = time.process_time()
        tight = plan_rows(lengths, capacity, "tight", max_docs=asked.max_docs)
        end = time.process_time()
        bound = max(plain.certificate.bound, tight.certificate.bound)
        found.append((plain.rows, tight.rows, bound))
        more.append(end - middle - (middle - begin))
        if not plain.rows == tight.rows == bound:
            counts = [f"{one:,}" for one in (len(lengths), capacity, *found[-1])]
            rows.append([name, *counts, f"{middle - begin:.3f}", f"{end - middle:.3f}"])
    print_table(["lengths", "N", "C", "bfd", "tight", "bound", "bfd s", "tight s"], rows)
    plains, tights, bounds = (sum(column) for column in zip(*found, strict=True))
    proved = [sum(one[which] == one[2] for one in found) for which in (0, 1)]
    print(f"{len(found)} cases: bfd proved optimal in {proved[0]}, tight in {proved[1]}.")
    print(f"Rows: bfd {plains:,}, tight {tights:,}, bound {bounds:,}.")
    print(f"Seconds more than bfd: median {np.median(more):.3f}, largest {max(more):.2f}.")


if __name__ == "__main__":
    main()
