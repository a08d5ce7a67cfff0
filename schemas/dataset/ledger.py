"""The ledger: what became of every row, token and label, by source. Its sums must close exactly.

Its reasons are words, such as `bad_ids`; what each means, and what to do, stands below.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from ..errors import IntegrityError
from ..notebook import Shown, Table


@dataclass(slots=True)
class SourceLedger:
    """The counts of one source: rows, examples, tokens, labels. Each equation must close."""

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
    turns_without_stop: int = 0
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
    labels_first_token: int = 0
    """Packed tokens that the mask trains, but without a label because they are the first of their piece."""
    labels_masked: int = 0
    """Packed tokens that the mask does not train, including alignment padding."""
    supervised_encoded: int = 0
    """Supervised tokens (trained by the mask), before anything was cut or dropped."""
    supervised_repeated: int = 0
    """Supervised tokens of further copies."""
    supervised_truncated: int = 0
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
            "tokens packed = labels trained + first tokens of pieces + masked",
            self.tokens_packed,
            self.labels_trained + self.labels_first_token + self.labels_masked,
        )
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
        total = self.total()
        packed = sum(total.examples_packed.values())
        return f"{total.rows_read:,} rows read, {packed:,} examples packed, {total.labels_trained:,} tokens trained"

    def tables(self) -> Iterator[Table]:
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


# Reasons: what each means and what to do, in a sentence

UNUSABLE = {
    "bad_ids": "An id is not in the tokenizer's vocabulary; use the tokenizer that made the ids.",
    "bad_labels": "Labels do not fit their ids; a label is the id of its own token, or -100.",
    "bad_mask": "A mask does not fit its ids, or holds something other than 0 and 1.",
    "bad_quotes": "Quotes of the CSV do not close; quote fields that hold quotes or line ends.",
    "bad_tests": "`input_output` is not an object with as many `inputs` as `outputs`; fix the row.",
    "bad_tool_call": "A tool call is not a JSON object with `name` and `arguments`; fix the row.",
    "call_role": "A role is that of a call or a result in other tools' data; `format: sharegpt` with `keys: "
    "{conversations: messages}` reads it.",
    "empty_completion": "The answer is empty or blank; remove such rows, or check the column's name.",
    "half_surrogate": "A text holds half of a surrogate pair, which is no character; its writer cut it in two. Correct "
    "the text.",
    "invalid_json": "The line is not JSON; check it, and the program that wrote it.",
    "invalid_utf8": "Some bytes are not UTF-8; convert the file.",
    "lost_content": "The chat template leaves out a message, a tool call or the tools; take a template that "
    "writes them, or name in `tokenizer.allow_lost` what may be lost.",
    "missing_key": "A column or key that the format needs is missing; name it with `keys`, or take another format.",
    "more": "More rows of the same kind are counted but not listed.",
    "no_preference": "Chosen and rejected are equal; remove such rows.",
    "no_prompt": "The pair has no prompt, and its completions have no common beginning; name the prompt's column.",
    "no_template": "A conversation needs a chat template; set `tokenizer.chat_template`.",
    "no_tests": "The problem has no tests to judge programs with.",
    "not_a_pair": "The run packs preference pairs, and this row is not one; use a separate run for it.",
    "not_an_object": "The line is JSON but not an object; every row must be an object.",
    "not_text": "The row has images, sounds or the like, but only text can be packed; remove them or the row.",
    "packed_already": "Several documents share the row already; a reader of your own can take them apart.",
    "padded": "The row is padded; give rows without padding.",
    "preference": "The row is a preference pair; use a separate run for pairs.",
    "reader_error": "Your own reader failed on the row; its message is beside the row.",
    "reader_result": "Your own reader returned something that is not a row; its message is beside the row.",
    "row_too_long": "The line is longer than `max_row_bytes`; raise that, or split the row.",
    "template_error": "The chat template refused the conversation; its message is beside the row.",
    "too_deep": "Lists and objects nest too deeply; flatten the row.",
    "train_flags": "Messages have different `train` flags or weights, but cannot be located; split the row, or remove "
    "them.",
    "two_roles": "A message has two roles that differ, `from` and `role`; leave one out.",
    "two_systems": "The row has two system texts that differ; leave one out.",
    "unknown_key": "Your own reader returned a row with a key that its format does not have.",
    "unknown_role": "A message has a role that the format, or the chat template, does not know; rename it.",
    "unproved": "Turns, thoughts or tool calls of the assistant cannot be located for certain, but the mask needs "
    "them; take a template that shows them, or `mask: completion`.",
    "unusable_column": "A column or key that changes what is trained elsewhere cannot be honoured here; its message is "
    "beside the row.",
    "unreadable_value": "A value of the table cannot be read by Python; fix the file.",
    "weight": "A weight is not a number from 0.000001 to 1,000,000 (or 0: not trained), or contradicts `train`; or "
    "one of the two is on a part of a content.",
    "wrong_columns": "The row has a different number of fields than the CSV's header; fix the file.",
    "wrong_type": "A value has the wrong type for the format; check `format` and `keys`. Its message is beside the "
    "row.",
}
"""Rows that cannot be used."""
UNWANTED = {
    "no_solution": "The problem has no solution to train on.",
    "not_taken": "The row comes after the first `max_rows` of its source.",
    "not_trained": "The turn is marked as not trained, so no example was made of it.",
    "not_wanted": "Your own reader returned nothing for the row.",
    "over_limit": "The problem has more solutions than `max_solutions`.",
    "where": "The condition `where` is not true for it; check it if that is unexpected.",
}
"""Rows and examples that were filtered out."""
NOT_DRAWN = "not_sampled"
"""The reason of examples that the weights of a mixture did not draw: they are left over, not lost."""
DECISIONS = {
    "contaminated": "It shares text with a row of the evaluation data; contamination.jsonl says which.",
    "cut_empty": "Truncation leaves one of the completions empty; raise `truncate.max_length`, or keep the other end "
    "(`truncate.keep`).",
    "cut_equal": "Truncation leaves both completions equal; raise `truncate.max_length`.",
    "cut_untrained": "The limits leave nothing trained; raise `truncate.max_length`, or keep the other end "
    "(`truncate.keep`).",
    "duplicate": "It is equal to an earlier one.",
    "empty": "It has no text; remove such rows, or check the column's name.",
    "equal": "Both completions are the same tokens; remove such rows.",
    "holdout": "It is held out, and only the training documents are used.",
    "max_tokens": "It is longer than its filter allows; raise `filter.max_tokens`.",
    "min_tokens": "It is shorter than its filter allows; lower `filter.min_tokens`.",
    NOT_DRAWN: "The weights of the sources did not draw it; a larger `weight`, or another seed, may.",
    "overlong": "It is longer than `truncate.max_length`, and `truncate.overlong` is `drop`; raise the one, or set the "
    "other to `truncate` or `split`.",
    "train": "It is not held out, and only held-out documents are used.",
    "untrained": "The mask trains none of its tokens, or only the first, which cannot be trained; another `mask` may "
    "(`assistant` trains every answer of a chat).",
}
"""Examples left out by the configuration or their length; they are valid, and not among the rejects."""
TOKENS = {
    "alignment": "Padding for `pack.align` and `pack.parallel`; never trained.",
    "end_of_sequence": "The end-of-sequence token after each text.",
    "max_length": "Cut off, by `truncate.max_length`.",
    "overlap": "Repeated at the start of a piece, for context; never trained there.",
    "repeats": "Further copies of examples, by `repeat` or `weight`.",
    "special": "Tokens that the tokenizer adds.",
    "untrained_piece": "Pieces of split examples without trained tokens.",
}
"""Tokens that are cut off, repeated or added."""
REASONS = UNUSABLE | UNWANTED | DECISIONS | TOKENS
OWN = "A reason of your own reader."


def rejected_of(total: SourceLedger) -> dict[str, int]:
    """Unusable rows and examples by reason, most frequent first."""
    out = Counter(total.rows_rejected)
    out.update({reason: number for reason, number in total.examples_dropped.items() if reason not in DECISIONS})
    return dict(sorted(out.items(), key=lambda one: (-one[1], one[0])))


def reasons_of(total: SourceLedger) -> dict[str, str]:
    """The reasons that occur in an account, and their meanings."""
    words = [
        *total.rows_rejected,
        *total.rows_filtered,
        *total.examples_skipped,
        *total.examples_dropped,
        *total.tokens_created,
        *total.tokens_truncated,
        *total.tokens_dropped,
    ]
    return {word: REASONS.get(word, OWN) for word in dict.fromkeys(words)}
