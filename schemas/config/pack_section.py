"""The part of the configuration that says how examples share rows."""

from typing import Literal

from pydantic import Field

from ..alignment import Alignment, why_padded
from ..parallel import Parallel, ParallelLayout
from .section import ConfigModel


class ParallelConfig(ConfigModel):
    """How a trainer divides each row among devices (context parallelism), so that rows can be divided evenly."""

    cp: int = Field(ge=1, le=1024)
    """Devices that share each row: context parallel, or sequence parallel for `ulysses`."""
    tp: int = Field(default=1, ge=1, le=1024)
    """Tensor parallel devices that also divide the sequence (Megatron's sequence parallelism); else 1."""
    layout: ParallelLayout = "thd"
    """What a device holds. `thd`: two chunks of every document, one from each end (TransformerEngine, Megatron, zigzag
    ring attention). `ring`: one contiguous part of the row. `ulysses`: the same part, but all tokens of some heads
    during attention (DeepSpeed, accelerate)."""


class PackConfig(ConfigModel):
    """How examples share rows."""

    strategy: Literal["bfd", "tight", "bfd_split", "wrapped", "none"] = "bfd"
    """`bfd`: best-fit decreasing, documents stay whole. `tight`: the same, then a search of a second for fewer rows.
    `bfd_split`: longer ones are cut into pieces first. `wrapped`: concatenate and cut. `none`: one document per row.
    Leave it out for preference pairs, which are not packed."""
    shuffle: bool = True
    """Permute the rows by the seed, so that reading them in order is already shuffled."""
    window_tokens: int | None = Field(default=None, ge=1)
    """Tokens planned together. Null: 4 billion, one window for most datasets."""
    max_docs: int | None = Field(default=None, ge=1)
    """At most this many document pieces per row."""
    align: int = Field(default=1, ge=1)
    """Every piece is padded to a multiple of this; the padding is never trained."""
    parallel: ParallelConfig | None = None
    """Pads for context parallelism, such as `{cp: 2, layout: ring}`: every piece to a multiple of 2·cp for `thd`, or of
    lcm(2·cp, cp·tp) if tp is above 1; every row to a multiple of cp·tp for `ring` and `ulysses`. The padding is never
    trained. Rows then also have `seq_lengths_unpadded`."""

    @property
    def ranks(self) -> Parallel | None:
        """The devices that rows are padded for."""
        given = self.parallel
        return None if given is None else Parallel(given.cp, given.tp, given.layout)

    @property
    def alignment(self) -> Alignment:
        """The padding of pieces and rows."""
        return Alignment.of(self.align, self.ranks)

    @property
    def padded_for(self) -> str:
        """The keys that ask for padding."""
        return why_padded(self.align, self.ranks)
