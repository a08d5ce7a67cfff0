"""Each entry of a table has its one function, and nothing else does."""

from packtrain.pipeline.export.foreign_formats import WRITERS
from packtrain.pipeline.inputs.file_kinds import FILE_KINDS, Container
from packtrain.pipeline.inputs.spool import LINES
from packtrain.schemas.tables.columns import USUAL_COLUMNS
from packtrain.schemas.tables.engines import REFERENCE, TOKENIZER_ENGINES
from packtrain.schemas.tables.export_formats import EXPORT_FORMATS
from packtrain.schemas.tables.masks import POLICIES
from packtrain.schemas.tables.reasons import DECISIONS, OUTCOMES, UNPROVED
from packtrain.schemas.tables.row_formats import OPTIONS, ROW_FORMATS
from packtrain.schemas.tables.strategies import STRATEGIES
from packtrain.stages.mask.policy import TRAINED_KINDS
from packtrain.stages.pack.plan_rows import PLACING
from packtrain.stages.pack.row_columns import VALUES
from packtrain.stages.prep import FORMATS
from packtrain.stages.prep.columns import NAMED_COLUMNS
from packtrain.stages.tokenize.engines import ENGINES
from packtrain.training.order import ROWS_AT, Order


def test_every_column_has_values() -> None:
    assert set(VALUES) == set(USUAL_COLUMNS)


def test_every_policy_has_kinds_of_spans() -> None:
    assert list(TRAINED_KINDS) == list(POLICIES)


def test_every_format_to_export_to_has_a_writer() -> None:
    assert list(WRITERS) == list(EXPORT_FORMATS)


def test_every_engine_has_what_loads_it_and_the_reference_is_tried_last() -> None:
    assert list(ENGINES) == list(TOKENIZER_ENGINES)
    assert list(ENGINES)[-1] == REFERENCE


def test_every_format_of_rows_has_a_reader() -> None:
    assert set(ROW_FORMATS) == set(FORMATS) - {"python"}
    for name, row_format in ROW_FORMATS.items():
        assert set(row_format.options) <= set(OPTIONS)
        assert set(row_format.keys) - set(NAMED_COLUMNS) <= set(FORMATS[name].columns), name


def test_every_kind_of_text_is_cut_into_lines() -> None:
    assert {*LINES, Container.JSONL} == {kind.container for kind in FILE_KINDS if kind.is_text}
    assert {kind.container for kind in FILE_KINDS} == set(Container)


def test_every_order_of_rows_has_rows() -> None:
    assert set(ROWS_AT) == set(Order)


def test_every_decision_about_a_document_is_an_outcome() -> None:
    assert set(OUTCOMES) == {"", UNPROVED, *DECISIONS}


def test_every_strategy_that_does_not_join_documents_places_pieces() -> None:
    assert list(PLACING) == [name for name, strategy in STRATEGIES.items() if not strategy.joins_documents]
    for strategy in STRATEGIES.values():
        assert strategy.fuller is None or STRATEGIES[strategy.fuller].is_packing
        assert strategy.cuts_documents or not strategy.joins_documents
