"""Room on the disks that a run writes to: asked for before the work, not found missing in the middle of it."""

from ..schemas.errors import StoreError
from ..schemas.units import size
from .outfolder import PLAN
from .stores import Store


def require_room(needed: int, what: str, *stores: Store) -> None:
    """Refuse to begin what a disk has no room for.

    Args:
        needed: bytes, on each of the stores.
        what: for people, what is to be written.

    Raises:
        StoreError: names the disk, and how much is missing.
    """
    for store in stores:
        free = store.free_bytes()
        if free is not None and needed > free:
            raise StoreError(
                f"there is no room for {what}: about {size(needed)} are needed, but the disk that "
                f"holds {store.url} has {size(free)} free; free some room, or point --out and "
                "`cache` elsewhere"
            )


def shards_written(out: Store) -> int:
    """Bytes of shards that an interrupted run has put already. A folder of something else is not looked through."""
    if not out.exists(PLAN):
        return 0
    sizes = out.sizes()
    return sum(sizes[name] for name in sizes if "shards/" in name and not name.startswith("_run/"))
