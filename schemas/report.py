"""The packing report: every number that its page, its terminal summary and its JSON file show.

Legend as in `rows.py`: `C` capacity of a row. Tokens, labels and rows are counts; shares are 0 to 1; times are seconds.
Every section has one plain `sentence`, and is None where it cannot be told, for which `Report.absent` says why.
"""

from dataclasses import dataclass, field

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many values fall into each of B bins, and what is known of all of them."""

    edges: list[float]
    """(B + 1,) rising; bin b holds edges[b] <= value < edges[b + 1], the last bin its upper edge, too."""
    counts: list[int]
    """(B,)"""
    count: int
    """Values in all."""
    total: float
    """Their sum."""
    quantiles: dict[str, float] = field(default_factory=dict)
    """`min`, `p5`, `p25`, `p50`, `p75`, `p95`, `p99`, `max`; empty where there is no value."""
    exact: bool = True
    """Whether the quantiles are of all values. Else they are read off the bins."""

    @property
    def mean(self) -> float:
        """0 where there is no value."""
        return self.total / self.count if self.count else 0.0


# 1. Which max_length?


@dataclass(frozen=True, slots=True)
class Shape:
    """The model whose work is estimated, as far as its cost goes."""

    name: str
    """For people, such as `7 billion parameters` or a folder's name."""
    parameters: float
    """That a token meets: of a mixture of experts, the active ones."""
    layers: int
    hidden: int


@dataclass(frozen=True, slots=True)
class Point:
    """What one strategy makes of the data at one length; see `stages.sweep.Outcome`, whose fields these are."""

    strategy: str
    """`padded`, `padding_free`, `wrapped`, `bfd` or `bfd_split`."""
    max_length: int
    documents: int
    documents_cut: int
    documents_lost: int
    pieces: int
    rows: int
    """Of `padded` and `padding_free`: batches."""
    bound: int
    tokens: int
    tokens_lost: int
    labels: int
    labels_lost: int
    slots: int
    """Room that they take: tokens and padding, and of packed strategies whole rows. The work below is of what
    variable-length attention computes: all of it where batches are padded, the tokens alone elsewhere."""
    squares: int
    fill: float
    gap: float
    attention_flops: float
    """Of one epoch, forward and backward, with `Choice.shape`."""
    flops: float
    """Of one epoch, all of it."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A length, and why."""

    max_length: int
    strategy: str
    sentence: str
    """Such as `4,096 keeps 99.6 % of the trained tokens; the next step up costs 31 % more attention for 0.2 %.`"""
    reasons: list[str]


@dataclass(frozen=True, slots=True)
class Choice:
    """A sweep over lengths and strategies."""

    sentence: str
    documents: int
    """That the sweep saw."""
    documents_in_all: int
    """More than `documents` where it saw a sample."""
    lengths: Histogram
    """Of the documents, before `max_length`."""
    batch: int
    """Documents of a padded batch."""
    shape: Shape
    points: list[Point]
    """Lengths rising, and of each the strategies in their order."""
    strategy: str
    """That the configuration asks for."""
    max_length: int
    """That the configuration asks for; it is always among the points."""
    overlong: str
    """What the configuration does with longer documents; `bfd` of the points does the same where it is `drop`, and
    truncates else."""
    advice: Advice | None
    """None where there is nothing to choose from."""


# 2. What happened to my data?


@dataclass(frozen=True, slots=True)
class Link:
    """So many go from one place to another."""

    source: str
    target: str
    count: int
    kind: str
    """Of the target: `kept`, `trained`, `untrained`, `lost` (dropped, truncated, rejected), `created`."""


@dataclass(frozen=True, slots=True)
class Reject:
    """A row or an example that could not be used. All its text is data's, and must be shown as text."""

    source: str
    file: str
    line: int | None
    """In its file, from 1."""
    reason: str
    detail: str
    path: str | None = None
    """Of the file on the machine of the run, absolute; None where it is none."""


@dataclass(frozen=True, slots=True)
class Fate:
    """The account of a source, or of all, as a flow."""

    source: str
    """`all` for the sum."""
    rows: list[Link]
    """From the source to used, rejected, filtered and blank rows, by reason."""
    examples: list[Link]
    """From made to packed, by split, and dropped, by reason."""
    tokens: list[Link]
    """From the source, and from what created tokens, over encoded, to packed, truncated and dropped, by reason; from
    packed to trained, lost at heads and not asked for. What flows into a place flows out of it."""


@dataclass(frozen=True, slots=True)
class Flow:
    """What became of everything."""

    sentence: str
    fates: list[Fate]
    """Of each source; where there are several, of all first."""
    reasons: dict[str, str]
    """For each reason word that occurs, what it means and what to do, in a sentence."""
    rejects: list[Reject]
    """Examples of each reason, not all."""
    rejected: dict[str, int]
    """All of them, by reason."""
    rejects_file: str | None
    """Where all of them are listed."""


# 3. What is being trained on?


@dataclass(frozen=True, slots=True)
class SourceShare:
    """What a source brings into the rows."""

    source: str
    examples: int
    """Packed, copies not counted."""
    tokens: int
    """Packed."""
    labels: int
    """Trained."""
    turns: int
    """Of the assistant, trained."""
    turns_without_end: int
    turns_cut: int
    straddles: int
    """Tokens on both sides of a boundary."""
    boundaries: int
    without_labels: int
    """Packed examples without a trained token."""
    untrained: int
    """Examples dropped, because nothing in them is trained, before or after cutting."""
    lengths: Histogram | None
    """Tokens of packed examples, before any cut."""
    prompts: Histogram | None
    """Tokens of them that the mask does not ask for."""
    completions: Histogram | None
    """Tokens of them that it asks for."""
    turns_each: Histogram | None
    """Trained turns of an example."""


