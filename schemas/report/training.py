"""3. What is being trained on?"""

from dataclasses import dataclass, field

from .histogram import Histogram


@dataclass(frozen=True, slots=True)
class KindCount:
    """Tokens of one kind in packed examples, before any cut."""

    kind: str
    tokens: int
    selected: int
    """Those that the mask selects."""


@dataclass(frozen=True, slots=True)
class SourceShare:
    """What a source contributes to the rows."""

    source: str
    examples: int
    """Packed examples, without copies."""
    tokens: int
    """Packed tokens, without padding."""
    labels: int
    """Trained labels."""
    turns: int
    """Trained assistant turns."""
    turns_without_end: int
    turns_cut: int
    straddles: int
    """Tokens that span a boundary."""
    boundaries: int
    without_labels: int
    """Packed examples without a trained token."""
    untrained: int
    """Examples dropped because nothing in them is trained, before or after cutting."""
    lengths: Histogram | None
    """Tokens of packed examples, before any cut."""
    prompts: Histogram | None
    """Masked tokens of packed examples."""
    completions: Histogram | None
    """Supervised tokens of packed examples."""
    turns_each: Histogram | None
    """Trained turns per example."""
    truncated: int = 0
    """Packed examples that were truncated or split because they are too long."""
    weight: float | None = None
    """Sum of the loss weights of the trained labels; None in datasets without weights, and before packing."""
    kinds: list[KindCount] = field(default_factory=list)
    """Tokens by kind; empty if unknown. Of a sample if not all parts were read."""


@dataclass(frozen=True, slots=True)
class ShownPiece:
    """A stretch of text from the data, which must be escaped."""

    text: str
    trained: bool
    tokens: int
    kind: str = ""
    """"thought" or "tool call"; "" for all else, and if the cache is gone."""


@dataclass(frozen=True, slots=True)
class ShownDocument:
    """A document, or a piece of one, in a packed row."""

    id: str
    """Id of the example; untrusted text."""
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
class ShownText:
    """A prompt, or one of two completions."""

    tokens: int
    pieces: list[ShownPiece]
    """All of a completion is trained, and nothing of a prompt."""
    shortened: bool
    """Whether text was left out."""


@dataclass(frozen=True, slots=True)
class ShownPair:
    """A preference pair as text."""

    split: str
    row: int
    id: str
    """Id of the example; untrusted text."""
    source: str
    doc_id: int
    prompt: ShownText
    chosen: ShownText
    rejected: ShownText


@dataclass(frozen=True, slots=True)
class Training:
    """What is trained."""

    sentence: str
    sources: list[SourceShare]
    rows: list[ShownRow]
    rows_absent: str | None = None
    """Why neither a row nor a pair is shown."""
    pairs: list[ShownPair] = field(default_factory=list)
    """Preference pairs, shown instead of rows."""
