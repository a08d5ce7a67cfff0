"""Counts what the sampling proof finds in a block."""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from ...stages.arrays import view
from ...stages.mask.sampling import Outcome, prove
from ...stages.tokenize.prompts_alone import PromptAlone
from .parts import PartRecord

if TYPE_CHECKING:
    from ...schemas.config.config import MaskConfig


@dataclass(slots=True)
class SampledTurns:
    """The outcomes of a block's turns, apart for turns of completions and for those before."""

    completion: Counter[str] = field(default_factory=Counter)
    earlier: Counter[str] = field(default_factory=Counter)
    first: dict[tuple[str, bool], tuple[int, int, int]] = field(default_factory=dict)
    """(outcome, whether before the completion) → (line, example of the row or -1, message) of the first such turn, for
    outcomes other than `exact`."""

    def add(self, batch: pa.RecordBatch, alone: Iterable[PromptAlone], stops: Collection[int]) -> None:
        """Prove the turns of a batch; see `prove`."""
        lines, subs = view(batch.column("line")), view(batch.column("sub"))
        for document, message, earlier, outcome in prove(batch, alone, stops):
            (self.earlier if earlier else self.completion)[outcome.value] += 1
            if outcome is not Outcome.EXACT:
                self.first.setdefault((outcome.value, earlier), (int(lines[document]), int(subs[document]), message))

    @property
    def rows(self) -> list[tuple[int, int, int, str, bool]]:
        """(line, example of the row or -1, message, outcome, whether before the completion) of each in `first`."""
        return sorted((*place, *what) for what, place in self.first.items())


def sampled_turns(record: PartRecord, mask: "MaskConfig") -> Counter[str]:
    """The outcomes of the turns that a mask's policy trains. `all` trains headers too, so nothing is compared.

    With `stop: auto`, a turn is exact if its stop token stands in the next header.
    """
    found = Counter[str]()
    if mask.policy != "all":
        found.update(record.sampled)
    if mask.policy == "assistant":
        found.update(record.sampled_earlier)
    if mask.stop == "auto" and mask.train_end and found[Outcome.NEXT_HEADER]:
        found[Outcome.EXACT] += found.pop(Outcome.NEXT_HEADER)
    return found
