"""Context and tensor parallelism that rows are made for: how many ranks share a row, and how it is cut."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import lcm
from typing import Any, Literal, TypeAlias, get_args

ParallelLayout: TypeAlias = Literal["thd", "ring", "ulysses"]
"""How the ranks of a context-parallel group divide a row.

`thd`: each document into 2·CP equal chunks, of which rank r takes chunks r and 2·CP - 1 - r (TransformerEngine,
Megatron). `ring`: the row into CP equal, contiguous parts. `ulysses`: the row as `ring`, and heads during attention.
"""


@dataclass(frozen=True, slots=True)
class Parallel:
    """The ranks that share a row."""

    cp: int
    """Ranks of context parallelism, 1 or more; for `ulysses`, of sequence parallelism."""
    tp: int = 1
    """Ranks of tensor parallelism whose sequence parallelism divides a rank's part further, 1 or more."""
    layout: ParallelLayout = "thd"

    def __post_init__(self) -> None:
        """Raises ValueError: a field has another type, or is out of range."""
        for name in ("cp", "tp"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value < 2**16:
                raise ValueError(f"{name} is {value!r}, not a number of ranks")
        if self.layout not in get_args(ParallelLayout):
            raise ValueError(f"layout is {self.layout!r}, not one of {', '.join(get_args(ParallelLayout))}")

    @property
    def document_multiple(self) -> int:
        """Every document piece is padded to a multiple of this; 1 pads none.

        Megatron-Bridge's rule for `thd`: lcm(2·CP, CP·TP). Without context parallelism no document is cut.
        """
        if self.layout != "thd":
            return 1
        return lcm(2 * self.cp if self.cp > 1 else 1, self.cp * self.tp)

    @property
    def row_multiple(self) -> int:
        """Every row is padded to a multiple of this, behind its last piece. A multiple of `document_multiple`."""
        return self.document_multiple if self.layout == "thd" else self.cp * self.tp

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Parallel":
        """From plain data, such as a manifest's.

        Raises:
            ValueError, TypeError, KeyError: it has another shape.
        """
        return cls(data["cp"], data["tp"], data["layout"])
