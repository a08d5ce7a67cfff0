"""Counts the rows of `tight` beside those of `bfd` and the bound, over a fixed grid of real and made lengths.

    python -m tests.bench.bench_tight [--max-docs 2,4,8,16] [--only APPS] [--most 200000] [--strategy tight]

Prints Markdown tables: each case in which the two strategies differ or the optimum is not proved, then a summary. Real
lengths are those of the files that PACKTRAIN_REALDATA holds, encoded by each of its tokenizers; without it only made
lengths are planned. Made lengths come from a seed. Documents longer than C count as C tokens, as both strategies plan
them. Seconds are processor time of one call; with --max-docs each limit is planned beside the plain greedy: the largest
document first, into the emptiest row that has room for one more.
"""

import argparse
import heapq
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from packtrain.stages.pack.plan import plan_rows

CAPACITIES = tuple(1 << power for power in range(10, 18))
NUMBERS = (200, 2_000, 20_000, 200_000, 1_000_000)
LIMIT_SECONDS = 2.0
"""What `tight` may take more than `bfd`, for up to `LIMIT_NUMBER` documents."""
LIMIT_NUMBER = 200_000

Lengths = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Case:
    """Lengths to plan at one capacity."""

    name: str
    lengths: Lengths
    capacity: int


def cases(most: int, only: str) -> Iterator[Case]:
    """The grid. It is fixed: what is tuned is tuned without changing it."""
    for name, lengths in real_lengths().items():
        for capacity in CAPACITIES:
            if only in name:
                yield Case(name, np.minimum(lengths, capacity), capacity)
    for (name, family), number, capacity in itertools.product(FAMILIES.items(), NUMBERS, CAPACITIES):
        if only in name and number <= most:
            random = np.random.default_rng([number, capacity])
            lengths = np.clip(np.rint(family(random, number, capacity)), 1, capacity).astype(np.int64)
            yield Case(name, lengths, capacity)


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


