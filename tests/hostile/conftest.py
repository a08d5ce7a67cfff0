"""A dataset as somebody else could hand it on, and tests that end though something hangs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit import Config
from tests.support.hostile import patience
from tests.support.whole_run import Whole


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    with patience(600):
        yield


@pytest.fixture
def config(wholes: dict[str, Whole], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """The configuration of `foreign`."""
    monkeypatch.setenv("PACKTRAIN_CACHE", str(tmp_path / "user"))
    return wholes["documents"].copy(tmp_path, "out", "cache", "user")


@pytest.fixture
def foreign(config: Config) -> Path:
    """A finished dataset with its inputs beside it and the cache that its notes name, in a folder of its own."""
    return Path(config["out"])
