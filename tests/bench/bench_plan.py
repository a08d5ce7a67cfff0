"""Times the planner beside TRL's, and measures how full the rows get.

    python -m tests.bench.bench_plan [--rows 1000000] [--skip-trl]

Prints Markdown tables. The lengths are lognormal with a mean of about 1,475 before they are clipped to
[1, C]. TRL's packing function gets the same lengths in one table and is timed up to where it has its rows,
without the copying of tokens. It runs once (it takes long); ours runs several times, the median is printed.
"""

import argparse
import statistics
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from packtrain.schemas.layout import LayoutPlan
from packtrain.stages.pack.plan_rows import plan_rows

from tests.bench.tables import print_table

PACKAGES = ("packtrain", "numpy", "trl")
MEAN, SIGMA = 1475.0, 1.0
CAPACITIES = (2048, 8192, 32768)
FILL_CAPACITIES = (2048, 4096, 8192, 16384, 32768, 65536, 131072)
REPEATS = 7


def lognormal(number: int, capacity: int, seed: int = 0) -> NDArray[np.int32]:
    """(N,) lengths in 1..capacity."""
    drawn = np.random.default_rng(seed).standard_normal(number, dtype=np.float32) * SIGMA
    lengths: NDArray[np.int32] = np.clip(np.exp(drawn + (np.log(MEAN) - SIGMA**2 / 2)), 1, capacity).astype(np.int32)
    return lengths


def median_seconds(work: Callable[[], object]) -> float:
    taken = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def table_of(lengths: NDArray[np.int32]) -> pa.Table:
    """A table of lists of these lengths, whose elements take no memory."""
    offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    return pa.table({"input_ids": pa.LargeListArray.from_arrays(offsets, pa.nulls(int(offsets[-1])))})


class _PlannedError(Exception):
    """TRL's function has its rows and is about to copy tokens."""


class _WithoutCopies:
    """`pyarrow.compute` as TRL's function sees it here: what would only copy tokens copies none.

    No document in these tables is empty or too long, so filtering and slicing them changes nothing.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(pc, name)

    def filter(self, values: pa.Array, mask: pa.Array) -> pa.Array:
        return values

    def list_slice(self, lists: pa.Array, start: int, stop: int) -> pa.Array:
        return lists

    def take(self, table: pa.Table, indices: list[int]) -> pa.Table:
        raise _PlannedError


def trl_plan(table: pa.Table, capacity: int) -> tuple[list[list[int]], float]:
    """The rows that TRL's function makes of a table, as document numbers, and its seconds up to there.

    It is stopped where it would start to copy: 1,000,000 documents times 1,475 tokens need more memory there
    than this benchmark may ask for, and copying is not what is compared.
    """
    from trl import data_utils

    data_utils.pc = _WithoutCopies()
    begin = time.perf_counter()
    try:
        data_utils._pack_bfd(table, capacity)
    except _PlannedError as stop:
        seconds = time.perf_counter() - begin
        frame = next(f for f, _ in traceback.walk_tb(stop.__traceback__) if "bins" in f.f_locals)
        return [row["ids"] for row in frame.f_locals["bins"]], seconds
    finally:
        data_utils.pc = pc
    raise RuntimeError("this version of TRL does not copy with pyarrow.compute.take; the benchmark must follow")


def same_rows(plan: LayoutPlan, rows: list[list[int]]) -> bool:
    """Whether these documents are in the same rows and the same order as in the plan."""
    ends = np.cumsum([0, *map(len, rows)])
    return np.array_equal(ends, plan.row_offsets) and np.array_equal(np.concatenate(rows), plan.order)


def times(number: int, with_trl: bool) -> None:
    rows = []
    for capacity in CAPACITIES:
        lengths = lognormal(number, capacity)
        plan = plan_rows(lengths, capacity)
        ours = median_seconds(lambda lengths=lengths, capacity=capacity: plan_rows(lengths, capacity))  # type: ignore[misc]
        cells = [f"{capacity:,}", f"{ours:.3f}", f"{plan.rows:,}"]
        if with_trl:
            table = table_of(lengths)
            theirs, seconds = trl_plan(table, capacity)
            equal = "yes" if same_rows(plan, theirs) else "NO"
            cells += [f"{seconds:.1f}", f"{seconds / ours:.0f} x", equal]
            del theirs
        rows.append(cells)
    header = ["C", "packtrain s", "rows"]
    header += ["TRL s", "ratio", "same rows"] if with_trl else []
    print_table(f"Planning {number:,} lognormal lengths", PACKAGES, header, rows)


def fill(number: int, with_trl: bool) -> None:
    rows = []
    for capacity in FILL_CAPACITIES:
        lengths = lognormal(number, capacity)
        certificate = plan_rows(lengths, capacity).certificate
        cells = [f"{capacity:,}", f"{certificate.bound:,}", f"{certificate.rows:,}"]
        rows_share = certificate.tokens / (certificate.rows * capacity)
        cells += [f"{rows_share:.3%}", f"{certificate.rows / certificate.bound - 1:.4%}"]
        cells += [f"{plan_rows(lengths, capacity, 'tight').rows:,}"]
        if with_trl:
            table = table_of(lengths)
            windows = sum(len(trl_plan(table.slice(at, 1000), capacity)[0]) for at in range(0, number, 1000))
            share = certificate.tokens / (windows * capacity)
            cells += [f"{windows:,}", f"{share:.3%}", f"{windows / certificate.bound - 1:.3%}"]
        rows.append(cells)
    header = ["C", "bound", "rows", "fill", "gap", "tight rows"]
    header += ["TRL rows", "TRL fill", "TRL gap"] if with_trl else []
    print_table(f"Fill at {number:,} sequences, and rows above the bound", PACKAGES, header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="sequences in the first table")
    parser.add_argument("--fill-rows", type=int, default=100_000, help="sequences in the second table")
    parser.add_argument("--skip-trl", action="store_true", help="ours alone: seconds instead of minutes")
    arguments = parser.parse_args()
    times(arguments.rows, not arguments.skip_trl)
    fill(arguments.fill_rows, not arguments.skip_trl)


if __name__ == "__main__":
    main()
