"""An undisturbed run for the tests of this folder."""

from pathlib import Path

import pytest

from tests.support import whole_run
from tests.support.whole_run import Whole


@pytest.fixture(scope="session")
def wholes(tmp_path_factory: pytest.TempPathFactory, tokenizer_loader: None) -> dict[str, Whole]:
    """Runs by the name of their function in `whole_run`, made when they are first wanted."""

    class Made(dict[str, Whole]):
        def __missing__(self, name: str) -> Whole:
            folder: Path = tmp_path_factory.mktemp(name)
            self[name] = whole_run.whole_run(folder, getattr(whole_run, name)(folder))
            return self[name]

    return Made()


@pytest.fixture
def whole(wholes: dict[str, Whole], request: pytest.FixtureRequest) -> Whole:
    """The run that a parameter names, of documents by default."""
    return wholes[getattr(request, "param", "documents")]
