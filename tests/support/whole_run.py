"""A folder with inputs and a finished run, to be copied before something is done to it."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kit import Config, configure, corpus, merged, packed, source, tokenizer, tree, write


@dataclass(frozen=True)
class Whole:
    """A folder with inputs, a finished run of them (`out`), its `cache`, and the `user`'s cache; not to be changed."""

    folder: Path
    config: Config
    files: dict[str, str]

    def copy(self, folder: Path, *names: str) -> Config:
        """The inputs, and what is named of `out`, `cache` and `user`, in a folder; the configuration there."""
        folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.iterdir():
            if path.is_file():
                shutil.copy2(path, folder)
            elif path.name in names:
                shutil.copytree(path, folder / path.name, symlinks=True)
        return merged(self.config, {"out": str(folder / "out"), "cache": str(folder / "cache")})


def documents(folder: Path) -> Config:
    """Conversations, documents and compressed pairs; a split that is held out, shards, windows and a reject."""
    write(folder / "texts.jsonl", [*corpus("texts", 70), {"text": 5}])
    write(folder / "pairs.jsonl.gz", corpus("pairs", 40))
    write(folder / "chats.jsonl", corpus("chats", 30))
    return configure(
        folder,
        "texts",
        "chats",
        source("pairs", path="pairs.jsonl.gz"),
        holdout={"fraction": 0.2},
        pack={"window_tokens": 8192},
    )


def choices(folder: Path) -> Config:
    """Preference pairs from Parquet."""
    write(folder / "choices.parquet", corpus("choices", 60))
    return configure(folder, source("choices", path="choices.parquet"))


def whole_run(folder: Path, config: Config) -> Whole:
    """Run a configuration of that folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PACKTRAIN_CACHE", str(folder / "user"))
        packed(config)
        other = {"out": str(folder / "other"), "tokenizer": {"path": str(tokenizer(folder / "tokenizer"))}}
        packed(merged(config, other))  # so that every kind of note in the caches has a neighbour
    return Whole(folder, config, tree(folder / "out"))
