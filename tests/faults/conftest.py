"""An undisturbed run for the tests of this folder."""

import pytest

from tests.support.whole_run import Whole


@pytest.fixture
def whole(wholes: dict[str, Whole], request: pytest.FixtureRequest) -> Whole:
    """The run that a parameter names, of documents by default."""
    return wholes[getattr(request, "param", "documents")]
