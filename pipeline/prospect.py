"""What a run would do, before it does it."""

from dataclasses import dataclass

from .resolve import EngineChoice
from .sources import InputFile
from .workers import Need


@dataclass(frozen=True, slots=True)
class Prospect:
    """What a run would do: for a dry run, and for the estimate of the room it needs."""

    files: list[InputFile]
    formats: dict[str, str]
    """Of each source, as it is or as it was found."""
    pairs: bool
    """Whether all sources are preference data."""
    blocks: int
    cached: int
    """Blocks whose encoded parts the cache holds."""
    missing_bytes: int
    engine: EngineChoice
    estimated_tokens: int
    room_needed: int
    """Bytes."""
    room_free: int
    memory: Need | None = None
    """What encoding needs; None where nothing is to be encoded."""
