"""Repair restores exactly the same bytes, or leaves the dataset as it was."""

import gzip
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline.run.repair import repair
from packtrain.pipeline.run.run import run
from packtrain.schemas.errors import ConfigError, IntegrityError, OutputError


def flip(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


@pytest.fixture(autouse=True)
def sparing(request: pytest.FixtureRequest) -> None:
    """Only repairs by the command do all that a repair does."""
    if "packtrain" not in request.fixturenames:
        request.getfixturevalue("sparing_repairs")


@pytest.fixture
def damaged(little: Any, tmp_path: Path) -> Path:
    """A copied run, without its configuration: what it noted must do. Returns the output."""
    config = little.copy(tmp_path)
    run(config)  # its notes name this folder now
    config.unlink()
    return tmp_path / "out"


def test_all_at_once_by_the_command(little: Any, damaged: Path, packtrain: Callable[..., Any]) -> None:
    chance = random.Random(4)
    for path in sorted(damaged.rglob("*")):
        if path.is_file() and "_run" not in path.parts and path.name not in ("manifest.json", "README.md"):
            flip(path, chance)
    stray = damaged / "train" / "shards" / "00000-0123456789abcdef.arrow"
    stray.write_bytes(b"x")
    assert packtrain("verify", damaged).code == 1
    done = packtrain("verify", damaged, "--repair")
    assert done.code == 0, done
    assert f"removed: train/shards/{stray.name}" in done.out
    assert "0 sound and left alone" in done.out
    assert little.files(damaged) == little.files()
    done = packtrain("verify", damaged, "--repair")
    assert (done.code, "0 files rebuilt" in done.out) == (0, True)


def test_an_input_that_changed_or_is_gone_is_named(little: Any, damaged: Path) -> None:
    shard = sorted((damaged / "train" / "shards").iterdir())[0]
    flip(shard, random.Random(6))
    wrong = little.files(damaged)
    source = damaged.parent / "inputs" / "b.jsonl"
    good = source.read_bytes()
    source.unlink()
    with pytest.raises(ConfigError, match=r"b\.jsonl"):
        repair(damaged)
    source.write_bytes(good.replace(b"mules", b"ponys", 1))
    with pytest.raises(OutputError, match=r"input b of source .*: has changed"):
        repair(damaged)
    assert little.files(damaged) == wrong, "what is there is left as it is"
    source.write_bytes(good)
    assert repair(damaged).sound
    assert little.files(damaged) == little.files()


def test_inputs_that_have_moved_are_found_by_a_configuration(little: Any, damaged: Path) -> None:
    config = json.loads(little.config.read_text())
    (damaged.parent / "inputs").rename(damaged.parent / "elsewhere")
    (damaged / "train" / "rows.arrow").unlink()
    with pytest.raises(ConfigError):
        repair(damaged)
    for source in config["sources"]:
        source["path"] = source["path"].replace("inputs", "elsewhere")
    assert repair(damaged, config=config, base=damaged.parent).sound
    assert little.files(damaged) == little.files()
    (damaged / "train" / "rows.arrow").unlink()
    config["seed"] = 1
    with pytest.raises(OutputError, match=r"seed: 42 → 1"):
        repair(damaged, config=config, base=damaged.parent)


def test_a_copy_without_notes_needs_a_configuration(little: Any, damaged: Path) -> None:
    shutil.rmtree(damaged / "_run")
    (damaged / "train" / "rows.arrow").unlink()
    with pytest.raises(ConfigError, match="--config"):
        repair(damaged)
    assert repair(damaged, config=json.loads(little.config.read_text()), base=damaged.parent).sound
    assert little.files(damaged) == little.files()


def test_files_that_cannot_be_made_again_leave_the_manifest(little: Any, damaged: Path) -> None:
    """A manifest of another version of a library, then one with another hash of a shard."""
    from packtrain.schemas.manifest import Manifest

    path = damaged / "manifest.json"
    whole = path.read_bytes()
    content = json.loads(whole)
    content["splits"]["train"]["shards"][0]["hash"] = "0" * 64
    path.write_bytes(Manifest.from_json(content).to_bytes())
    before = little.files(damaged)
    with pytest.raises(IntegrityError, match=r"do not match .*manifest\.json"):
        repair(damaged)
    assert {name: data for name, data in little.files(damaged).items() if name in before} == before
    content["plan"]["versions"]["pyarrow"] = "1.0"
    path.write_bytes(Manifest.from_json(content).to_bytes())
    before = little.files(damaged)
    with pytest.raises(OutputError, match="pyarrow"):
        repair(damaged)
    assert little.files(damaged) == before


def test_inputs_that_are_compressed_are_decompressed_again(little: Any, tmp_path: Path) -> None:
    little.copy(tmp_path, out=False, cache=False)
    config = json.loads(little.config.read_text())
    for source in config["sources"]:
        path = tmp_path / source["path"]
        (tmp_path / f"{source['path']}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
        source["path"] += ".gz"
    run(config, base=tmp_path)
    out = tmp_path / "out"
    whole = little.files(out)
    for folder in ("encoded", "blocks", "scans"):
        shutil.rmtree(tmp_path / "cache" / folder, ignore_errors=folder == "scans")  # new files have no note yet
    (out / "documents.parquet").unlink()
    assert repair(out).sound
    assert little.files(out) == whole
