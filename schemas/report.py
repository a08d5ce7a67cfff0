"""The packing report: every number that its page, its terminal summary and its JSON file show.

Tokens, labels and rows are counts; shares are 0 to 1. A section is None if it is not available; `Report.absent` says
why. Texts in these structs come from the data and must be escaped.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from .dataset.ledger import Ledger, SourceLedger
from .models.model_facts import Limit
from .notebook import Shown, Table
from .units import plural, share


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of numbers in B bins."""

    edges: list[float]
    """(B + 1,) ascending; bin b has edges[b] <= number < edges[b + 1], and the last bin also its upper edge."""
    counts: list[int]
    """(B,) how many numbers are in each bin."""


@dataclass(frozen=True, slots=True)
class Point:
    """What one strategy makes of the data at one length; see `stages.forecast.estimate`."""

    strategy: str
    max_length: int
    """The most tokens of a document."""
    row_length: int
    """Capacity of the rows, in tokens."""
    documents: int
    """Documents packed, whole or in part."""
    documents_cut: int
    documents_lost: int
    """Documents left out because nothing trained remains, or because they are too long and not cut."""
    rows: int
    bound: int
    """Lower bound on the rows of any plan of the same pieces."""
    tokens: int
    """Packed tokens, without padding."""
    tokens_lost: int
    labels: int
    labels_lost: int
    fill: float
    """Share of the rows that holds tokens."""


@dataclass(frozen=True, slots=True)
class Advice:
    """The advised length."""

    max_length: int
    reached: bool
    """Whether the length keeps enough; else it is the best of those compared."""
    bounded: bool
    """Whether longer lengths were compared that the model is not made for."""
    shorter: int
    """The next shorter length that was compared, and may be advised; 0 if there is none."""
    longer: int
    """Documents longer than `shorter`, if that would not keep enough: where they are few, they alone decide. Else 0."""
    instead_of: int
    """The shortest length that keeps enough, if a longer one is advised because its rows are fuller; else 0."""
    saves: float
    """The share of the space that these fuller rows save."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Which max_length? A comparison of lengths, over the documents of the train split."""

    documents: int
    """Documents that were read."""
    documents_in_all: int
    """All documents; more than `documents` if a sample was read."""
    lengths: Histogram
    """Lengths of the documents, before `max_length`."""
    longest: list[tuple[str, int]]
    """(id, tokens) of the longest documents, the longest first; empty if their ids are unknown."""
    points: list[Point]
    """By ascending length. See `docs/report.md`."""
    strategy: str
    """The configured strategy, which all points have."""
    max_length: int
    """The configured length, which is always among the points."""
    key: str
    """What is compared: `max_length`, or `row_length` if the strategy cuts documents at rows of their own length."""
    row_length: int
    """Capacity of the rows at the configured length."""
    longer_rows: Point | None
    """Longer rows of the same documents, if they would be fuller; else None."""
    overlong: str
    """What the configuration does with longer documents. The points do the same."""
    cuts: bool
    """Whether longer documents are cut into pieces, of which none is lost."""
    texts: bool
    """Whether nearly all tokens are those of plain texts, which can be cut anywhere, and not of conversations."""
    advice: Advice | None
    """None if there is nothing to choose."""
    limit: Limit | None
    """The longest document that the model is made for; None if unknown."""
    over_limit: int | None
    """Documents longer than `limit`, if the configured length is above it; else None."""
    other: Point | None
    """Another strategy at the configured length, if it would save rows; else None."""
    other_saves: float
    """The share of the rows that it would save, both in one window."""
    sharing: "Sharing | None" = None
    """What documents share; None if no two were made of one source row, or the configuration does not let them share.
    """


@dataclass(frozen=True, slots=True)
class Sharing:
    """What `pack.share: row` stores of the documents that are packed, each counted once."""

    is_used: bool
    """Whether this dataset shares tokens."""
    tokens: int
    """Tokens of the documents."""
    stored: int
    """Tokens that rows store if documents share, estimated from some of them."""
    row_length: int
    """Capacity of a row."""
    longer_row_length: int
    """Twice the longest document that the limits allow, or `row_length` if that is more."""
    stored_in_longer_rows: int
    """As `stored`, in rows of that length, where fewer groups of documents are cut."""


COUNTED_ONLY = "more"
"""The reason of a line of rejects.jsonl that counts further rows, which are not listed."""


