"""How many workers fit into memory, and what a run needs of it.

Memory here is what processes hold for themselves. Files that are mapped (encoded parts, layouts, notes of the survey)
are the page cache's, which gives way whenever something else wants room.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import psutil

from ..schemas.config import RunConfig
from ..schemas.errors import ConfigError
from ..schemas.run_section import RunSection
from ..schemas.units import size
from .catalogue import PartPlace
from .inputs.blocks import Block
from .survey import Survey
from .windows import WINDOW_TOKENS, compose

WORKER_BYTES = 384 << 20
"""What a worker needs: a tokenizer, its caches, a block of many rows and what it becomes; or a shard that it writes."""
DRIVER_BYTES = 512 << 20
"""What the driver needs before it knows anything: the reference tokenizer, and a lot of documents that it looks at."""
PART_BYTES = 4 << 10
"""What the driver keeps of a part, from its block to its record."""
PIECE_BYTES = {"wrapped": 192}
"""What planning needs for each piece of a window, by strategy; measured by tests/bench/bench_windows.py."""
_PIECE_BYTES = 128
PIECES_FREE = 1_000_000
"""So many of them are in DRIVER_BYTES."""
PAIR_BYTES = 256
"""What preference pairs need, all of which are planned together."""
ENGINE_FACTOR = {"tokenizers": 200, "fastokens": 48}
"""Bytes that an engine needs for a byte of one long text, at two bytes a token; measured on texts of 20 to 60 MB."""
_ENGINE_FACTOR = 48
_GRAIN = 16 << 20
"""A driver's need below that is no reason to refuse what the stage before was told would do."""
FEW_ROWS = 4
"""A block of so many rows may be one long row and little else."""


@dataclass(frozen=True, slots=True)
class Need:
    """What a stage of a run holds at most, in bytes."""

    driver: int
    worker: int
    """Each of them."""
    why: str
    """What makes it large, and what would make it smaller."""

    @property
    def least(self) -> int:
        """With one worker."""
        return self.driver + self.worker


def encoding_need(blocks: Iterable[Block], engine: str) -> Need:
    """What encoding needs: as much as the longest row asks for."""
    count, longest = 0, 0
    for block in blocks:
        count += 1
        if block.lines <= FEW_ROWS and not block.too_long:
            longest = max(longest, block.end - block.start)
    factor = ENGINE_FACTOR.get(engine, _ENGINE_FACTOR)
    worker = max(WORKER_BYTES, WORKER_BYTES // 2 + factor * longest)
    why = ""
    if worker > WORKER_BYTES:
        why = (
            f"a row has about {size(longest)}, and {engine} needs {factor} times as much to encode it; a "
            "smaller max_row_bytes of its source rejects such rows, and encodes its rows anew"
        )
    return Need(DRIVER_BYTES + PART_BYTES * count, worker, why)


def packing_need(survey: Survey, places: Sequence[PartPlace], config: RunConfig, *, pairs: bool) -> Need:
    """What planning the largest window needs, beside workers that pack the one before.

    Args:
        places: of all parts.
        pairs: whether it is preference data, which has one window.
    """
    most = 0
    sources = [place.source for place in places]
    limit, strategy = config.pack.window_tokens or WINDOW_TOKENS, config.pack.strategy
    for split, totals in survey.totals.items():
        windows = [np.arange(survey.parts)] if pairs else compose(totals, sources, limit, config.seed)
        for parts in windows:
            pieces = int(survey.sections[split][parts].sum())
            if strategy in ("bfd_split", "wrapped"):
                pieces += int(totals[parts].sum()) // config.truncate.max_length  # at most as many cuts
            most = max(most, pieces)
    each = PAIR_BYTES if pairs else PIECE_BYTES.get(strategy, _PIECE_BYTES)
    flags = sum(map(len, survey.packed)) // 8
    driver = DRIVER_BYTES + PART_BYTES * survey.parts + flags + each * max(0, most - PIECES_FREE)
    if pairs:
        why = f"{most:,} pairs are put into one order"
    else:
        why = (
            f"the largest window has {most:,} pieces to plan together; a smaller pack.window_tokens needs less, but "
            "packs other rows, so it needs another `out`"
        )
    return Need(driver, WORKER_BYTES, why)


def count_workers(section: RunSection, need: Need | None = None) -> int:
    """How many workers run: as many as asked for and as memory allows.

    Without `run.memory` that is half of the machine's; one worker may then have all of it, where it needs that.

    Raises:
        ConfigError: not even one fits; says what would do.
    """
    need = need or Need(DRIVER_BYTES, WORKER_BYTES, "")
    total = psutil.virtual_memory().total
    memory = section.memory or total // 2
    driver = need.driver // _GRAIN * _GRAIN
    fit = (memory - driver) // need.worker
    if fit < 1 and (section.memory is not None or need.least > total):
        enough = -(-(driver + need.worker) // 2**20)
        given = f"run.memory ({size(memory)})" if section.memory else f"this machine ({size(total)})"
        raise ConfigError(
            f"{given} is too small for the driver and one worker; "
            f"{'give it at least' if section.memory else 'the run needs at least'} {enough:,} MiB"
            f"{f': {need.why}' if need.why else ''}"
        )
    return max(1, min(section.workers or _cores(), int(fit)))


def _cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
