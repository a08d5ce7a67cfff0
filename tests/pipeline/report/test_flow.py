"""The ledger as a flow: whatever the ledger says, what flows into a place flows out of it."""

import ast
from collections import Counter
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from packtrain.pipeline.report.collect.flow import ALL, ENCODED, HEADS, MASKED, PACKED, SUPERVISED, TRAINED, flow_of
from packtrain.pipeline.report.collect.shares import training_of
from packtrain.schemas.ledger import Ledger, SourceLedger
from packtrain.schemas.reasons import DECISIONS, OWN, REASONS
from packtrain.schemas.report import LedgerFlow, Link

from tests.support.examples import examples
from tests.support.sources import trees

COUNT = st.integers(0, 10**9)
REASON = st.sampled_from(["invalid_json", "duplicate", "overlong", "untrained", "template_error", "of a reader"])
REASONED = st.dictionaries(REASON, st.integers(1, 10**6), max_size=4)


@st.composite
def entries(draw: st.DrawFn) -> SourceLedger:
    """An account that closes, of a run or of a plan, whatever happened."""
    entry = SourceLedger(
        rows_used=draw(COUNT),
        rows_blank=draw(COUNT),
        rows_rejected=draw(REASONED),
        rows_filtered=draw(REASONED),
        examples_skipped=draw(REASONED),
        examples_packed=draw(st.dictionaries(st.sampled_from(["train", "holdout"]), COUNT)),
        examples_dropped=draw(REASONED),
        tokens_created=draw(REASONED),
        tokens_truncated=draw(REASONED),
        tokens_dropped=draw(REASONED),
        asked_truncated=draw(COUNT),
        asked_dropped=draw(COUNT),
        asked_repeated=draw(st.integers(0, 1000)),
    )
    trained, heads, rest = draw(COUNT), draw(COUNT), draw(COUNT)
    entry.rows_read = entry.rows_used + entry.rows_blank + sum(entry.rows_rejected.values())
    entry.rows_read += sum(entry.rows_filtered.values())
    entry.examples_made = sum(entry.examples_packed.values()) + sum(entry.examples_dropped.values())
    entry.tokens_packed = trained + heads + rest
    lost = sum(entry.tokens_truncated.values()) + sum(entry.tokens_dropped.values())
    short = sum(entry.tokens_created.values()) - entry.tokens_packed - lost
    if short > 0:
        entry.tokens_truncated["max_length"] = entry.tokens_truncated.get("max_length", 0) + short
        lost += short
    entry.tokens_encoded = entry.tokens_packed + lost - sum(entry.tokens_created.values())
    asked = trained + heads + entry.asked_truncated + entry.asked_dropped
    entry.asked_repeated = min(entry.asked_repeated, asked)
    entry.asked_encoded = asked - entry.asked_repeated
    entry.labels_trained, entry.labels_head, entry.labels_not_asked = trained, heads, rest
    return entry


LEDGERS = st.dictionaries(st.sampled_from(["chats", "packed", "all", "used"]), entries(), min_size=1, max_size=3).map(
    Ledger
)


def balances(links: list[Link]) -> Counter[str]:
    """For each place, what flows in less what flows out."""
    out: Counter[str] = Counter()
    for link in links:
        out[link.target] += link.count
        out[link.source] -= link.count
    return out


@given(LEDGERS)
@examples(40)
def test_what_flows_in_flows_out(ledger: Ledger) -> None:
    ledger.check()
    flow = flow_of(ledger)
    assert {fate.source for fate in flow.fates} == {*ledger.sources} | ({ALL} if len(ledger.sources) > 1 else set())
    for fate in flow.fates[-len(ledger.sources) :]:
        conserved(fate, {fate.source: ledger.sources[fate.source]}, ledger.sources[fate.source])
    if len(ledger.sources) > 1:
        conserved(flow.fates[0], ledger.sources, ledger.total())


