"""Planning and layout of 100,000,000 sequences of synthetic lengths, in one process that holds one window.

    python tests/bench/bench_windows.py [--sequences 100000000] [--mean 100] [--window-tokens 1000000000]
        [--strategy bfd] [--max-length 4096] [--no-layout] [--no-whole]

Lengths are lognormal, drawn a part (10,000 sequences) at a time from a seed, again whenever a part is asked for. Tokens
are slices of one array of random ids: they are laid out by the run's own function, written as Arrow, hashed with BLAKE3
and thrown away; no run can lay out faster than this process hashes, so it is compared with that limit. A window's
layout file is written and removed. Prints two Markdown tables: what windows cost in rows, against one window of
everything and against the bound that no plan can beat; and time and memory, against what `run.memory` assumes.
"""

import argparse
import os
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from blake3 import blake3
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tests.bench.bench_memory import held
    from tests.bench.corpus import make_parser, print_header, print_table, work_folder
else:
    from bench_memory import held
    from corpus import make_parser, print_header, print_table, work_folder

from packtrain.pipeline.encode.parts import PartPlace
from packtrain.pipeline.inputs.blocks import FileLines
from packtrain.pipeline.pack.planning import plan_window
from packtrain.pipeline.pack.row_sizes import RowWeights
from packtrain.pipeline.pack.segments import CHUNK_TOKENS
from packtrain.pipeline.pack.windows import Window, compose
from packtrain.pipeline.run.memory import _PIECE_BYTES, PIECE_BYTES
from packtrain.pipeline.store.local import LocalStore
from packtrain.pipeline.store.open import StoredFile
from packtrain.schemas.alignment import Alignment
from packtrain.schemas.config.config import RunConfig
from packtrain.schemas.layout import LayoutPlan
from packtrain.schemas.rows import PACKED
from packtrain.stages.pack.bounds import least_rows
from packtrain.stages.pack.layout import PlannedPieces, lay_out
from packtrain.stages.pack.plan import plan_rows
from packtrain.stages.select.sections import Sections

PART = 10_000
LIMIT_LOST = 1e-4
INTERVAL = 0.05


class Peak:
    """The most that this process held for itself while it was watched, in bytes."""

    def __init__(self) -> None:
        self.base = self.most = held(os.getpid())[0]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(INTERVAL):
            self.most = max(self.most, held(os.getpid())[0])

    def stop(self) -> int:
        """End the watch."""
        self._stop.set()
        self._thread.join()
        return self.most