@dataclass(frozen=True, slots=True)
class ShownPiece:
    """A stretch of text. It is data's, and must be shown as text."""

    text: str
    trained: bool
    tokens: int


@dataclass(frozen=True, slots=True)
class ShownDocument:
    """A document, or a piece of one, in a packed row."""

    id: str
    """Of the example; data's text."""
    source: str
    doc_id: int
    start: int
    """First token within the document."""
    tokens: int
    trained: int
    pieces: list[ShownPiece]
    shortened: bool
    """Whether text was left out."""


@dataclass(frozen=True, slots=True)
class ShownRow:
    """A packed row as text."""

    split: str
    row: int
    tokens: int
    capacity: int
    documents: list[ShownDocument]


@dataclass(frozen=True, slots=True)
class Training:
    """What the loss falls on."""

    sentence: str
    sources: list[SourceShare]
    rows: list[ShownRow]
    rows_absent: str | None = None
    """Why no row is shown."""


# 4. How good is the packing?


@dataclass(frozen=True, slots=True)
class SplitPacking:
    """One split."""

    split: str
    rows: int
    bound: int
    """No plan has fewer rows."""
    gap: float
    fill: float
    tokens: int
    labels: int
    pieces: int
    shards: int
    windows: int
    fills: Histogram
    """Tokens of each row, as a share of C."""
    documents: Histogram
    """Pieces of each row."""


@dataclass(frozen=True, slots=True)
class RankBalance:
    """How long ranks wait for the slowest of them, in model FLOPs: 1 is not at all."""

    ranks: int
    rows_each: int
    plain: float
    """Mean over steps of the slowest rank over the mean of the ranks, rows in their order."""
    balanced: float
    """The same as the loader deals and groups them."""
    worst: float
    """The worst step, balanced."""


@dataclass(frozen=True, slots=True)
class Saving:
    """The epoch with other ways to batch, of the same documents at the same length."""

    strategy: str
    slots: int
    """Tokens that a device computes, padding included."""
    steps: int
    """Of `Choice.batch` documents, or of as many packed rows: what fits into the same memory."""
    flops: float
    seconds: float
    """Estimated, with `Packing.device_flops`."""


@dataclass(frozen=True, slots=True)
class Packing:
    """How well documents are packed, and what that saves."""

    sentence: str
    max_length: int
    strategy: str
    splits: list[SplitPacking]
    world_size: int
    balance: list[RankBalance]
    """Of the train split."""
    order_before: float | None
    """Spearman's correlation of a row's place with its longest document, as the planner leaves rows."""
    order_after: float | None
    """The same as they are written."""
    savings: list[Saving]
    """Padded first, then padding-free, and this run last; empty where lengths are not known any more."""
    shape: Shape
    device_flops: float
    """Floating-point operations a second that are assumed."""


# 5. What batch size?


@dataclass(frozen=True, slots=True)
class Recipe:
    """A batch of unpacked examples, and how many packed rows hold as much."""

    examples: int
    """Of an optimizer step, unpacked."""
    tokens: float
    """Of it, on average."""
    labels: float
    rows: int
    """Packed rows with about as many tokens."""
    examples_then: float
    """That such rows hold, on average."""
    steps: int
    """Of an epoch."""


@dataclass(frozen=True, slots=True)
class BatchSize:
    """Tokens of an optimizer step."""

    sentence: str
    tokens_a_row: float
    labels_a_row: float
    examples_a_row: float
    tokens_an_example: float
    recipes: list[Recipe]


# 6. Can I trust it?


@dataclass(frozen=True, slots=True)
class Stage:
    """How long a stage took."""

    name: str
    seconds: float
    amount: float | None
    unit: str
    """Of the amount, such as `tokens`."""


@dataclass(frozen=True, slots=True)
class Input:
    """One file that was read."""

    source: str
    file: str
    bytes: int
    hash: str


@dataclass(frozen=True, slots=True)
class Trust:
    """What it was made from and with, and how to make it again."""

    sentence: str
    manifest: str | None
    plan: str | None
    tokenizer: str
    template: str | None
    engine: str
    versions: dict[str, str]
    stages: list[Stage]
    inputs: list[Input]
    """The first of them."""
    inputs_in_all: int
    bytes_in_all: int
    configuration: str
    """YAML that reproduces it."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What a plan from a sample of rows saw."""

    rows: int
    rows_estimated: int
    """Of all inputs, by their sizes."""
    exhaustive: bool
    """Whether the sample is all there is."""


@dataclass(frozen=True, slots=True)
class Report:
    """Everything the report shows."""

    format: int
    kind: str
    """`run` of a finished dataset, `plan` before packing."""
    name: str
    """Of the folder or the configuration."""
    made: str
    """When this report was, UTC, ISO 8601."""
    packtrain: str
    """Version."""
    sample: Sample | None
    choice: Choice | None = None
    flow: Flow | None = None
    training: Training | None = None
    packing: Packing | None = None
    batch: BatchSize | None = None
    trust: Trust | None = None
    absent: dict[str, str] = field(default_factory=dict)
    """Of each section that is None, by its name: why, and what would bring it."""