def conserved(fate: LedgerFlow, sources: dict[str, SourceLedger], entry: SourceLedger) -> None:
    rows, examples, tokens = balances(fate.rows), balances(fate.examples), balances(fate.tokens)
    for name, one in sources.items():
        assert rows[name] == -one.rows_read
        assert tokens[name] == -one.tokens_encoded
    assert sum(rows.values()) == sum(examples.values()) == sum(tokens.values()) == 0
    assert sum(-value for value in rows.values() if value < 0) == entry.rows_read
    if entry.examples_skipped:
        assert examples["made examples"] == 0
        assert -examples["found examples"] == entry.examples_made + sum(entry.examples_skipped.values())
    else:
        assert -examples["made examples"] == entry.examples_made
    assert (tokens[ENCODED], tokens[PACKED]) == (0, 0)
    assert tokens[TRAINED] == entry.labels_trained
    assert tokens[HEADS] == entry.labels_head
    assert tokens[MASKED] == entry.labels_not_asked
    for reason, number in entry.tokens_truncated.items():
        assert tokens[f"truncated: {reason}"] == number
    for reason, number in entry.rows_rejected.items():
        assert rows[f"rejected: {reason}"] == number
    assert all(link.count > 0 for link in [*fate.rows, *fate.examples, *fate.tokens])


@given(LEDGERS)
@examples(20)
def test_before_packing_it_is_told_what_the_mask_asks_for(ledger: Ledger) -> None:
    total = ledger.total()
    for entry in ledger.sources.values():
        entry.labels_trained = entry.labels_head = entry.labels_not_asked = 0
    fate = flow_of(ledger).fates[0]
    tokens = balances(fate.tokens)
    assert (tokens[ENCODED], tokens[PACKED]) == (0, 0)
    assert tokens[SUPERVISED] == total.labels_trained + total.labels_head
    assert tokens[MASKED] == total.labels_not_asked
    assert tokens[TRAINED] == 0
    training = training_of(ledger)
    assert sum(one.labels for one in training.sources) == total.labels_trained + total.labels_head
    assert training.rows_absent is not None


@given(LEDGERS)
@examples(20)
def test_the_rest_of_the_flow_is_the_ledgers(ledger: Ledger) -> None:
    flow, total = flow_of(ledger), ledger.total()
    refused = {reason: n for reason, n in total.examples_dropped.items() if reason not in DECISIONS}
    assert sum(flow.rejected.values()) == sum(total.rows_rejected.values()) + sum(refused.values())
    assert list(flow.rejected.values()) == sorted(flow.rejected.values(), reverse=True)
    words = {*total.rows_rejected, *total.rows_filtered, *total.examples_dropped, *total.examples_skipped}
    assert words | {*total.tokens_truncated, *total.tokens_created, *total.tokens_dropped} == set(flow.reasons)
    assert flow.reasons.get("of a reader", OWN) == OWN
    shares = training_of(ledger).sources
    assert sum(one.tokens for one in shares) == total.tokens_packed
    assert sum(one.labels for one in shares) == total.labels_trained or not total.tokens_packed


# Every reason that the program can give has words


def given_reasons() -> set[str]:
    """What stands where a reason is given: the words of errors, of selections and of counters."""
    searched = {
        path: tree
        for path, tree in trees().items()
        if path.parts[0] in ("stages", "pipeline") and "report" not in path.parts
    }
    known, by_name = dict[tuple[Path, str], str](), dict[str, str]()
    for path, tree in searched.items():
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                for target in node.targets:
                    if isinstance(target, ast.Name) and isinstance(node.value.value, str):
                        known[path, target.id] = by_name[target.id] = node.value.value
    out = set[str]()
    for path, tree in searched.items():
        for call in ast.walk(tree):
            if not isinstance(call, ast.Call):
                continue
            name = getattr(call.func, "id", getattr(call.func, "attr", ""))
            at = {"RowRejectedError": 0, "RowFilteredError": 0, "leave_out": 1, "_check_length": 3}.get(name)
            if at is None or len(call.args) <= at:
                continue
            word = call.args[at]
            if isinstance(word, ast.Constant):
                out.add(str(word.value))
            elif isinstance(word, ast.Name) and word.id.isupper():
                out.add(known.get((path, word.id), by_name.get(word.id, word.id)))
    return out


def test_every_reason_has_words() -> None:
    found = given_reasons()
    assert len(found) > 30, "the search has lost its way"
    assert "lost_content" in found, "a constant"
    assert sorted(found - set(REASONS)) == []
    counters = {"end_of_sequence", "special", "overlap", "repeats"}
    by_hand = {"alignment", "unproved", "untrained_piece", "not_taken", "where", "over_limit", "not_trained"}
    of_tables = {"row_too_long", "bad_quotes", "wrong_columns", "unreadable_value", "invalid_utf8"}
    of_limits = {"max_length", "max_prompt_length", "max_completion_length"}
    assert {*DECISIONS, *counters, *by_hand, *of_tables, *of_limits} <= set(REASONS)
    assert all(text.endswith(".") and len(text) < 160 for text in REASONS.values())
