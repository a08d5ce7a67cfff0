"""Everything known about one example, from its source row to its positions in packed rows."""

from dataclasses import asdict, dataclass, field
from typing import Any

from ...schemas.rows import IGNORE_INDEX, Example, RunKind
from ...stages.prep.public import public_row
from ..dataset.documents import Address
from .fate import CutTokens
from .packed_rows import Standing
from .source_row import SourceRow
from .tokens import Token


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of text of one kind that is trained as a whole, or not at all."""

    text: str
    kind: RunKind | None
    """Kind of the run; None if only the shards are left."""
    turn: int
    train: bool
    """Whether its message allows training."""
    trained: bool
    """Whether a packed row trains it."""


@dataclass(frozen=True, slots=True)
class Text:
    """The text of an example."""

    spans: list[Span]
    rendered: bool
    """Whether the template rendered it; otherwise it is decoded from the tokens."""
    unproved: str
    """Why the assistant's turns, or parts of one, could not be located, or ""."""
    checks: list[tuple[str, bool]]
    """(what was compared, whether it agrees) of each comparison."""


@dataclass(slots=True)
class Story:
    """Everything known about one example."""

    address: Address
    folder: str
    doc_id: int | None
    origin: SourceRow
    state: str
    """`packed`, `dropped`, `rejected`, `filtered`, `skipped`, `blank`, `not taken`."""
    reason: str = ""
    detail: str = ""
    group: str = ""
    example: Example | None = None
    text: Text | None = None
    tokens: list[Token] = field(default_factory=list)
    total: int = 0
    """Tokens at full length."""
    policy: str = ""
    standings: list[Standing] = field(default_factory=list)
    copies: int = 0
    cuts: list[CutTokens] = field(default_factory=list)
    twin: str = ""
    """Id of the earlier example, if this one is a duplicate."""
    row: tuple[str, int] | None = None
    """Split and row of a preference pair; None for other examples."""
    notes: list[str] = field(default_factory=list)
    """Sentences that say what is missing, and why."""


def story_json(story: Story) -> dict[str, Any]:
    """The story as plain data."""
    example = None
    if story.example is not None:
        form: Any = "any" if story.example.rejected or story.example.completion != [] else "messages"
        example = public_row(story.example, form)
    return {
        "id": story.address.id,
        "doc_id": story.doc_id,
        "source": {
            "source": story.address.source,
            "file": story.address.file,
            "line": story.address.line,
            "path": story.origin.path,
            "state": story.origin.state.value,
            "said": story.origin.said,
            "row": story.origin.value,
        },
        "group": story.group,
        "example": example,
        "text": _text_json(story.text),
        "mask": story.policy,
        "tokens": [{**asdict(token), "kind": _kind(token.kind), "fate": token.fate.value} for token in story.tokens],
        "outcome": {
            "state": story.state,
            "reason": story.reason,
            "detail": story.detail,
            "twin": story.twin,
            "row": list(story.row) if story.row is not None else None,
            "tokens": story.total,
            "copies": story.copies,
            "pieces": [
                {key: value for key, value in asdict(standing).items() if key not in ("ids", "labels", "weights")}
                | {"length": len(standing.ids), "trained": trained_in(standing)}
                | ({"weight": sum(standing.weights)} if standing.weights is not None else {})
                for standing in story.standings
            ],
            "cut": [asdict(cut) for cut in story.cuts],
        },
        "notes": story.notes,
    }


def trained_in(standing: Standing) -> int:
    """The number of trained labels in a piece."""
    return sum(label != IGNORE_INDEX for label in standing.labels)


def _text_json(text: Text | None) -> dict[str, Any] | None:
    if text is None:
        return None
    return {
        "spans": [{**asdict(span), "kind": _kind(span.kind)} for span in text.spans],
        "rendered": text.rendered,
        "unproved": text.unproved,
        "checks": [{"what": what, "agrees": agrees} for what, agrees in text.checks],
    }


def _kind(kind: RunKind | None) -> str | None:
    return kind.name.lower() if kind is not None else None
