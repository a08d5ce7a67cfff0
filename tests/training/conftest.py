"""Small packed datasets for everything that reads one."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests import kit

# Without what trains there is nothing to test here.
collect_ignore_glob = [] if all(map(find_spec, ("torch", "transformers", "accelerate"))) else ["*"]
MakePacked = Callable[..., Path]
"""`make(name, documents, max_length=256, parallel=None, strategy="bfd")` gives a finished folder, and for the same name
the same one.
"""


@pytest.fixture(scope="session")
def make_packed(tmp_path_factory: pytest.TempPathFactory) -> MakePacked:
    """Packs documents of very different lengths with the demo's tokenizer."""
    root = tmp_path_factory.mktemp("packed")

    def make(
        name: str,
        documents: int,
        *,
        max_length: int = 256,
        parallel: dict[str, Any] | None = None,
        strategy: str = "bfd",
    ) -> Path:
        out = root / name
        if not out.exists():
            rows = [{"text": f"{name} {i} " * (1 + i * i % 37)} for i in range(documents)]
            kit.write(root / f"{name}.jsonl", rows)
            source = {"name": "text", "format": "text", "path": f"{name}.jsonl"}
            keys = {"truncate": {"max_length": max_length}, "pack": {"parallel": parallel, "strategy": strategy}}
            kit.packed(kit.configure(root, source, out=str(out), **keys))
        return out

    return make


@pytest.fixture(scope="session")
def folder(make_packed: MakePacked) -> Path:
    """Some thirty packed rows in several shards."""
    return make_packed("number", 170)


KEYS: dict[str, Any] = {"holdout": {"fraction": 0.3}, "truncate": {"max_length": 128}}


@pytest.fixture(scope="session")
def two_sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed dataset of conversations and texts with a held-out part, so that not every token is trained."""
    root = tmp_path_factory.mktemp("two-sources")
    asked = [{"role": "user", "content": f"say {i} " * (1 + i % 5)} for i in range(90)]
    said = [{"role": "assistant", "content": f"{i} " * (1 + i % 11)} for i in range(90)]
    kit.write(root / "chats.jsonl", [{"messages": list(turns)} for turns in zip(asked, said, strict=True)])
    kit.write(root / "texts.jsonl", [{"text": f"line {i} " * (1 + i * i % 23)} for i in range(90)])
    return kit.packed(kit.configure(root, "chats", "texts", **KEYS)).folder


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed dataset of preference pairs."""
    return kit.packed(kit.configure(tmp_path_factory.mktemp("pairs"), "choices")).folder


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed dataset of the answers of conversations, which share what comes before them."""
    root = tmp_path_factory.mktemp("shared")
    turns = [{"role": ("user", "assistant")[place % 2], "content": f"say {place} " * 9} for place in range(6)]
    kit.write(
        root / "chats.jsonl", [{"messages": [*turns, {"role": "user", "content": f"{i}"}, turns[1]]} for i in range(20)]
    )
    source = {"name": "chats", "format": "messages", "path": "chats.jsonl", "expand": "per_turn"}
    return kit.packed(kit.configure(root, source, truncate={"max_length": 512}, pack={"share": "row"})).folder


@pytest.fixture(scope="session")
def weighted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed dataset with weights of all three kinds, in which every document counts by its own weight alone."""
    root = tmp_path_factory.mktemp("weighted")
    chats = [
        {
            "messages": [
                {"role": "user", "content": f"say {i}"},
                {"role": "assistant", "content": f"{i} " * (1 + i % 7), "weight": (0.25, 1, 3)[i % 3]},
                {"role": "user", "content": "and then"},
                {"role": "assistant", "content": f"then {i} " * (1 + i % 5)},
            ]
        }
        for i in range(60)
    ]
    kit.write(root / "chats.jsonl", chats)
    texts = [{"text": f"line {i} " * (1 + i * i % 19), "w": (0.5, 2)[i % 2]} for i in range(90)]
    kit.write(root / "texts.jsonl", texts)
    sources = kit.source("chats", loss_weight=1.5), kit.source("texts", keys={"weight": "w"})
    config = kit.configure(root, *sources, mask="assistant", loss={"normalize": "document"}, **KEYS)
    return kit.packed(config).folder