class Synthetic:
    """Parts of sequences that nobody stores."""

    def __init__(self, sequences: int, mean: float, longest: int) -> None:
        self.parts = -(-sequences // PART)
        self._sequences = sequences
        self._mu = float(np.log(mean) - 0.5)
        self._longest = longest
        self.pool = np.random.default_rng(0).integers(0, 150_000, longest + PART, dtype=np.int32)

    def lengths(self, part: int) -> NDArray[np.int32]:
        """Of one part's sequences."""
        count = min(PART, self._sequences - part * PART)
        drawn = np.random.default_rng([7, part]).lognormal(self._mu, 1.0, count)
        return np.clip(drawn, 1, self._longest).astype(np.int32)

    def window(self, parts: NDArray[np.int64], store: LocalStore) -> Window:
        """The sequences of some parts."""
        of_parts = [self.lengths(part) for part in parts.tolist()]
        starts = np.concatenate([[0], np.cumsum([len(one) for one in of_parts])])
        lengths = np.concatenate(of_parts)
        documents = np.arange(len(lengths)) - np.repeat(starts[:-1] - parts * PART, np.diff(starts))
        places = tuple(
            PartPlace(store, StoredFile(f"part-{part}", 0, "0" * 64), 0, FileLines(("",), (0,)))
            for part in parts.tolist()
        )
        nothing, ones = np.zeros(len(lengths), np.int32), np.ones(len(lengths), np.int32)
        sections = Sections(np.arange(len(lengths)), nothing.copy(), lengths)
        at = np.arange(len(starts))
        return Window(places, starts, at, starts, documents, lengths, nothing, nothing.copy(), ones, sections)

    def lay_out(self, plan: LayoutPlan, window: Window) -> Iterator[pa.RecordBatch]:
        """The rows of a plan, with made-up tokens, all of them asked for."""
        ends = np.cumsum(plan.lengths, dtype=np.int64)[plan.row_offsets[1:] - 1]
        first = 0
        while first < plan.rows:
            base = int(ends[first - 1]) if first else 0
            last = max(first + 1, int(np.searchsorted(ends, base + CHUNK_TOKENS, side="right")))
            here = slice(int(plan.row_offsets[first]), int(plan.row_offsets[last]))
            lengths = plan.lengths[here]
            documents = window.documents[plan.order[here]]
            begins = (documents % PART).tolist()
            tokens = [self.pool[a : a + n] for a, n in zip(begins, lengths.tolist(), strict=True)]
            starts = plan.starts[here].astype(np.int32)
            pieces = PlannedPieces(
                tokens=tokens,
                starts=starts,
                lengths=lengths,
                repeated=np.zeros_like(starts),
                doc_ids=documents,
                row_offsets=plan.row_offsets[first : last + 1] - here.start,
                run_ends=starts + lengths,
                run_supervised=np.ones(len(starts), np.bool_),
                run_offsets=np.arange(len(starts) + 1),
            )
            yield lay_out(pieces).batch
            first = last


class Hashing:
    """A file that hashes what is written and keeps nothing."""

    closed = False

    def __init__(self) -> None:
        self.hash = blake3()
        self.bytes = 0

    def write(self, data: bytes) -> int:
        """Hash it."""
        self.hash.update(data)
        self.bytes += len(data)
        return len(data)

    def flush(self) -> None:
        """Nothing waits."""

    def tell(self) -> int:
        """Bytes so far."""
        return self.bytes

    def close(self) -> None:
        """Nothing to close."""

    def readable(self) -> bool:
        """No."""
        return False

    def writable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """No."""
        return False


def parse() -> argparse.Namespace:
    """The options."""
    parser = make_parser(__doc__)
    parser.add_argument("--sequences", type=int, default=100_000_000)
    parser.add_argument("--mean", type=float, default=100.0, help="tokens of a sequence, about")
    parser.add_argument("--window-tokens", type=int, default=1_000_000_000)
    parser.add_argument("--max-length", type=int, default=4096)
    parser.add_argument("--strategy", default="bfd", choices=("bfd", "bfd_split", "wrapped", "none"))
    parser.add_argument("--no-layout", action="store_true", help="plan only")
    parser.add_argument("--no-whole", action="store_true", help="do not plan everything as one window, too")
    return parser.parse_args()


def main() -> None:
    """Runs the benchmark."""
    options = parse()
    config = RunConfig.model_validate(
        {
            "out": "unused",
            "tokenizer": {"path": "unused"},
            "sources": [{"name": "s", "format": "text", "path": "unused"}],
            "truncate": {"max_length": options.max_length},
            "pack": {"strategy": options.strategy, "window_tokens": options.window_tokens},
        }
    )
    cuts = options.strategy in ("bfd_split", "wrapped")
    data = Synthetic(options.sequences, options.mean, options.max_length * (4 if cuts else 1))
    seconds = {"survey": 0.0, "gather": 0.0, "plan": 0.0, "lay out": 0.0}
    rows = pieces = tokens = largest = windows = 0
    sink = Hashing()
    with work_folder(options.work) as work:
        store = LocalStore(work / "out")
        peak = Peak()
        began = time.perf_counter()
        totals = np.array([int(data.lengths(part).sum(dtype=np.int64)) for part in range(data.parts)], np.int64)
        composed = compose(totals, [0] * data.parts, options.window_tokens, config.seed)
        seconds["survey"] = time.perf_counter() - began
        weights = RowWeights(Alignment(), work)
        for number, parts in enumerate(composed):
            began = time.perf_counter()
            window = data.window(parts, store)
            seconds["gather"] += time.perf_counter() - began
            began = time.perf_counter()
            planned, plan = plan_window(store, "train", number, 0, config, window)
            weights.add(plan.lengths, plan.row_offsets)
            seconds["plan"] += time.perf_counter() - began
            windows, rows, pieces = windows + 1, rows + plan.rows, pieces + len(plan.order)
            largest, tokens = max(largest, len(plan.order)), tokens + int(plan.lengths.sum(dtype=np.int64))
            if not options.no_layout:
                began = time.perf_counter()
                with pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), PACKED) as writer:
                    for batch in data.lay_out(plan, window):
                        writer.write_batch(batch)
                seconds["lay out"] += time.perf_counter() - began
            for name in store.names("_run/layout"):
                store.remove(name)
            del window, plan, planned
        weights.put(store, "")
        most = peak.stop()
    print_header(f"{options.sequences:,} sequences, {tokens:,} tokens, {options.strategy}", ("packtrain", "numpy"))
    bound = least_rows(tokens, options.max_length)
    table = [["windows", f"{windows}", f"{rows:,}", f"{tokens / rows / options.max_length:.4%}", "", ""]]
    table[0][4:] = [f"{rows / bound - 1:.4%}", ""]
    if not options.no_whole:
        lengths = np.concatenate([data.lengths(part) for part in range(data.parts)])
        whole = plan_rows(lengths, options.max_length, options.strategy).certificate
        lost = tokens / whole.rows / options.max_length - tokens / rows / options.max_length
        table[0][5] = f"{lost:.4%} ({'yes' if lost < LIMIT_LOST else 'NO'})"
        table.append(
            ["all at once", "1", f"{whole.rows:,}", f"{whole.fill:.4%}", f"{whole.rows / whole.bound - 1:.4%}", "0"]
        )
        bound = whole.bound
    table.append(["bound", "", f"{bound:,}", f"{tokens / bound / options.max_length:.4%}", "0", ""])
    print_table(["plan", "windows", "rows", "fill", "above bound", f"fill lost (< {LIMIT_LOST:.2%})"], table)
    reckoned = PIECE_BYTES.get(options.strategy, _PIECE_BYTES)
    used = (most - peak.base) / largest
    began = time.perf_counter()
    probe = b"\0" * (1 << 28)
    blake3(probe)
    hashing = len(probe) / (time.perf_counter() - began)
    table = [[name, f"{value:.1f}", f"{tokens / value / 1e6:,.0f}" if value else ""] for name, value in seconds.items()]
    if seconds["lay out"]:
        table.append(["hashing alone", f"{sink.bytes / hashing:.1f}", f"{tokens / (sink.bytes / hashing) / 1e6:,.0f}"])
    print_table(["step", "s", "M tokens/s"], table)
    print_table(
        ["memory beyond the start, MiB", "largest window, pieces", "bytes a piece", f"<= {reckoned} (run.memory)"],
        [[f"{(most - peak.base) / 2**20:,.0f}", f"{largest:,}", f"{used:.0f}", "yes" if used <= reckoned else "NO"]],
    )


if __name__ == "__main__":
    main()
