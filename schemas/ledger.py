"""The ledger: what became of every row, token and label, by source. Its sums must close exactly."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from .errors import IntegrityError


@dataclass(slots=True)
class SourceLedger:
    """The counts of one source: rows, examples, tokens, labels. Each equation must close."""

    bytes_read: int = 0
    """Of JSONL, its bytes; of tables, separated values and JSON arrays, about those of their rows."""
    rows_read: int = 0
    rows_used: int = 0
    rows_blank: int = 0
    rows_rejected: dict[str, int] = field(default_factory=dict)
    """Rows that cannot be used, by reason; each is listed in rejects.jsonl."""
    rows_filtered: dict[str, int] = field(default_factory=dict)
    """Well-formed rows that were filtered out, by reason."""
    examples_made: int = 0
    examples_skipped: dict[str, int] = field(default_factory=dict)
    """Examples left out although their row gave others: solutions that are repeated, empty or over the limit."""
    examples_packed: dict[str, int] = field(default_factory=dict)
    """Examples of which at least one token was packed, by split."""
    examples_repeated: int = 0
    """Further copies of packed examples, beyond the first."""
    copies_together: int = 0
    """Further copies that stand in one row with an earlier copy of the same piece."""
    examples_dropped: dict[str, int] = field(default_factory=dict)
    """Examples left out whole, by reason."""
    examples_truncated: int = 0
    examples_split: int = 0
    """Packed examples that were split into pieces before packing because they are too long."""
    examples_without_labels: int = 0
    """Packed examples without a trained label, kept by keep_untrained."""
    turns_trained: int = 0
    """Assistant turns of packed examples that the mask trains, before any cut."""
    turns_without_end: int = 0
    """Trained turns after which the template writes no end-of-turn token."""
    turns_stop_next: int = 0
    """Trained turns whose stop token stands in the next message's header, and is trained by `mask: {stop: auto}`."""
    turns_cut: int = 0
    """Cuts through a trained turn of a packed example: its halves are trained separately, or one is lost."""
    tokens_encoded: int = 0
    tokens_created: dict[str, int] = field(default_factory=dict)
    """Added tokens, by kind: end_of_sequence, special (added by the tokenizer), alignment, overlap (repeated at the
    start of a piece, untrained), repeats (further copies of an example)."""
    tokens_truncated: dict[str, int] = field(default_factory=dict)
    """Tokens cut off packed examples, by limit: max_length."""
    tokens_dropped: dict[str, int] = field(default_factory=dict)
    """Tokens of dropped examples by reason, or of an `untrained_piece`: a piece of a split example without trained
    labels."""
    tokens_packed: int = 0
    labels_trained: int = 0
    """Packed tokens with a trained label."""
    labels_head: int = 0
    """Packed tokens that the mask trains, but without a label because they are the first of their piece."""
    labels_not_asked: int = 0
    """Packed tokens that the mask does not train, including alignment padding."""
    asked_encoded: int = 0
    """Supervised tokens (trained by the mask), before anything was cut or dropped."""
    asked_repeated: int = 0
    """Supervised tokens of further copies."""
    asked_truncated: int = 0
    asked_dropped: int = 0
    straddles: int = 0
    """Tokens that span a boundary; they belong to the trained side."""
    template_dropped: dict[str, int] = field(default_factory=dict)
    """Examples with content that the chat template is allowed to leave out, by kind: `reasoning`, and the kinds in
    `tokenizer.allow_lost`. An example may count under several."""
    unknown_roles: dict[str, int] = field(default_factory=dict)
    """Conversations with a role that is not a usual one and that the template does not compare with, by role."""
    examples_contaminated: int = 0
    """Encoded examples that share text with evaluation rows, packed or not."""
    weight_trained: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Sum of the loss weights of all trained labels; 0 in datasets without weights, whose labels all count 1."""

    @property
    def document_tokens(self) -> int:
        """Packed tokens of documents, without padding for `pack.align` and `pack.parallel`."""
        return self.tokens_packed - self.tokens_created.get("alignment", 0)

    def equations(self) -> Iterator[tuple[str, int, int]]:
        """(equation, left side, right side) of all equations."""
        yield (
            "rows read = used + rejected + filtered + blank",
            self.rows_read,
            self.rows_used + sum(self.rows_rejected.values()) + sum(self.rows_filtered.values()) + self.rows_blank,
        )
        yield (
            "examples made = packed + dropped",
            self.examples_made,
            sum(self.examples_packed.values()) + sum(self.examples_dropped.values()),
        )
        yield (
            "tokens encoded + created = packed + truncated + dropped",
            self.tokens_encoded + sum(self.tokens_created.values()),
            self.tokens_packed + sum(self.tokens_truncated.values()) + sum(self.tokens_dropped.values()),
        )
        yield (
            "tokens packed = labels trained + lost at heads + masked",
            self.tokens_packed,
            self.labels_trained + self.labels_head + self.labels_not_asked,
        )
        yield (
            "supervised tokens + repeated = trained + lost at heads + truncated + dropped",
            self.asked_encoded + self.asked_repeated,
            self.labels_trained + self.labels_head + self.asked_truncated + self.asked_dropped,
        )


@dataclass(slots=True)
class Ledger:
    """The counts of a run, by source."""

    sources: dict[str, SourceLedger] = field(default_factory=dict)

    def check(self) -> None:
        """Raise IntegrityError naming the first source and equation that does not close."""
        for name, source in self.sources.items():
            for what, left, right in source.equations():
                if left != right:
                    raise IntegrityError(
                        f"the ledger of source {name!r} does not close: {what}, but {left:,} is not {right:,}; "
                        "this is a defect of packtrain, please report it with the configuration"
                    )

    def total(self) -> SourceLedger:
        """The sum over all sources."""
        out = SourceLedger()
        for source in self.sources.values():
            for name in SourceLedger.__dataclass_fields__:
                value = getattr(source, name)
                if isinstance(value, Mapping):
                    mine = getattr(out, name)
                    for key, count in value.items():
                        mine[key] = mine.get(key, 0) + count
                else:
                    setattr(out, name, getattr(out, name) + value)
        return out

    def to_json(self) -> dict[str, Any]:
        """Source → plain data."""
        plain: dict[str, Any] = msgspec.to_builtins(self.sources)
        return plain
