"""An estimate of what a run has to do, before it starts, and whether the disks have room for it."""

from dataclasses import dataclass

from ...schemas.errors import StoreError
from ...schemas.names import PLAN
from ...schemas.units import size
from ..encode.cache_misses import why_missing
from ..encode.prepared import Prepared
from ..pack.window_plan import TOKEN_BYTES
from ..store.open import Store
from .workers import Need, encoding_need
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
    tokens = int(sum(task.block.end - task.block.start for task in tasks) * prepared.look.tokens_per_byte)
    new_tokens = int(missing_bytes * prepared.look.tokens_per_byte)
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


def require_room(needed: int, what: str, *stores: Store) -> None:
    """Refuse to start if a disk has too little free space.

    Args:
        needed: bytes needed on each store.
        what: what will be written, for the message.

    Raises:
        StoreError: there is too little; the message names the disk, the space needed and the free space.
    """
    for store in stores:
        free = store.free_bytes()
        if free is not None and needed > free:
            raise StoreError(
                f"not enough disk space for {what}: about {size(needed)} are needed, but the disk of "
                f"{store.url} has {size(free)} free; free some space, or point --out and `cache` elsewhere"
            )


def shards_written(out: Store) -> int:
    """Bytes of shards that an interrupted run has already written; 0 for a folder without a run's plan."""
    if not out.exists(PLAN):
        return 0
    sizes = out.sizes()
    return sum(sizes[name] for name in sizes if "shards/" in name and not name.startswith("_run/"))
