"""A dataset as somebody else could hand it on, and tests that end though something hangs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit import Config, configure, corpus, write
from tests.support.hostile import patience
from tests.support.whole_run import Whole, whole_run


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    with patience(600):
        yield


def _plain(folder: Path) -> Config:
    write(folder / "texts.jsonl", [*corpus("texts", 60), {"text": 5}])
    write(folder / "chats.jsonl", corpus("chats", 30))
    return configure(folder, "texts", "chats", holdout={"fraction": 0.2})


@pytest.fixture(scope="session")
def _finished(tmp_path_factory: pytest.TempPathFactory, tokenizer_loader: None) -> Whole:
    folder = tmp_path_factory.mktemp("plain")
    return whole_run(folder, _plain(folder))


@pytest.fixture
def foreign(_finished: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished dataset with its inputs beside it and the cache that its notes name, in a folder of its own."""
    _finished.copy(tmp_path, "out", "cache", "user")
    monkeypatch.setenv("PACKTRAIN_CACHE", str(tmp_path / "user"))
    return tmp_path / "out"


@pytest.fixture
def config(_finished: Whole, tmp_path: Path) -> Config:
    """The configuration of `foreign`."""
    return {**_finished.config, "out": str(tmp_path / "out"), "cache": str(tmp_path / "cache")}
