"""What the driver makes in a thread while workers write the last shards: the note of the plan, and what the end of the
run says. What takes long to make is noted, too, for a run that continues.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ...schemas.config.hints import typed_keys
from ...schemas.fingerprint import fingerprint
from ..pack.driver import PackedRowPlanner, Selected
from .closing_advice import on_untrained
from .worker_count import count_workers
from .workspace import Workspace

if TYPE_CHECKING:
    from ..report.at_end import Known


@dataclass(frozen=True, slots=True, eq=False)
class Ahead:
    """What is made before the shards are finished."""

    untrained: str | None
    """See `closing_advice.on_untrained`."""
    known: "Known | None" = None
    """What the report needs; None if it makes that itself."""


class Meanwhile:
    """The thread. As a context manager, leaving it abandons what is not begun.

    Args:
        reports: whether this run writes the report.
    """

    def __init__(self, work: Workspace, selected: Selected, *, reports: bool) -> None:
        self._work = work
        self._selected = selected
        run = selected.config.run
        # A single worker is this process itself.
        self._reports = reports and not selected.rows.pairs and run.shard is None and count_workers(run) > 1
        self._pool = ThreadPoolExecutor(1, "packtrain-meanwhile")
        self._noted: Future[None] | None = None
        self._made: Future[Ahead] | None = None

    def __enter__(self) -> "Meanwhile":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def begin(self, note_plans: Callable[[], None]) -> None:
        """Start, once all is planned.

        Args:
            note_plans: puts the note of the plans.
        """
        self._noted = self._pool.submit(note_plans)
        # in this thread's context, which says how advice is to be worded
        self._made = self._pool.submit(copy_context().run, self._make)

    def result(self) -> Ahead:
        """Wait for the thread.

        Raises:
            StoreError: a note cannot be written.
            IntegrityError: an encoded part cannot be read.
        """
        assert self._noted is not None
        assert self._made is not None
        self._noted.result()
        return self._made.result()

    def _make(self) -> Ahead:
        selected, work = self._selected, self._work
        if not self._reports:
            return Ahead(self._untrained())
        from ..report.at_end import AheadNote, choice_options, early_choice, known_of, put_ahead, read_ahead
        from ..report.collect.lengths.packed import early_spreads, noted_spreads

        config, encoded = selected.config, selected.encoded
        options, typed = choice_options(config, work.base), typed_keys()
        how = [msgspec.to_builtins(options), None if typed is None else sorted(typed)]
        key = selected.key and fingerprint([selected.key, how])
        note = read_ahead(work.out, key) if key is not None else None
        if note is None:
            rows = selected.rows
            surveyor = rows.surveyor if isinstance(rows, PackedRowPlanner) else None
            choice = early_choice(config, encoded, work.scratch.root, options, surveyor)
            spreads = early_spreads(config, encoded, selected.packed_flags(work.out))
            noted = noted_spreads(spreads) if spreads is not None else None
            note = AheadNote(key or "", self._untrained(), choice, noted)
            if key is not None and choice is not None:
                put_ahead(work.out, note)
        return Ahead(note.untrained, known_of(note, encoded.spec.tokenizer_json))

    def _untrained(self) -> str | None:
        selected, encoded = self._selected, self._selected.encoded
        survey = selected.survey
        sizes = [record.examples for record in encoded.records]
        untrained = np.concatenate([np.zeros(0, np.int64), *survey.untrained])
        return on_untrained(
            selected.config, encoded.places, sizes, encoded.spec.tokenizer_json, untrained, survey.ledger.total()
        )
