"""Each entry of a table has its one function, and nothing else does."""

from packtrain.schemas.tables.columns import USUAL_COLUMNS
from packtrain.schemas.tables.masks import POLICIES
from packtrain.schemas.tables.strategies import STRATEGIES
from packtrain.stages.mask.policy import TRAINED_KINDS
from packtrain.stages.pack.plan_rows import PLACING
from packtrain.stages.pack.row_columns import VALUES


def test_every_column_has_values() -> None:
    assert set(VALUES) == set(USUAL_COLUMNS)


def test_every_policy_has_kinds_of_spans() -> None:
    assert list(TRAINED_KINDS) == list(POLICIES)


def test_every_strategy_that_does_not_join_documents_places_pieces() -> None:
    assert list(PLACING) == [name for name, strategy in STRATEGIES.items() if not strategy.joins_documents]
    for strategy in STRATEGIES.values():
        assert strategy.fuller is None or STRATEGIES[strategy.fuller].is_packing
        assert strategy.cuts_documents or not strategy.joins_documents
