"""Repair restores exactly the same bytes, or leaves the dataset as it was."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline.run.repair import repair
from packtrain.schemas.errors import ConfigError, IntegrityError, OutputError


def flip(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


@pytest.fixture
def config(little: Any, tmp_path: Path) -> Path:
    """The configuration of a copied run, whose output is `out` beside it."""
    copied: Path = little.copy(tmp_path)
    return copied


def test_all_at_once_by_the_command(little: Any, config: Path, packtrain: Callable[..., Any]) -> None:
    chance, out = random.Random(4), config.parent / "out"
    for path in sorted(out.rglob("*")):
        if path.is_file() and "_run" not in path.parts and path.name not in ("manifest.json", "README.md"):
            flip(path, chance)
    shutil.rmtree(out / "_run")
    stray = out / "train" / "shards" / "00000-0123456789abcdef.arrow"
    stray.write_bytes(b"x")
    assert packtrain("verify", out).code == 1
    done = packtrain("verify", out, "--repair", config)
    assert (done.code, f"still wrong: train/shards/{stray.name}: is not in the manifest" in done.out) == (1, True)
    stray.unlink()
    assert little.files(out) == little.files()
    done = packtrain("verify", out, "--repair", config)
    assert (done.code, "was wrong" in done.out) == (0, False)


def test_what_no_longer_fits_is_named_and_nothing_is_changed(little: Any, config: Path) -> None:
    out = config.parent / "out"
    flip(min((out / "train" / "shards").iterdir()), random.Random(6))
    wrong = little.files(out)
    source = config.parent / "inputs" / "b.jsonl"
    good = source.read_bytes()
    source.unlink()
    with pytest.raises(ConfigError, match=r"b\.jsonl"):
        repair(out, config)
    source.write_bytes(good.replace(b"mules", b"ponys", 1))
    with pytest.raises(OutputError, match=r"inputs .*/b: .* bytes, .* → .* bytes, "):
        repair(out, config)
    source.write_bytes(good)
    with pytest.raises(OutputError, match=r"seed: 42 → 1"):
        repair(out, json.loads(config.read_text()) | {"seed": 1}, base=config.parent)
    assert little.files(out) == wrong
    assert repair(out, config).sound
    assert little.files(out) == little.files()


def test_files_that_cannot_be_made_again_leave_the_manifest(little: Any, config: Path) -> None:
    """A manifest of another version of a library, then one with another hash of a shard."""
    from packtrain.schemas.dataset.manifest import Manifest

    out = config.parent / "out"
    path = out / "manifest.json"
    content = json.loads(path.read_bytes())
    content["splits"]["train"]["shards"][0]["hash"] = "0" * 64
    path.write_bytes(Manifest.from_json(content).to_bytes())
    before = little.files(out)
    with pytest.raises(IntegrityError, match=r"do not match .*manifest\.json"):
        repair(out, config)
    assert {name: data for name, data in little.files(out).items() if name in before} == before
    content["plan"]["versions"]["pyarrow"] = "1.0"
    path.write_bytes(Manifest.from_json(content).to_bytes())
    before = little.files(out)
    with pytest.raises(OutputError, match="pyarrow"):
        repair(out, config)
    assert little.files(out) == before
