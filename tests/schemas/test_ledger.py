"""The ledger closes, or says where it does not."""

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.schemas.dataset.ledger import Ledger, SourceLedger
from packtrain.schemas.errors import IntegrityError

counts = st.integers(0, 10**12)
reasons = st.dictionaries(st.sampled_from(["a", "b", "train"]), counts, max_size=3)


@st.composite
def closed(draw: st.DrawFn) -> SourceLedger:
    """A ledger that closes, with every line drawn."""
    rows_used, blank = draw(counts), draw(counts)
    rejected, filtered = draw(reasons), draw(reasons)
    packed, dropped = draw(reasons), draw(reasons)
    trained, head, not_asked = draw(counts), draw(counts), draw(counts)
    truncated, tokens_dropped = draw(reasons), draw(reasons)
    tokens_packed = trained + head + not_asked
    total = tokens_packed + sum(truncated.values()) + sum(tokens_dropped.values())
    created = draw(st.integers(0, total))
    supervised_truncated, supervised_dropped = draw(counts), draw(reasons)
    asked = trained + head + supervised_truncated + sum(supervised_dropped.values())
    repeated = draw(st.integers(0, asked))
    return SourceLedger(
        rows_read=rows_used + blank + sum(rejected.values()) + sum(filtered.values()),
        rows_used=rows_used,
        rows_blank=blank,
        rows_rejected=rejected,
        rows_filtered=filtered,
        examples_made=sum(packed.values()) + sum(dropped.values()),
        examples_packed=packed,
        examples_dropped=dropped,
        tokens_encoded=total - created,
        tokens_created={"end_of_sequence": created},
        tokens_truncated=truncated,
        tokens_dropped=tokens_dropped,
        tokens_packed=tokens_packed,
        labels_trained=trained,
        labels_first_token=head,
        labels_masked=not_asked,
        supervised_encoded=asked - repeated,
        supervised_repeated=repeated,
        supervised_truncated=supervised_truncated,
        supervised_dropped=supervised_dropped,
    )


@given(st.dictionaries(st.sampled_from(["x", "y", "z"]), closed()))
def test_what_closes_closes_in_sum(sources: dict[str, SourceLedger]) -> None:
    ledger = Ledger(sources)
    ledger.check()
    Ledger({"all": ledger.total()}).check()


# Counters in an equation, which cannot be changed alone. The others are only reported.
TOLD = {
    "examples_skipped",
    "examples_repeated",
    "copies_together",
    "examples_truncated",
    "examples_split",
    "examples_without_labels",
    "turns_trained",
    "turns_without_stop",
    "turns_cut",
    "straddles",
    "template_dropped",
    "examples_contaminated",
    "weight_trained",
    "turns_stop_next",
    "unknown_roles",
    "special_in_contents",
    "examples_with_special",
    "examples_equal",
    "call_arguments_not_json",
    "columns_not_read",
    "keys_not_read",
}


@given(ledger=closed(), name=st.sampled_from([field.name for field in fields(SourceLedger) if field.name not in TOLD]))
def test_one_line_that_is_off_by_one_is_found(ledger: SourceLedger, name: str) -> None:
    value = getattr(ledger, name)
    if isinstance(value, dict):
        value["a"] = value.get("a", 0) + 1
    else:
        setattr(ledger, name, value + 1)
    with pytest.raises(IntegrityError):
        Ledger({"good": SourceLedger(), "bad": ledger}).check()
