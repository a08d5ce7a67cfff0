"""The part of the configuration about rows: how examples share them, and how devices divide them."""

from math import lcm
from typing import Literal

from pydantic import Field

from ..layout import Alignment, ParallelLayout
from ..tables.strategies import CUTTING, STRATEGIES, Strategy, StrategyName
from .section import ConfigModel, describe_choices


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

    @property
    def document_multiple(self) -> int:
        """Every document piece is padded to a multiple of this; 1 pads none.

        Megatron-Bridge's rule for `thd`: lcm(2·CP, CP·TP). With CP = 1 a document is not divided into chunks, and the
        multiple is TP.
        """
        if self.layout != "thd":
            return 1
        chunks = 2 * self.cp if self.cp > 1 else 1
        return lcm(chunks, self.cp * self.tp)


_ROW_LENGTH = (
    "Capacity of a packed row, in tokens, at least `truncate.max_length`: documents of up to 4,096 tokens in rows of "
    f"32,768, say. {' and '.join(f'`{name}`' for name in CUTTING)} cut documents at this length, whatever `max_length` "
    "says. Null: `truncate.max_length`."
)
_STRATEGY = (
    describe_choices({strategy.name: strategy.sentence for strategy in STRATEGIES.values()})
    + " Preference pairs stay whole: both sides stand in one row. With `none`, each pair is a row of prompt, chosen "
    "and rejected ids, for TRL."
)


class PackConfig(ConfigModel):
    """How examples share rows."""

    row_length: int | None = Field(default=None, ge=2, le=2**24, description=_ROW_LENGTH)
    strategy: StrategyName = Field(default="bfd", description=_STRATEGY)
    shuffle: bool = True
    """Permute the rows by the seed, so that reading them in order is already shuffled."""
    window_tokens: int | None = Field(default=None, ge=1)
    """Tokens planned together. Null: 4 billion, one window for most datasets."""
    share: Literal["none", "row", "group"] = "none"
    """`row`: examples that were made of one source row and begin with the same tokens store and compute these once: the
    turns of a chat with `expand: per_turn`, the solutions of a problem; of a preference pair, the prompt. `group`:
    the same for examples of a source that have one `group`, in whichever rows and files they are, such as rollouts of
    one prompt. Such rows have columns of their own, and only packtrain's attention can train them. For `bfd` and
    `tight`."""
    max_docs: int | None = Field(default=None, ge=1)
    """At most this many document pieces per row; a preference pair is two."""
    align: int = Field(default=1, ge=1)
    """Every piece is padded to a multiple of this; the padding is never trained."""
    parallel: ParallelConfig | None = None
    """Pads for context parallelism, such as `{cp: 2, layout: ring}`: every piece to a multiple of 2·cp for `thd`, or of
    lcm(2·cp, cp·tp) if tp is above 1; every row to a multiple of cp·tp for `ring` and `ulysses`. The padding is never
    trained. Rows then also have `seq_lengths_unpadded`."""

    @property
    def does(self) -> Strategy:
        """What the strategy does with documents."""
        return STRATEGIES[self.strategy]

    @property
    def cuts_documents(self) -> bool:
        """Whether the strategy cuts documents where rows end, so that no other limit of length applies to them."""
        return self.does.cuts_documents

    @property
    def shares(self) -> bool:
        """Whether documents share tokens."""
        return self.share != "none"

    @property
    def can_share(self) -> bool:
        """Whether documents could share tokens, by the keys beside `share`. Without it, `RunConfig` refuses `share`."""
        return self.does.keeps_groups and self.parallel is None and self.max_docs is None

    @property
    def alignment(self) -> Alignment:
        """The least multiples that satisfy `align` and `parallel` both."""
        parallel = self.parallel
        if parallel is None:
            return Alignment(self.align, self.align)
        document = lcm(self.align, parallel.document_multiple)
        # With `thd`, documents are divided; with the other layouts, whole rows are.
        row = document if parallel.layout == "thd" else lcm(document, parallel.cp * parallel.tp)
        return Alignment(document, row, unpadded=True)

    @property
    def padded_for(self) -> str:
        """The keys that ask for padding, such as `pack.parallel (cp 2, layout thd)`; "" if none does."""
        keys = ["pack.align"] if self.align > 1 else []
        parallel = self.parallel
        if parallel is not None:
            tp = f", tp {parallel.tp}" if parallel.tp > 1 else ""
            keys.append(f"pack.parallel (cp {parallel.cp}{tp}, layout {parallel.layout})")
        return " and ".join(keys)
