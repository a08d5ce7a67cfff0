"""Plain texts, by eye."""

import pytest
from packtrain.schemas.errors import RowRejectedError
from packtrain.schemas.rows import Example
from packtrain.stages.prep import Options
from packtrain.stages.prep.text import TextFormat


def test_a_text_is_carried_as_it_is() -> None:
    made = TextFormat()
    assert made.examples(made.decode(b'{"text": " a\\n\\u0000"}'), 9) == [
        Example(9, -1, "", None, None, " a\n\0", None)
    ]


def test_another_key() -> None:
    made = TextFormat(Options(keys={"text": "body"}))
    assert made.decode('{"text": 1, "body": "é"}'.encode()).text == "é"
    with pytest.raises(RowRejectedError, match="missing_key: the row has no `body`"):
        made.decode(b'{"text": "a"}')
