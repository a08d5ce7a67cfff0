"""Packed rows as text, with what of them is trained."""

from collections.abc import Iterator
from dataclasses import dataclass

from ..notebook import Shown, Table
from ..units import plural, share


@dataclass(frozen=True, slots=True)
class ShownPiece:
    """A stretch of text."""

    text: str
    weight: float
    """The loss weight of its tokens; 0 if it is not trained."""
    tokens: int


@dataclass(frozen=True, slots=True)
class ShownDocument:
    """A document in a packed row, or a piece of one. Of a packed preference pair, one side; of a pair that is not
    packed, its prompt or one completion.
    """

    id: str
    source: str
    start: int
    """First token within the document."""
    tokens: int
    """Tokens in this row."""
    trained: int
    """Trained tokens of these."""
    pieces: list[ShownPiece]
    """Its text, cut where the loss weight changes."""
    # Of a long document, stretches from its beginning and its end are shown: a row of 128 Ki tokens would fill pages.
    shortened: bool
    """Whether text was left out."""
    continues: str = ""
    """The id of the document whose first tokens it shares (`pack.share`), or ""."""
    shared: int = 0
    """How many tokens of that document come before these."""
    side: str = ""
    """Of a preference pair: `chosen` or `rejected`, or `prompt` where pairs are not packed; "" of other documents."""

    @property
    def origin(self) -> str:
        """Where in its document it begins, in words; "" at its beginning."""
        if self.continues and self.side:
            return f"continues the chosen side after {plural(self.shared, 'token')}"
        if self.continues:
            return f"continues {self.continues} after {plural(self.shared, 'token')}"
        return f"from its token {self.start:,} on" if self.start else ""

    @property
    def text(self) -> str:
        """Its text; what is trained is between ⟦ and ⟧."""
        return "".join(f"⟦{piece.text}⟧" if piece.weight else piece.text for piece in self.pieces)


@dataclass(frozen=True, slots=True, repr=False)
class ShownRow(Shown):
    """A packed row as text; or a preference pair that is not packed: prompt, chosen and rejected completion."""

    split: str
    row: int
    tokens: int
    capacity: int
    """Tokens that the row can hold; for a pair, its own tokens."""
    documents: list[ShownDocument]
    pair: bool = False
    """Whether it is a preference pair that is not packed."""

    @property
    def trained(self) -> int:
        """Trained tokens."""
        return sum(document.trained for document in self.documents)

    def summary(self) -> str:
        place = f"row {self.row} of {self.split}"
        if self.pair:
            return f"{place}: a preference pair, {self.tokens:,} tokens, {self.trained:,} trained"
        documents = plural(len(self.documents), "document")
        if self.documents and self.documents[0].side:
            # Both sides of a pair are documents of the row.
            documents = plural(len(self.documents) // 2, "preference pair")
        fill = share(self.tokens / self.capacity, fixed=True)
        return f"{place}: {documents}, {self.tokens:,} of {self.capacity:,} tokens ({fill}), {self.trained:,} trained"

    def tables(self) -> Iterator[Table]:
        # ⟦ and ⟧ are rare in data, and stand out without colour, which a notebook does not keep in every format.
        head = ("document", "source", "first token", "tokens", "trained", "text, ⟦trained⟧")
        rows = (
            (
                document.id,
                ", ".join(filter(None, (document.source, document.side))),
                document.start,
                document.tokens,
                document.trained,
                document.text,
            )
            for document in self.documents
        )
        yield Table("", head, rows)
