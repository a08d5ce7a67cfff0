"""Check free disk space before the work starts, so that a run does not fail in the middle."""

from ...schemas.errors import StoreError
from ...schemas.names import PLAN
from ...schemas.units import size
from ..store.open import Store


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