class Reject(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of rejects.jsonl: a row or an example that could not be used."""

    source: str
    file: str
    line: int
    """Line in its file, from 1."""
    reason: str
    detail: str
    example: int = -1
    """Which example of its row; -1 for the whole row."""
    remedy: str = ""
    """What the reason means, and what to do."""
    excerpt: str = ""
    """The row's keys and the beginnings of its values, or the beginning of its line; empty if it cannot be shown."""


@dataclass(frozen=True, slots=True)
class Supervision:
    """What became of the supervised tokens: those that the mask wants trained."""

    supervised: int
    """Those of all examples before anything was cut or dropped, and of further copies."""
    trained: int
    lost: dict[str, int]
    """Those that are not trained, most frequent reason first: `max_length` if they are truncated, `first_token` if they
    come first in a piece, else why their example or piece was dropped."""


@dataclass(frozen=True, slots=True)
class Flow:
    """What happened to my data? The ledger, and some rejected rows."""

    supervision: Supervision
    """Over all sources."""

    sources: dict[str, SourceLedger]
    """The ledger of each source."""
    rejects: list[Reject]
    """Some rejects of each reason."""
    rejects_file: str | None
    """The file that lists all rejects."""


@dataclass(frozen=True, slots=True)
class ContaminationCount:
    """Examples of a source that share text with rows of an evaluation file."""

    source: str
    evaluation: str
    """Name of the evaluation file."""
    examples: int
    most: int
    """Those that have at least 80 % of an evaluation text's n-grams."""
    rows: int
    """Evaluation rows of which something was found."""


class Hit(msgspec.Struct, frozen=True):
    """A line of contamination.jsonl: an example and an evaluation row that share text."""

    id: str
    """The example's id, as in documents.parquet."""
    source: str
    evaluation: str
    """Name of the evaluation file."""
    evaluation_line: int
    """The row's line in it, from 1."""
    kind: str
    """`prompt` or `answer` of the evaluation row."""
    share: float
    """The share of the evaluation text's n-grams that the example has; 1 if all of it is there."""
    shared: str
    """The longest run of words that both share, without case and punctuation; at most 60 words."""


@dataclass(frozen=True, slots=True, repr=False)
class Contamination(Shown):
    """Is the evaluation data in it?"""

    sentence: str
    action: str
    """`report` or `drop`; "" if nothing is packed."""
    examples: int
    """Examples that share text with any evaluation row."""
    counts: list[ContaminationCount]
    shown: list[Hit]
    """Some hits, the strongest first."""

    def summary(self) -> str:
        return self.sentence

    def tables(self) -> Iterator[Table]:
        counts = ((count.source, count.evaluation, count.examples, count.most, count.rows) for count in self.counts)
        head = ("source", "evaluation file", "examples", "nearly all", "evaluation rows")
        yield Table("Examples that share text", head, counts)
        hits = (
            (hit.id, hit.evaluation, hit.evaluation_line, hit.kind, share(hit.share), hit.shared) for hit in self.shown
        )
        yield Table("The strongest", ("example", "evaluation file", "line", "of", "share", "shared text"), hits)


@dataclass(frozen=True, slots=True)
class ShownPiece:
    """A stretch of text."""

    text: str
    weight: float
    """The loss weight of its tokens; 0 if it is not trained."""
    tokens: int


@dataclass(frozen=True, slots=True)
class ShownDocument:
    """A document, or a piece of one, in a packed row; or a prompt or a completion of a preference pair."""

    id: str
    source: str
    start: int
    """First token within the document."""
    tokens: int
    trained: int
    pieces: list[ShownPiece]
    shortened: bool
    """Whether text was left out."""
    continues: str = ""
    """The id of the document whose first tokens it shares (`pack.share`), or ""."""
    shared: int = 0
    """How many tokens of that document come before these."""

    @property
    def origin(self) -> str:
        """Where in its document it begins, in words; "" at its beginning."""
        if self.continues:
            return f"continues {self.continues} after {plural(self.shared, 'token')}"
        return f"from its token {self.start:,} on" if self.start else ""

    @property
    def text(self) -> str:
        """Its text; what is trained is between ⟦ and ⟧."""
        return "".join(f"⟦{piece.text}⟧" if piece.weight else piece.text for piece in self.pieces)


@dataclass(frozen=True, slots=True, repr=False)
class ShownRow(Shown):
    """A packed row as text, or a preference pair: prompt, chosen and rejected completion."""

    split: str
    row: int
    tokens: int
    capacity: int
    """Tokens that the row can hold; for a pair, its own tokens."""
    documents: list[ShownDocument]
    pair: bool = False
    """Whether it is a preference pair."""

    @property
    def trained(self) -> int:
        """Trained tokens."""
        return sum(document.trained for document in self.documents)

    def summary(self) -> str:
        place = f"row {self.row} of {self.split}"
        if self.pair:
            return f"{place}: a preference pair, {self.tokens:,} tokens, {self.trained:,} trained"
        documents = plural(len(self.documents), "document")
        fill = share(self.tokens / self.capacity, fixed=True)
        return f"{place}: {documents}, {self.tokens:,} of {self.capacity:,} tokens ({fill}), {self.trained:,} trained"

    def tables(self) -> Iterator[Table]:
        head = ("document", "source", "first token", "tokens", "trained", "text, ⟦trained⟧")
        rows = (
            (document.id, document.source, document.start, document.tokens, document.trained, document.text)
            for document in self.documents
        )
        yield Table("", head, rows)


@dataclass(frozen=True, slots=True)
class Training:
    """What is being trained on? The numbers of each source are in its ledger."""

    policies: dict[str, str]
    """The mask policy of each source."""
    rows: list[ShownRow]
    rows_absent: str | None
    """Why no row is shown."""


@dataclass(frozen=True, slots=True)
class SplitFigures:
    """How one split is packed."""

    split: str
    rows: int
    bound: int
    """Lower bound on the rows of any plan; 0 if unknown, or for pairs."""
    fill: float
    """See `schemas.layout.fill_of`: padding is not counted."""
    tokens: int
    """Tokens with padding."""
    labels: int
    pieces: int
    padding: int
    """Tokens that are padding for `pack.align` and `pack.parallel`."""
    fills: Histogram | None = None
    """Tokens of each row as a share of its capacity, with padding; None before packing."""


@dataclass(frozen=True, slots=True)
class Packing:
    """How good is the packing?"""

    row_length: int
    """Capacity of a row, in tokens."""
    strategy: str
    splits: list[SplitFigures]
    padded_for: str
    """The keys that ask for padding; empty if nothing is padded."""


@dataclass(frozen=True, slots=True)
class Made:
    """How to make it again."""

    manifest: str | None
    """Hash of the manifest; None before packing."""
    configuration: str
    """YAML that reproduces the dataset; empty if the folder no longer says what it was packed from."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What a plan from a sample of rows saw."""

    rows: int
    rows_in_all: int


@dataclass(frozen=True, slots=True, repr=False)
class Report(Shown):
    """Everything that the report shows."""

    kind: str
    """`run` for a finished dataset, `plan` before packing."""
    name: str
    """Name of the folder or the configuration."""
    made_at: str
    """When this report was made, UTC, ISO 8601."""
    packtrain: str
    """Version of packtrain."""
    sample: Sample | None
    choice: Choice | None = None
    flow: Flow | None = None
    contamination: Contamination | None = None
    """None also if nothing was compared; then `absent` has no reason."""
    training: Training | None = None
    packing: Packing | None = None
    made: Made | None = None
    absent: dict[str, str] = field(default_factory=dict)
    """For each missing section, by name: why, and how to get it."""
    notes: list[str] = field(default_factory=list)
    """What was found on the way, then the answer of each section."""

    def summary(self) -> str:
        summary = f"plan of {self.name}" if self.kind == "plan" else f"report of {self.name}"
        if self.sample is not None:
            summary += f", from {self.sample.rows:,} of {self.sample.rows_in_all:,} rows"
        if self.packing is not None and self.packing.splits:
            rows = [f"{plural(split.rows, 'row')} in {split.split}" for split in self.packing.splits]
            summary += f": {', '.join(rows)}"
        if self.notes:
            summary += f"; {plural(len(self.notes), 'note')} in .notes"
        return summary

    def tables(self) -> Iterator[Table]:
        if self.notes:
            yield Table("Notes", ("",), [(note,) for note in self.notes])
        if self.packing is not None:
            splits = (
                (split.split, split.rows, share(split.fill), split.tokens, split.labels)
                for split in self.packing.splits
            )
            caption = f"Packing by {self.packing.strategy}"
            yield Table(caption, ("split", "rows", "fill", "tokens", "trained tokens"), splits)
        if self.choice is not None:
            points = (
                (point.max_length, point.rows, share(point.fill), point.documents_cut, point.documents_lost,
                 point.tokens_lost, point.labels_lost)
                for point in self.choice.points
            )  # fmt: skip
            head = ("max_length", "rows", "fill", "documents cut", "left out", "tokens lost", "trained tokens lost")
            yield Table("Which max_length", head, points)
        if self.flow is not None:
            yield from Ledger(self.flow.sources).tables()
            rejects = (
                (reject.source, reject.file, reject.line, reject.reason, reject.detail) for reject in self.flow.rejects
            )
            if self.flow.rejects:
                yield Table("Some rejected rows", ("source", "file", "line", "reason", "detail"), rejects)
