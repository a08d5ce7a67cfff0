"""The strategies of packing: how documents are put into rows.

Whoever checks, describes or compares strategies takes what they do from here. What places the documents of each is in
`stages/pack/plan_rows.py`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class Strategy:
    """What a strategy does with documents."""

    name: str
    sentence: str
    """How it fills rows, for the configuration's key."""
    cuts_documents: bool = False
    """Whether it cuts documents where rows end, so that no other limit of length applies to them."""
    joins_documents: bool = False
    """Whether it lays documents end to end and cuts anywhere. Then every row but the last is full, so no plan has fewer
    rows; and neither the number of pieces in a row nor their padding can be chosen."""
    is_packing: bool = True
    """Whether a row may hold several documents."""
    fuller: str | None = None
    """The strategy to advise where this one leaves much of its rows empty."""

    @property
    def keeps_groups(self) -> bool:
        """Whether several documents can be put into one row together, whole."""
        return self.is_packing and not self.cuts_documents


STRATEGIES = {
    strategy.name: strategy
    for strategy in (
        Strategy("bfd", "best-fit decreasing, documents stay whole", fuller="tight"),
        Strategy("tight", "the same in fewer rows, where they can be filled better"),
        Strategy("bfd_split", "longer ones are cut into pieces first", cuts_documents=True),
        Strategy("wrapped", "concatenate and cut", cuts_documents=True, joins_documents=True),
        Strategy("none", "one document per row", is_packing=False, fuller="bfd"),
    )
}
"""Every strategy by its name, in the order in which they are explained."""

CUTTING = tuple(name for name, strategy in STRATEGIES.items() if strategy.cuts_documents)
"""Strategies that cut documents where rows end."""

if TYPE_CHECKING:
    StrategyName: TypeAlias = str
else:
    StrategyName = Literal[tuple(STRATEGIES)]
"""The name of a strategy. To pydantic, one of the table."""
