"""The ledger: what became of every row, token and label, by source. Its sums must close exactly.

Its reasons are words, such as `bad_ids`; `schemas/tables/reasons.py` says what each means, and what to do.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from ..errors import IntegrityError
from ..notebook import Shown, Table
from ..tables.reasons import DECISIONS, OWN_REASON, REASONS
from ..units import share


@dataclass(slots=True, repr=False)
class SourceLedger(Shown):
    """The counts of one source: rows, examples, tokens, labels. Each of `equations` must close."""

    rows_read: int = 0
    """Rows of its files, blank ones too."""
    rows_used: int = 0
    """Rows of which at least one example was made."""
    rows_blank: int = 0
    """Blank lines, and blank rows of tables."""
    rows_rejected: dict[str, int] = field(default_factory=dict)
    """Rows that cannot be used, by reason; each is listed in rejects.jsonl."""
    rows_filtered: dict[str, int] = field(default_factory=dict)
    """Well-formed rows that were filtered out, by reason."""
    examples_made: int = 0
    """Examples that were made of the rows used. Each is packed, or dropped with a reason."""
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
    """Packed examples that were cut to `truncate.max_length`."""
    examples_split: int = 0
    """Packed examples that were split into pieces before packing because they are too long."""
    examples_without_labels: int = 0
    """Packed examples without a trained label, kept by keep_untrained."""
    turns_trained: int = 0
    """Assistant turns of packed examples that the mask trains, before any cut."""
    turns_without_stop: int = 0
    """Trained turns after which the template writes no end-of-turn token."""
    turns_stop_next: int = 0
    """Trained turns whose stop token stands in the next message's header, and is trained by `mask: {stop: auto}`."""
    turns_cut: int = 0
    """Cuts through a trained turn of a packed example: its halves are trained separately, or one is lost."""
    tokens_encoded: int = 0
    """Tokens of all encoded examples, before any cut, without those that are counted in `tokens_created`."""
    tokens_created: dict[str, int] = field(default_factory=dict)
    """Added tokens, by kind: end_of_sequence, special (added by the tokenizer), alignment, overlap (repeated at the
    start of a piece, untrained), prompt (of a preference pair, before its rejected completion), repeats (further copies
    of an example)."""
    tokens_truncated: dict[str, int] = field(default_factory=dict)
    """Tokens cut off packed examples, by limit: max_length."""
    tokens_dropped: dict[str, int] = field(default_factory=dict)
    """Tokens of dropped examples by reason, or of an `untrained_piece`: a piece of a split example without trained
    labels."""
    tokens_shared: int = 0
    """Tokens of packed examples that rows store once for several of them: `pack.share`."""
    tokens_packed: int = 0
    """Tokens in the shards, with padding."""
    labels_trained: int = 0
    """Packed tokens with a trained label."""
    labels_first_token: int = 0
    """Packed tokens that the mask trains, but without a label because they are the first of their piece."""
    labels_masked: int = 0
    """Packed tokens that the mask does not train, including alignment padding."""
    supervised_encoded: int = 0
    """Supervised tokens (trained by the mask), before anything was cut or dropped."""
    supervised_repeated: int = 0
    """Supervised tokens of further copies."""
    supervised_truncated: int = 0
    """Supervised tokens cut off packed examples."""
    supervised_dropped: dict[str, int] = field(default_factory=dict)
    """Supervised tokens of dropped examples, or of an `untrained_piece`, by the reasons of `tokens_dropped`."""
    straddles: int = 0
    """Tokens that span a boundary; they belong to the trained side."""
    template_dropped: dict[str, int] = field(default_factory=dict)
    """Examples with content that the chat template is allowed to leave out, by kind: `reasoning`, and the kinds in
    `tokenizer.allow_lost`. An example may count under several."""
    unknown_roles: dict[str, int] = field(default_factory=dict)
    """Conversations with a role that is not a usual one and that the template does not compare with, by role."""
    special_in_contents: dict[str, int] = field(default_factory=dict)
    """Special tokens in the contents of encoded examples, packed or not, by token: the tokenizer makes real ones of
    them."""
    examples_with_special: int = 0
    """Encoded examples that have some."""
    examples_equal: int = 0
    """Packed examples that are equal to an earlier packed one, of any source: the same tokens, masks and weights."""
    columns_not_read: dict[str, int] = field(default_factory=dict)
    """Rows with a column that the format does not read, by its name."""
    keys_not_read: dict[str, int] = field(default_factory=dict)
    """Messages with a key that neither the format nor the chat template reads, by its name; keys of parts of a content
    begin with `content[].`."""
    call_arguments_not_json: int = 0
    """Tool calls whose arguments are a text that is not the JSON of an object; the template got the text."""
    examples_contaminated: int = 0
    """Encoded examples that share text with evaluation rows, packed or not."""
    weight_trained: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Sum of the loss weights of all trained labels; 0 in datasets without weights, whose labels all count 1."""

    def __add__(self, other: "SourceLedger") -> "SourceLedger":
        """The counts of both together: `{a: 1, b: 2}` and `{b: 3}` by reason are `{a: 1, b: 5}`."""
        total = SourceLedger()
        for name in type(self).__dataclass_fields__:
            left = getattr(self, name)
            right = getattr(other, name)
            if isinstance(left, Mapping):  # a count for each reason
                reasons = {**left, **right}  # in the order in which they were met
                setattr(total, name, {reason: left.get(reason, 0) + right.get(reason, 0) for reason in reasons})
            else:
                setattr(total, name, left + right)
        return total

    @property
    def document_tokens(self) -> int:
        """Packed tokens of documents, without padding for `pack.align` and `pack.parallel`."""
        return self.tokens_packed - self.tokens_created.get("alignment", 0)

    def summary(self) -> str:
        """The most important counts in one line."""
        packed = sum(self.examples_packed.values())
        return f"{self.rows_read:,} rows read, {packed:,} examples packed, {self.supervision()}"

    def supervision(self) -> str:
        """How many of the supervised tokens are trained, in a few words."""
        supervised = self.supervised_encoded + self.supervised_repeated
        trained = share(self.labels_trained / supervised) if supervised else "none"  # such as "98.7 %"
        return f"{trained} of {supervised:,} supervised tokens trained"

    def tables(self) -> Iterator[Table]:
        """Every count that is not 0; a count by reason has a row for each reason."""
        rows: list[tuple[str, object]] = []
        for name in type(self).__dataclass_fields__:
            value = getattr(self, name)
            if isinstance(value, Mapping):
                rows += [(f"{name}: {reason}", count) for reason, count in value.items()]
            elif value:
                rows.append((name, value))
        yield Table("Counts that are not 0", ("", "count"), rows)

    def equations(self) -> Iterator[tuple[str, int, int]]:
        """(equation, left side, right side) of all equations."""
        yield (
            "rows read = used + rejected + filtered + blank",
            self.rows_read,
            self.rows_used + sum(self.rows_rejected.values()) + sum(self.rows_filtered.values()) + self.rows_blank,
        )
        # By example, however many copies of it are packed, and however many pieces it has.
        yield (
            "examples made = packed + dropped",
            self.examples_made,
            sum(self.examples_packed.values()) + sum(self.examples_dropped.values()),
        )
        # By token in a shard: an example of 10 tokens that is packed twice has 10 encoded and 10 created as repeats.
        yield (
            "tokens encoded + created = packed + shared + truncated + dropped",
            self.tokens_encoded + sum(self.tokens_created.values()),
            self.tokens_packed
            + self.tokens_shared
            + sum(self.tokens_truncated.values())
            + sum(self.tokens_dropped.values()),
        )
        # A piece of 5 tokens, of which the mask trains the first 4, has 3 labels, 1 first token and 1 masked token.
        yield (
            "tokens packed = labels trained + first tokens of pieces + masked",
            self.tokens_packed,
            self.labels_trained + self.labels_first_token + self.labels_masked,
        )
        # What the mask trains, and where it went: nothing that should be trained vanishes.
        yield (
            "supervised tokens + further copies = trained + first tokens of pieces + truncated + dropped",
            self.supervised_encoded + self.supervised_repeated,
            self.labels_trained
            + self.labels_first_token
            + self.supervised_truncated
            + sum(self.supervised_dropped.values()),
        )


@dataclass(slots=True, repr=False)
class Ledger(Shown):
    """The counts of a run, by source."""

    sources: dict[str, SourceLedger] = field(default_factory=dict)

    def summary(self) -> str:
        """The most important counts of all sources in one line."""
        return self.total().summary()

    def supervision(self) -> str:
        """How many of the supervised tokens are trained, in a few words."""
        return self.total().supervision()

    def tables(self) -> Iterator[Table]:
        """One table, with a row for each source."""
        rows = [
            (name, source.rows_read, source.rows_used, sum(source.rows_rejected.values()), source.examples_made,
             sum(source.examples_packed.values()), source.tokens_packed, source.labels_trained)
            for name, source in self.sources.items()
        ]  # fmt: skip
        head = ("source", "rows read", "used", "rejected", "examples", "packed", "tokens packed", "tokens trained")
        yield Table("Ledger", head, rows)

    def check(self) -> None:
        """Raise IntegrityError naming the first source and equation that does not close."""
        for name, source in self.sources.items():
            for equation, left, right in source.equations():
                if left != right:
                    raise IntegrityError(
                        f"the ledger of source {name!r} does not close: {equation}, but {left:,} is not {right:,}; "
                        "this is a defect of packtrain, please report it with the configuration"
                    )

    def total(self) -> SourceLedger:
        """The sum over all sources."""
        return sum(self.sources.values(), SourceLedger())


def rejected_of(total: SourceLedger) -> dict[str, int]:
    """Reason → number of unusable rows and examples, most frequent first; equally frequent ones by name."""
    counts = Counter(total.rows_rejected)
    # Examples that were dropped by a decision of the configuration are valid, and not among them.
    counts.update({reason: count for reason, count in total.examples_dropped.items() if reason not in DECISIONS})
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def reasons_of(total: SourceLedger) -> dict[str, str]:
    """Reason → what it means, for every reason that occurs in the counts."""
    words = [
        *total.rows_rejected,
        *total.rows_filtered,
        *total.examples_skipped,
        *total.examples_dropped,
        *total.tokens_created,
        *total.tokens_truncated,
        *total.tokens_dropped,
    ]
    # A word that is in no table was given by a user's own reader, which OWN_REASON says.
    return {word: REASONS.get(word, OWN_REASON) for word in dict.fromkeys(words)}
