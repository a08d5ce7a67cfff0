"""3. What is being trained on?"""

from dataclasses import dataclass, field

from .histogram import Histogram


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
    truncated: int = 0
    """Packed examples that were cut, or cut into pieces, because they are too long."""


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
    """Of the example; data's text."""
    source: str
    doc_id: int
    prompt: ShownText
    chosen: ShownText
    rejected: ShownText


@dataclass(frozen=True, slots=True)
class Training:
    """What the loss falls on."""

    sentence: str
    sources: list[SourceShare]
    rows: list[ShownRow]
    rows_absent: str | None = None
    """Why neither a row nor a pair is shown."""
    pairs: list[ShownPair] = field(default_factory=list)
    """Of preference data, which is not packed, in the place of rows."""
