"""A small packed dataset for everything that reads one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline import demo
from packtrain.pipeline.run.driver import run

MakePacked = Callable[..., Path]
"""`make(name, documents, max_length=256, **config)` gives a finished folder; the same name gives the same folder."""


@pytest.fixture(scope="session")
def make_packed(tmp_path_factory: pytest.TempPathFactory) -> MakePacked:
    """Packs documents of very different lengths with the demo's tokenizer."""
    root = tmp_path_factory.mktemp("packed")

    def make(
        name: str,
        documents: int,
        *,
        max_length: int = 256,
        shard_bytes: str = "64KiB",
        shuffle: bool = True,
        align: int = 1,
        parallel: dict[str, Any] | None = None,
    ) -> Path:
        out = root / name
        if out.exists():
            return out
        rows = root / f"{name}.jsonl"
        lines = [json.dumps({"text": f"{name} {i} " * (1 + i * i % 37)}) for i in range(documents)]
        rows.write_text("\n".join(lines) + "\n")
        run(
            {
                "out": str(out),
                "tokenizer": {"path": str(Path(demo.__file__).parent / "tokenizer")},
                "sources": [{"name": "text", "format": "text", "path": str(rows)}],
                "truncate": {"max_length": max_length},
                "pack": {"shuffle": shuffle, "align": align, "parallel": parallel},
                "output": {"shard_bytes": shard_bytes},
                "run": {"workers": 1, "report": False},
            }
        )
        return out

    return make


@pytest.fixture(scope="session")
def folder(make_packed: MakePacked) -> Path:
    """Some thirty packed rows in several shards."""
    return make_packed("number", 170)


@pytest.fixture(scope="session")
def two_sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed dataset of conversations and texts with a held-out part, so that not every token is trained."""
    root = tmp_path_factory.mktemp("two-sources")
    asked = [{"role": "user", "content": f"say {i} " * (1 + i % 5)} for i in range(90)]
    said = [{"role": "assistant", "content": f"{i} " * (1 + i % 11)} for i in range(90)]
    chats = [{"messages": list(turns)} for turns in zip(asked, said, strict=True)]
    texts = [{"text": f"line {i} " * (1 + i * i % 23)} for i in range(90)]
    for name, rows in (("chats", chats), ("texts", texts)):
        (root / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run(
        {
            "out": str(root / "packed"),
            "tokenizer": {"path": str(Path(demo.__file__).parent / "tokenizer")},
            "sources": [
                {"name": "chats", "format": "messages", "path": str(root / "chats.jsonl")},
                {"name": "texts", "format": "text", "path": str(root / "texts.jsonl")},
            ],
            "holdout": {"fraction": 0.3},
            "truncate": {"max_length": 128},
            "run": {"workers": 1, "report": False},
        }
    )
    return root / "packed"


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
    texts = [{"text": f"line {i} " * (1 + i * i % 19), "w": (0.5, 2)[i % 2]} for i in range(90)]
    for name, rows in (("chats", chats), ("texts", texts)):
        (root / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run(
        {
            "out": str(root / "packed"),
            "tokenizer": {"path": str(Path(demo.__file__).parent / "tokenizer")},
            "sources": [
                {"name": "chats", "format": "messages", "path": str(root / "chats.jsonl"), "loss_weight": 1.5},
                {"name": "texts", "format": "text", "path": str(root / "texts.jsonl"), "keys": {"weight": "w"}},
            ],
            "mask": "assistant",
            "loss": {"normalize": "document"},
            "holdout": {"fraction": 0.3},
            "truncate": {"max_length": 128},
            "run": {"workers": 1, "report": False},
        }
    )
    return root / "packed"
