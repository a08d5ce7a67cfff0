"""The prepared folders of the documentation's tests."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.append(str(Path(__file__).parent))

if TYPE_CHECKING:
    from tests.docs.block_checks import mix
    from tests.docs.prepared import Prepared
else:
    from block_checks import mix
    from prepared import Prepared


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """See `Prepared`."""
    return Prepared(tmp_path_factory.mktemp("prepared"), mix())
