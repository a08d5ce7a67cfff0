"""Measures how long ranks wait for the slowest one, in model FLOPs, and what it costs to reduce that.

    PACKTRAIN_REALDATA=... python tests/bench/bench_balance.py [--rows 16384] [--lengths FILE.npz]

Prints Markdown tables. Packed rows come from `plan_rows` (best-fit-decreasing) over two sets of lengths:

- *real*: conversations, problems with solutions, and long documents of the real data, tokenized (Qwen3) once and
  kept in FILE where one is named; drawn with replacement, because they fill few rows of 131,072 tokens.
- *tail*: 97 % lognormal (median 600, sigma 1.2), 3 % Pareto (from 4,096, exponent 0.8), all at most C.

Each step's figure is the cost of its most expensive rank over the mean of its ranks; "mean / worst" are over the steps.
*plain* is the same order without grouping, each rank taking consecutive rows; *dealt* deals a plain step's rows by
cost; *auto* is what `choose_balance` takes, from the first 4,096 rows; where it takes nothing, the order is plain.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from packtrain.schemas.flops import SEVEN_BILLION, ModelShape
from packtrain.schemas.layout import LayoutPlan
from packtrain.schemas.ragged import sums_of
from packtrain.stages.pack.plan import plan_rows
from packtrain.training.order.balance import SAMPLE, Balance, choose_balance, grouped, slowest
from packtrain.training.order.cost import assign_to_ranks
from packtrain.training.order.permutation import Permutation, epoch_key

if TYPE_CHECKING:
    from tests.bench.corpus import TOKENIZER, print_table, realdata
else:
    from corpus import TOKENIZER, print_table, realdata  # a script finds its neighbour by its own folder

CAPACITIES = (2048, 4096, 8192, 16384, 32768, 65536, 131072)
ONE_BILLION = ModelShape(parameters=1.24e9, layers=16, hidden=2048)
SHAPES = (("7B", SEVEN_BILLION), ("1B", ONE_BILLION))
RANKS = 64
CHAT = ("chat/gsm8k_train", "chat/oasst_en100_paths", "chat/sgd_dev", "chat/tau_bench_gpt4o_airline")
LONG_CHAT = "longdoc/qmsum_meeting_qa"
Lengths = tuple[NDArray[np.int32], NDArray[np.int64]]
"""(N,) tokens, and (N,) number of the source."""


def texts(root: Path) -> Iterator[tuple[str, str]]:
    """(source, text) of everything that is packed."""

    def rows(name: str) -> Iterator[dict[str, Any]]:
        with (root / f"{name}.jsonl").open(encoding="utf-8") as lines:
            yield from map(json.loads, lines)

    for name in ("apps/train", "apps/leetcode_apps_schema"):
        for row in rows(name):
            for solution in json.loads(row["solutions"] or "[]"):
                yield name, f"{row['question']}\n{solution}"
    for name in (*CHAT, LONG_CHAT):
        for row in rows(name):
            said = (f"{m['role']}\n{m.get('content') or ''}{m.get('tool_calls') or ''}" for m in row["messages"])
            yield name, "".join(f"<|im_start|>{one}<|im_end|>\n" for one in said)
    for row in rows("longdoc/peps"):
        yield "longdoc/peps", row["text"]


def real_lengths(kept: Path | None) -> Lengths:
    if kept is not None and kept.exists():
        with np.load(kept) as arrays:
            return arrays["lengths"], arrays["sources"]
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(realdata() / TOKENIZER / "tokenizer.json"))
    names, all_texts = zip(*texts(realdata()), strict=True)
    lengths = [
        len(encoded.ids)
        for begin in range(0, len(all_texts), 512)
        for encoded in tokenizer.encode_batch_fast(list(all_texts[begin : begin + 512]))
    ]
    _, sources = np.unique(np.array(names), return_inverse=True)
    if kept is not None:
        np.savez(kept, lengths=np.array(lengths, np.int32), sources=sources)
    return np.array(lengths, np.int32), sources


def drawn(real: Lengths, number: int, random: np.random.Generator) -> Lengths:
    index = random.integers(0, len(real[0]), number)
    return real[0][index], real[1][index]


def long_tailed(number: int, capacity: int, random: np.random.Generator) -> Lengths:
    heavy = random.random(number) < 0.03
    tail = 4096 * random.random(number) ** (-1 / 0.8)
    body = np.exp(random.normal(np.log(600), 1.2, number))
    return np.clip(np.where(heavy, tail, body), 1, capacity).astype(np.int32), heavy.astype(np.int64)


@dataclass(frozen=True, slots=True)
class Packed:
    """Rows in plain order: as best-fit-decreasing made them, then permuted."""

    name: str
    capacity: int
    plan: LayoutPlan
    sources: NDArray[np.int64]
    """(D,) of each piece."""
    order: NDArray[np.int64]
    """(R,) row at each position; whole blocks of 4,096."""

    def costs(self, shape: ModelShape) -> NDArray[np.float64]:
        """(R,) in plain order."""
        lengths, offsets = self.plan.lengths.astype(np.int64), self.plan.row_offsets
        return shape.weigh(sums_of(lengths, offsets), sums_of(lengths**2, offsets))[self.order]

    def sums(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """(R,) of values of the pieces, in plain order."""
        ends = np.concatenate([[0], np.cumsum(values.astype(np.int64))])
        offsets = self.plan.row_offsets
        totals: NDArray[np.int64] = (ends[offsets[1:]] - ends[offsets[:-1]])[self.order]
        return totals


def packed(name: str, capacity: int, rows: int, real: Lengths) -> Packed:
    random = np.random.default_rng(0)

    def make(number: int) -> Lengths:
        return drawn(real, number, random) if name == "real" else long_tailed(number, capacity, random)

    mean = np.minimum(make(100_000)[0], capacity).mean()
    lengths, sources = make(int(1.02 * rows * capacity / mean))
    plan = plan_rows(lengths, capacity, "bfd")
    order = Permutation(plan.rows, epoch_key(0, 0, "rows"))(np.arange(plan.rows))
    return Packed(name, capacity, plan, sources[plan.order], order[: plan.rows // 4096 * 4096])


def in_order(costs: NDArray[np.float64], balance: Balance | None, begin: int = 0) -> NDArray[np.int64]:
    """(R,) positions of the plain order, in the balanced one; the first row stands at position `begin`."""
    rows = np.arange(len(costs))
    if balance is None:
        return rows
    blocks, first = [], 0
    while first < len(rows):
        # Blocks begin at positions that are multiples of their size; so the first one may be a part of one.
        last = first + balance.block - (begin + first) % balance.block
        block = rows[first:last]
        blocks.append(grouped(block, costs[block], balance, epoch_key(0, first, "groups"), begin + first))
        first = last
    return np.concatenate(blocks)


def figures(ratios: NDArray[np.float64]) -> str:
    return f"{ratios.mean():.3f} / {ratios.max():.2f}"


def table(title: str, heads: list[str], lines: list[list[str]]) -> None:
    print(f"\n{title}\n")
    print_table(heads, lines, left=2)


def waiting(all_rows: list[Packed]) -> None:
    lines = []
    for rows in all_rows:
        for name, shape in SHAPES:
            costs = rows.costs(shape)
            choice = choose_balance(costs[:SAMPLE])
            auto = costs[in_order(costs, choice.balance)]
            blocks = [costs[in_order(costs, Balance(block))] for block in (512, 2048)]
            lines.append(
                [rows.name, f"{rows.capacity:,}", name, figures(slowest(costs, RANKS))]
                + [f"{choice.balance.block:,}" if choice.balance else "plain"]
                + [figures(slowest(one, RANKS)) for one in (auto, *blocks)]
                + [figures(slowest(costs, RANKS, 8, dealt=False)), figures(slowest(costs, RANKS, 8))]
                + [figures(slowest(auto, RANKS, 8))]
            )
    heads = ["lengths", "C", "model", "1 row: plain", "auto's block", "1 row: auto", "1 row: 512", "1 row: 2,048"]
    heads += ["8 rows: plain", "8 rows: dealt", "8 rows: auto, dealt"]
    table(f"Slowest of {RANKS} ranks over their mean, mean / worst step", heads, lines)


def in_windows(values: NDArray[Any], steps: int) -> NDArray[np.float64]:
    """(S - steps + 1, ...) sums over windows of so many steps in a row."""
    single = values.reshape(len(values) // RANKS, RANKS, *values.shape[1:]).sum(axis=1)
    ends = np.concatenate([np.zeros_like(single[:1]), np.cumsum(single, axis=0)])
    return np.asarray(ends[steps:] - ends[:-steps], dtype=np.float64)


RANDOMNESS = """*spread*: how far steps differ in their mean document length (by tokens), as a multiple of plain steps:
the noise that length adds to a step's gradient. *of 8 steps*: the same for any eight steps in a row, which is about
what an optimizer's momentum sees. *next*: correlation of that length with the next step's. *other sources*: share
of a step's tokens that would have to come from another source for the step to have the data's mix."""


def randomness(all_rows: list[Packed]) -> None:
    lines = []
    for rows in all_rows:
        if rows.capacity not in (8192, 32768, 131072):
            continue
        costs = rows.costs(ONE_BILLION)
        lengths = rows.plan.lengths.astype(np.int64)
        tokens, squares = rows.sums(lengths), rows.sums(lengths * lengths)
        mix = np.stack([rows.sums(lengths * (rows.sources == n)) for n in range(int(rows.sources.max()) + 1)], axis=1)
        plain_spread = [1.0, 1.0]
        for block in (0, 128, 256, 512, 1024, 2048):
            order = in_order(costs, Balance(block) if block else None)
            means = [in_windows(squares[order], steps) / in_windows(tokens[order], steps) for steps in (1, 8)]
            spread = [float(mean.std()) for mean in means]
            if not block:
                plain_spread = spread
            shares = in_windows(mix[order], 1) / in_windows(tokens[order], 1)[:, None]
            away = np.abs(shares - mix.sum(axis=0) / mix.sum()).sum(axis=1).mean() / 2
            line = [rows.name, f"{rows.capacity:,}", f"{block:,}" if block else "plain"]
            line += [figures(slowest(costs[order], RANKS))]
            line += [f"{now / then:.1f}" for now, then in zip(spread, plain_spread, strict=True)]
            line += [f"{np.corrcoef(means[0][1:], means[0][:-1])[0, 1]:+.2f}", f"{away:.0%}"]
            lines.append(line)
    heads = ["lengths", "C", "block", "slowest", "spread", "of 8 steps", "next", "other sources"]
    table(f"What grouping does to the randomness of steps of {RANKS} rows (1B)", heads, lines)
    print(RANDOMNESS)


def other_ranks(all_rows: list[Packed]) -> None:
    lines = []
    for rows in all_rows:
        if rows.capacity not in (32768, 131072):
            continue
        costs = rows.costs(ONE_BILLION)
        default, shifted = (costs[in_order(costs, Balance(), begin)] for begin in (0, 32))
        for ranks in (8, 16, 32, 48, 64, 96, 128, 256):
            fitting = costs[in_order(costs, Balance(8 * ranks, ranks))]
            line = [rows.name, f"{rows.capacity:,}", f"{ranks}"]
            orders = (costs, default, default[32:], shifted[32:], fitting)
            lines.append(line + [figures(slowest(order, ranks)) for order in orders])
    heads = ["lengths", "C", "ranks", "plain", "512 of 64", "begun 32 late", "groups too", "8 groups of as many"]
    table("One row a rank on other numbers of ranks (1B); begun 32 late as a second epoch may be", heads, lines)


def milliseconds(work: Callable[[], object], repeats: int = 9) -> str:
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return f"{np.median(taken) * 1e3:.2f}"


def dearest_first(costs: NDArray[np.float64], ranks: int) -> list[list[int]]:
    """Longest processing time first, a row at a time: what `assign_to_ranks` is compared with."""
    share = len(costs) // ranks
    sums = np.zeros(ranks)
    hands: list[list[int]] = [[] for _ in range(ranks)]
    for index in np.argsort(-costs, kind="stable").tolist():
        rank = int(np.argmin(sums))
        hands[rank].append(index)
        sums[rank] = np.inf if len(hands[rank]) == share else sums[rank] + costs[index]
    return hands


def dealing(all_rows: list[Packed]) -> None:
    lines = []
    for rows in all_rows:
        if rows.capacity != CAPACITIES[-1]:
            continue
        costs = rows.costs(ONE_BILLION)
        for ranks, share in ((8, 2), (8, 8), (64, 2), (64, 4), (64, 8), (64, 16), (512, 8)):
            steps = costs[: len(costs) // (ranks * share) * ranks * share].reshape(-1, ranks * share)[:24]
            step, means = steps[0], steps.sum(axis=1) / ranks
            by_one = [max(one[hand].sum() for hand in dearest_first(one, ranks)) for one in steps]
            cheapest = np.sort(steps, axis=1)[:, : share - 1].sum(axis=1)
            bound = np.maximum(1, (steps.max(axis=1) + cheapest) / means)
            line = [rows.name, f"{ranks} x {share}", f"{slowest(steps.ravel(), ranks, share, dealt=False).mean():.4f}"]
            line += [f"{(by_one / means).mean():.4f}", f"{slowest(steps.ravel(), ranks, share).mean():.4f}"]
            line += [f"{bound.mean():.4f}", milliseconds(partial(dearest_first, step, ranks))]
            lines.append([*line, milliseconds(partial(assign_to_ranks, step, ranks))])
    heads = ["lengths", "ranks", "consecutive", "dearest first", "deal", "bound", "dearest first, ms", "deal, ms"]
    table(f"Dealing plain steps (C = {CAPACITIES[-1]:,}, 1B)", heads, lines)


def times(all_rows: list[Packed]) -> None:
    lines = []
    for rows in all_rows:
        if rows.capacity not in (4096, 131072):
            continue
        costs = rows.costs(ONE_BILLION)
        line = [rows.name, f"{rows.capacity:,}"]
        line += [milliseconds(partial(grouped, np.arange(512), costs[:512], Balance(), 1))]
        lines.append(line + [milliseconds(partial(choose_balance, costs[:n])) for n in (1024, SAMPLE)])
    heads = ["lengths", "C", "grouping 512 rows", "choice of 1,024", "choice of 4,096"]
    table("Milliseconds", heads, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=16384, help="packed rows of each set; a multiple of 4,096")
    parser.add_argument("--lengths", type=Path, help="where the real lengths are kept")
    options = parser.parse_args()
    real = real_lengths(options.lengths)
    print(f"real: {len(real[0]):,} documents, {int(real[0].sum()):,} tokens; the longest has {int(real[0].max()):,}")
    all_rows = [packed(name, capacity, options.rows, real) for name in ("real", "tail") for capacity in CAPACITIES]
    waiting(all_rows)
    randomness(all_rows)
    other_ranks(all_rows)
    dealing(all_rows)
    times(all_rows)


if __name__ == "__main__":
    main()
