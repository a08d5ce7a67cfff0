"""The prepared folders of the documentation's tests."""

import pytest

from tests.docs.block_checks import mix
from tests.docs.prepared import Prepared


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """See `Prepared`."""
    return Prepared(tmp_path_factory.mktemp("prepared"), mix())
