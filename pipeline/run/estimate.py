"""An estimate of what a run has to do, before it starts."""

from dataclasses import dataclass

from ..encode.cache_misses import why_missing
from ..encode.prepared import Prepared
from ..pack.window_plan import TOKEN_BYTES
from .disk_space import shards_written
from .memory import encoding_need
from .worker_count import Need
from .workspace import Workspace


@dataclass(frozen=True, slots=True)
class RunEstimate:
    """What a run has to encode, and how much disk space and memory it needs."""

    blocks: int
    cached: int
    """Blocks whose encoded parts are in the cache."""
    missing_bytes: int
    """Input bytes that must be encoded."""
    why_missing: tuple[str, ...]
    """One sentence per source that says why the cached parts of the same rows cannot be used."""
    tokens: int
    """Estimated tokens of all blocks, cached ones included."""
    room_needed: int
    """Bytes of disk space that the run needs."""
    room_free: int
    """Bytes free on the fuller of the disks."""
    memory: Need | None
    """The memory that encoding needs; None if there is nothing to encode."""


def estimate_run(prepared: Prepared, work: Workspace) -> RunEstimate:
    """Find the missing parts, and estimate tokens and space from the blocks' bytes."""
    tasks = prepared.tasks(work.cache)
    missing = work.parts.missing(tasks)
    missing_bytes = sum(task.block.end - task.block.start for task in missing)
    tokens = int(sum(task.block.end - task.block.start for task in tasks) * prepared.tokens_per_byte)
    new_tokens = int(missing_bytes * prepared.tokens_per_byte)
    rooms = [room for one in (work.out, work.scratch) if (room := one.free_bytes()) is not None]
    return RunEstimate(
        blocks=len(tasks),
        cached=len(tasks) - len(missing),
        missing_bytes=missing_bytes,
        why_missing=tuple(why_missing(work.cache, prepared.joined, tasks, missing)),
        tokens=tokens,
        # The factor 1.2 allows for a sample that is off by a fifth. Parts hold 4 bytes per token; shards hold all
        # columns.
        room_needed=max(0, int(1.2 * (new_tokens * 4 + tokens * (TOKEN_BYTES + 1))) - shards_written(work.out)),
        room_free=min(rooms),
        memory=encoding_need(missing, prepared.spec.engine) if missing else None,
    )
