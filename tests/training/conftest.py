"""A small packed dataset for everything that reads one."""

import json
from collections.abc import Callable
from pathlib import Path

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
                "pack": {"shuffle": shuffle, "align": align},
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