def real_lengths() -> dict[str, Lengths]:
    """The tokens of each document, by corpus and tokenizer; empty without PACKTRAIN_REALDATA."""
    place = os.environ.get("PACKTRAIN_REALDATA")
    if not place:
        return {}
    import tokenizers

    root = Path(place)
    corpora: dict[str, list[str]] = {
        "APPS": list(problems(root / "apps/train.jsonl")),
        "LeetCode": list(problems(root / "apps/leetcode_apps_schema.jsonl")),
        "GSM8K": list(chats(root / "chat/gsm8k_train.jsonl")),
        "OASST": list(chats(root / "chat/oasst_en100_paths.jsonl")),
        "SGD": list(chats(root / "chat/sgd_dev.jsonl")),
        "tau-bench": list(chats(root / "chat/tau_bench_gpt4o_airline.jsonl")),
        "PEPs": [row["text"] for row in read(root / "longdoc/peps.jsonl")],
    }
    out = {}
    for folder in sorted((root / "tokenizers").iterdir()):
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        for name, texts in corpora.items():
            found = [len(one.ids) for one in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
            out[f"{name}, {folder.name}"] = np.array([length for length in found if length], dtype=np.int64)
    return out


def read(path: Path) -> Iterator[Any]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def problems(path: Path) -> Iterator[str]:
    """A document for each solution: the question, the starter code and the solution."""
    for row in read(path):
        for solution in json.loads(row["solutions"] or "[]"):
            yield f"{row['question']}\n{row['starter_code']}\n{solution}"


def chats(path: Path) -> Iterator[str]:
    """A document for each conversation, its tools first; written without any tokenizer's template."""
    for row in read(path):
        lines = [json.dumps(row["tools"])] if row.get("tools") else []
        for message in row["messages"]:
            calls = json.dumps(message["tool_calls"]) if message.get("tool_calls") else ""
            lines.append(f"{message['role']}\n{message.get('content') or ''}{calls}\n")
        yield "\n".join(lines)


def plain_greedy(lengths: Lengths, capacity: int, max_docs: int) -> int:
    """Rows of the plain greedy: the largest document first, into the emptiest row that has room for one more."""
    rows: list[tuple[int, int]] = []  # (tokens, documents) of each row that may take more
    opened = 0
    for length in np.sort(lengths)[::-1].tolist():
        if rows and rows[0][0] + length <= capacity:
            tokens, documents = heapq.heappop(rows)
        else:
            tokens, documents, opened = 0, 0, opened + 1
        if documents + 1 < max_docs:
            heapq.heappush(rows, (tokens + length, documents + 1))
    return opened


@dataclass(frozen=True, slots=True)
class Measured:
    """Rows and seconds of one case."""

    case: Case
    max_docs: int | None
    bound: int
    bfd: int
    rows: int
    greedy: int
    bfd_seconds: float
    seconds: float

    @property
    def proved(self) -> bool:
        return self.rows == self.bound

    @property
    def gap(self) -> float:
        return self.rows / self.bound - 1


def measure(case: Case, strategy: Any, max_docs: int | None) -> Measured:
    begin = time.process_time()
    plain = plan_rows(case.lengths, case.capacity, "bfd", max_docs=max_docs)
    middle = time.process_time()
    plan = plan_rows(case.lengths, case.capacity, strategy, max_docs=max_docs)
    end = time.process_time()
    check(case, plan.order, plan.row_offsets, max_docs)
    greedy = plain_greedy(case.lengths, case.capacity, max_docs) if max_docs else plain.rows
    bound = max(plan.certificate.bound, plain.certificate.bound)
    return Measured(case, max_docs, bound, plain.rows, plan.rows, greedy, middle - begin, end - middle)


def check(case: Case, order: Lengths, row_offsets: Lengths, max_docs: int | None) -> None:
    """Every document is in one row, and no row holds too much."""
    if not np.array_equal(np.bincount(order, minlength=len(case.lengths)), np.ones(len(case.lengths))):
        raise SystemExit(f"{case.name} at {case.capacity}: a document is missing or repeated")
    if np.add.reduceat(case.lengths[order], row_offsets[:-1]).max() > case.capacity:
        raise SystemExit(f"{case.name} at {case.capacity}: a row is too long")
    if max_docs is not None and np.diff(row_offsets).max() > max_docs:
        raise SystemExit(f"{case.name} at {case.capacity}: a row holds too many documents")


def line(one: Measured) -> str:
    cells = [one.case.name, f"{len(one.case.lengths):,}", f"{one.case.capacity:,}"]
    cells += [f"{one.max_docs}", f"{one.greedy:,}"] if one.max_docs else []
    cells += [f"{one.bfd:,}", f"{one.rows:,}", f"{one.bound:,}", "yes" if one.proved else f"{one.gap:.3%}"]
    return "| " + " | ".join([*cells, f"{one.bfd_seconds:.3f}", f"{one.seconds:.3f}"]) + " |"


def summary(found: list[Measured]) -> None:
    """Shares of the grid, and of the cases that best-fit-decreasing does not prove."""
    left = [one for one in found if one.bfd > one.bound]
    rest = [one.gap for one in found if not one.proved]
    more = [one.seconds - one.bfd_seconds for one in found if len(one.case.lengths) <= LIMIT_NUMBER]
    print()
    for words in (
        f"{len(found)} cases: bfd proved optimal in {share(found, lambda one: one.bfd == one.bound)}, "
        f"tight in {share(found, lambda one: one.proved)};",
        f"of the {len(left)} that bfd does not prove, tight proves {share(left, lambda one: one.proved)}.",
        f"Gap in the other {len(rest)}: largest {max(rest, default=0):.3%}, above 0.1 % in "
        f"{sum(gap > 0.001 for gap in rest)}, above 1 % in {sum(gap > 0.01 for gap in rest)}.",
        f"Rows: bfd {sum(o.bfd for o in found):,}, tight {sum(o.rows for o in found):,}, "
        f"bound {sum(o.bound for o in found):,}.",
        f"More rows than bfd in {sum(o.rows > o.bfd for o in found)}, than the plain greedy in "
        f"{sum(o.rows > o.greedy for o in found)}.",
        f"Seconds more than bfd, up to {LIMIT_NUMBER:,} documents: median {np.median(more):.3f}, largest "
        f"{max(more):.2f}; above {LIMIT_SECONDS:g} in {sum(one > LIMIT_SECONDS for one in more)}.",
    ):
        print(words, flush=True)


def share(found: list[Measured], true: Callable[[Measured], bool]) -> str:
    number = sum(map(true, found))
    return f"{number} ({number / max(1, len(found)):.1%})"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--max-docs", default="", help="limits, such as 2,4,8,16")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--most", type=int, default=NUMBERS[-1], help="the most made documents")
    parser.add_argument("--strategy", default="tight", help="what to compare with bfd")
    parser.add_argument("--all", action="store_true", help="print every case")
    arguments = parser.parse_args()
    limits: list[int | None] = [int(one) for one in arguments.max_docs.split(",") if one]
    limits = limits or [None]
    print(
        "| lengths | N | C |"
        + (" limit | greedy |" if arguments.max_docs else "")
        + " bfd | tight | bound | optimal or gap | bfd s | tight s |"
    )
    found = []
    for case, limit in itertools.product(cases(arguments.most, arguments.only), limits):
        one = measure(case, arguments.strategy, limit)
        found.append(one)
        if arguments.all or not one.proved or one.rows != one.bfd:
            print(line(one), flush=True)
    summary(found)


if __name__ == "__main__":
    main()
