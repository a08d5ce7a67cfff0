"""A note of what a run selected and planned, so that a run that continues neither reads lengths nor plans again.

It is written once all windows are planned, and names the layouts by hash. A note that is damaged, made for something
else or without one of its files is not used: the run selects and plans again.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.fingerprint import fingerprint
from ...schemas.jsontext import decode_note
from ...schemas.ledger import Ledger
from ..encode.parts import PartPlace
from ..execute.checking import CheckAhead
from ..store.checksummed import seal, unseal
from ..store.local import LocalStore
from ..store.open import Store, StoredFile
from .decide import Repeats
from .planning import WindowPlan, layout_files, layout_name, pairs_layout, read_lengths
from .row_sizes import RowWeights
from .survey import Survey

NAME = "_run/layout/planned.json"
FLAGS = "_run/layout/packed.arrow"
"""Name of the file with one flag per document, which says whether it is packed."""
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class PlannedNote:
    """The content of the note."""

    key: str
    """See `key_of`."""
    ledger: Ledger
    """The ledger before packing."""
    tokens: int
    """See `Survey.tokens`, as the next two."""
    cuts: list[int]
    untrained: list[int]
    repeats: int | None
    """How many packed documents repeat an earlier one; None if they are not counted."""
    weighted: bool
    """Whether rows have `loss_weights`."""
    flags: StoredFile
    """The file `FLAGS`."""
    windows: dict[str, list[WindowPlan]]
    """The windows of each split, in order."""


@dataclass(frozen=True, slots=True, eq=False)
class NotedRowPlanner:
    """Gives the plans of an earlier process, whose layouts are in the output."""

    schema: pa.Schema
    token_bytes: int
    pairs: bool
    note: PlannedNote

    noted: ClassVar[bool] = True

    def windows(self, split: str) -> list[NDArray[np.int64]]:
        """See `RowPlanner`. The blocks are not known, and not needed."""
        return [np.zeros(0, np.int64) for _ in self.note.windows[split]]

    def plan(
        self, out: Store, split: str, number: int, first_shard: int, blocks: NDArray[np.int64], weights: RowWeights
    ) -> WindowPlan:
        """See `RowPlanner`."""
        plan = self.note.windows[split][number]
        if not self.pairs:
            weights.add(*read_lengths(out, plan.name))
        return plan


def key_of(plan: dict[str, Any], places: Sequence[PartPlace], sizes: Sequence[int], ledger: Ledger) -> str:
    """Identify everything that selecting and planning depend on.

    Args:
        plan: everything that the written bytes depend on.
        places, sizes: all encoded parts, and the number of documents in each.
        ledger: the ledger after encoding.
    """
    parts = [
        [place.part.name, place.part.hash, place.source, place.contaminated.hex(), size]
        for place, size in zip(places, sizes, strict=True)
    ]
    return fingerprint([_FORMAT, plan, parts, asdict(ledger)])


def put_planned(out: Store, key: str, survey: Survey, weighted: bool, windows: dict[str, list[WindowPlan]]) -> None:
    """Put the note."""
    assert survey.flags is not None
    note = PlannedNote(
        key,
        survey.ledger,
        survey.tokens,
        survey.cuts,
        np.concatenate(survey.untrained).tolist() if survey.untrained else [],
        survey.repeats.count() if survey.repeats is not None else None,
        weighted,
        survey.flags,
        windows,
    )
    out.replace_bytes(NAME, seal(msgspec.json.encode(note)))


def read_planned(
    out: LocalStore, key: str, splits: Sequence[str], documents: int, *, pairs: bool
) -> tuple[PlannedNote, Survey] | None:
    """Read the note, and the survey without what only planning needs; None if it cannot be used.

    Args:
        documents: of all parts.
        pairs: whether these are preference pairs.
    """
    try:
        note = decode_note(unseal(out.read(NAME)), PlannedNote)
    except ValueError:  # there is none, it is damaged, or another version wrote it
        return None
    if note.key != key or set(note.windows) != set(splits) or note.flags.name != FLAGS:
        return None
    files = {note.flags}
    for split, windows in note.windows.items():
        for number, plan in enumerate(windows):
            name = pairs_layout(split) if pairs else layout_name(split, number)
            if plan.name != name or {file.name for file in plan.files} != set(layout_files(name, pairs=pairs)):
                return None
            files.update(plan.files)
    with CheckAhead(out, files) as check:
        if check.damaged():
            return None
    survey = Survey(note.ledger, tuple(splits), 0, note.tokens, note.cuts, flags=note.flags)
    survey.untrained = [np.array(note.untrained, np.int64)]
    if note.repeats is not None:
        survey.repeats = Repeats.counted(documents, note.repeats)
    return note, survey
