"""Repair restores exactly the same bytes, or leaves the dataset as it was."""

import gzip
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline.dataset.verify import verify
from packtrain.pipeline.run.driver import run
from packtrain.pipeline.run.repair import repair
from packtrain.schemas.errors import ConfigError, InputError, IntegrityError, OutputError


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


def test_every_file_is_made_again(little: Any, damaged: Path) -> None:
    chance = random.Random(3)
    whole = little.files()
    for name, data in whole.items():
        (damaged / name).unlink() if chance.random() < 0.3 and name != "manifest.json" else flip(damaged / name, chance)
        records = {path: path.read_bytes() for path in (damaged / "_run").rglob("shards/*.json")}
        done = repair(damaged)
        assert done.sound
        assert done.rebuilt == (name,)
        assert little.files(damaged) == whole
        again = {path: path.read_bytes() for path in (damaged / "_run").rglob("shards/*.json")}
        other = [path for path in records if records[path] != again.get(path)]
        assert len(other) == ("shards/" in name), "it packed what was whole"
        assert data
    assert verify(damaged, deep=True).sound


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


def test_only_the_part_that_is_gone_is_encoded_again(little: Any, damaged: Path) -> None:
    cache = damaged.parent / "cache"
    part = sorted(cache.glob("encoded/*/*.arrow"))[0]
    flip(part, random.Random(5))
    sorted((damaged / "train" / "shards").iterdir())[0].unlink()
    before = {path: path.stat().st_ino for path in cache.glob("encoded/*/*.arrow")}
    assert repair(damaged).sound
    after = {path: path.stat().st_ino for path in cache.glob("encoded/*/*.arrow")}
    assert [path for path in before if before[path] != after[path]] == [part]
    assert little.files(damaged) == little.files()


def test_the_whole_cache_is_gone(little: Any, damaged: Path) -> None:
    shutil.rmtree(damaged.parent / "cache")
    (damaged / "documents.parquet").unlink()
    assert repair(damaged).rebuilt == ("documents.parquet",)
    assert little.files(damaged) == little.files()


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


def test_a_repair_that_was_killed_is_repeated(little: Any, damaged: Path) -> None:
    (damaged / "train" / "rows.arrow").unlink()
    (damaged / "manifest.json").rename(damaged / "_run" / "manifest.damaged")
    assert repair(damaged).rebuilt == ("train/rows.arrow",)
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


@pytest.mark.parametrize(
    "name", ["config.json", "scan.json", "documents.json", "parts.json", "train/shards/00001.json"]
)
def test_damaged_notes_lead_to_no_other_bytes(little: Any, damaged: Path, name: str) -> None:
    flip(damaged / "_run" / name, random.Random(7))
    for path in (damaged / "train" / "shards").iterdir():
        flip(path, random.Random(8))
        break
    if name == "config.json":
        with pytest.raises(ConfigError, match="--config"):
            repair(damaged)
        return
    assert repair(damaged).sound
    assert little.files(damaged) == little.files()


def test_a_manifest_that_cannot_be_read_follows_from_the_plan(little: Any, damaged: Path) -> None:
    for data in (b"", b"{", (damaged / "manifest.json").read_bytes()[:-9]):
        (damaged / "manifest.json").write_bytes(data)
        done = repair(damaged)
        assert (done.sound, done.rebuilt) == (True, ("manifest.json",))
        assert little.files(damaged) == little.files()
    (damaged / "manifest.json").write_bytes(b"")
    (damaged / "_run" / "plan.json").unlink()
    with pytest.raises(ConfigError, match="no longer says how this dataset was made"):
        repair(damaged)


def test_a_damaged_plan_is_written_again(little: Any, damaged: Path) -> None:
    path = damaged / "_run" / "plan.json"
    whole = path.read_bytes()
    for data in (b"", b"{", whole.replace(b"42", b"43", 1)):
        assert data != whole
        path.write_bytes(data)
        done = repair(damaged)
        assert (done.sound, done.rebuilt) == (True, ("_run/plan.json",))
        assert path.read_bytes() == whole


def test_files_that_cannot_be_made_again_leave_the_manifest(little: Any, damaged: Path) -> None:
    """A manifest of another version of a library, then one with another hash of a shard."""
    from packtrain.schemas.manifest import Manifest

    path = damaged / "manifest.json"
    whole = path.read_bytes()
    content = json.loads(whole)
    content["splits"]["train"]["shards"][0]["hash"] = "0" * 64
    path.write_bytes(Manifest.from_json(content).to_bytes())
    before = little.files(damaged)
    with pytest.raises(IntegrityError, match="do not match the manifest: its hash would be"):
        repair(damaged)
    assert {name: data for name, data in little.files(damaged).items() if name in before} == before
    content["plan"]["versions"]["pyarrow"] = "1.0"
    path.write_bytes(Manifest.from_json(content).to_bytes())
    before = little.files(damaged)
    with pytest.raises(OutputError, match="pyarrow"):
        repair(damaged)
    assert little.files(damaged) == before


@pytest.mark.slow
def test_on_an_object_store(little: Any, tmp_path: Path, faulty: Any, packtrain: Callable[..., Any]) -> None:
    config = json.loads(little.copy(tmp_path, out=False, cache=False).read_text())
    client = faulty.client()
    bucket = "mules"  # the server's own; other tests have theirs on it
    place = f"{bucket}/{tmp_path.name}"
    config |= {"out": f"s3://{place}/out", "cache": f"s3://{place}/cache"}
    config["run"] |= {"scratch": str(tmp_path / "cache")}
    run(config, base=tmp_path)
    prefix = f"{tmp_path.name}/out/"

    def held() -> dict[str, bytes]:
        names = [key.removeprefix(prefix) for key in faulty.keys(prefix)]
        objects = {name: client.get_object(Bucket=bucket, Key=prefix + name) for name in names}
        return {
            name: one["Body"].read()
            for name, one in objects.items()
            if not name.startswith(("_run/", "report.", "README."))
        }

    assert held() == little.files()
    shards = sorted(name for name in held() if "/shards/" in name)
    data = bytearray(held()[shards[0]])
    data[999] ^= 4
    client.put_object(Bucket=bucket, Key=prefix + shards[0], Body=bytes(data))
    for name in (shards[-1], "train/rows.arrow"):
        client.delete_object(Bucket=bucket, Key=prefix + name)
    assert packtrain("verify", config["out"], "--deep").code == 1
    done = packtrain("verify", config["out"], "--repair")
    assert (done.code, done.err) == (0, ""), done.out
    assert done.out.count("  rebuilt: ") == 3
    assert held() == little.files()
    assert packtrain("verify", config["out"], "--deep").code == 0


def test_what_is_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no finished dataset to repair"):
        repair(tmp_path)


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
