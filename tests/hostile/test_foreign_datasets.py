"""Datasets of other people: their content is checked, never executed, and never followed out of the folder."""

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from packtrain.schemas.errors import IntegrityError, PacktrainError

from tests.kit import Config, cli, configure, lines, packed, saved, source, tree
from tests.support import warm
from tests.support.hostile import ACTIVE, EVIL, SECRET, forge, leaves, patience, put, ran

COMMANDS: tuple[tuple[str, ...], ...] = (
    ("verify",),
    ("verify", "--deep"),
    ("inspect",),
    ("inspect", "--id", "1"),
    ("report",),
    ("loader", "--steps", "1", "--rows-per-step", "2"),
)
"""Every way to open a dataset that only reads it."""


def outcome(command: tuple[str, ...], folder: Path) -> tuple[int, str]:
    """The exit code of a command on a dataset, and what it said. It said so in words, and without control."""
    if command[0] == "loader":
        pytest.importorskip("torch")
    done = cli(command[0], folder, *command[1:])
    said = done.out + done.err
    assert done.code in (0, 1, 2), done
    assert "Traceback" not in said
    assert not ACTIVE.search(said), (command, said)
    return done.code, said


BAD_NAMES = (
    *("../secret", "/etc/passwd", "shards/../../secret", "", "a/./b", "s3://b/x", "a\\b", "a\nb", "a\x00b", EVIL),
)


@pytest.mark.parametrize(
    "name", [*BAD_NAMES[:2], *(pytest.param(name, marks=pytest.mark.slow) for name in BAD_NAMES[2:])]
)
def test_a_name_in_a_manifest_stays_in_the_folder(foreign: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_text(SECRET)
    whole = (foreign / "manifest.json").read_bytes()
    for place in (("splits", "train", "shards", 0, "name"), ("files", 0, "name")):
        (foreign / "manifest.json").write_bytes(whole)
        forge(foreign, lambda content, place=place: put(content, place, name))  # type: ignore[misc]
        for command in (("verify", "--deep"), ("inspect", "--row", "0")):
            code, said = outcome(command, foreign)
            assert code == 1
            assert "is not a name below the folder" in said.replace("\n", " ")
            assert SECRET not in said
    assert (tmp_path / "secret").read_text() == SECRET


def test_a_hash_in_a_manifest_is_a_hash(foreign: Path) -> None:
    place = ("splits", "train", "shards", 0, "hash")
    forge(foreign, lambda content: put(content, place, "../../../../etc/passwd"))
    for command in COMMANDS[:4]:
        code, said = outcome(command, foreign)
        assert code == 1
        assert "is not a hash" in said


NASTY: tuple[Any, ...] = (
    *("../secret", "/etc/passwd", EVIL, "x" * 100_000, "python:os:system", "s3://bucket/x", "{{ 7 * 7 }}", ""),
    *(-1, 10**30, 1.5, 1e308, True, None, [], {}, [[[[[]]]]], {"a": {"b": EVIL}}, [EVIL] * 3),
)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_whatever_stands_in_the_notes_of_a_dataset(foreign: Path, config: Config, tmp_path: Path, seed: int) -> None:
    """Values of every JSON file are replaced, hashes made to fit. Everybody refuses it in words, or takes no harm."""
    (tmp_path / "secret").write_text(SECRET)
    chance = random.Random(seed)
    inputs = {path: path.read_bytes() for path in tmp_path.glob("*.jsonl*")}
    notes = sorted(path.relative_to(foreign).as_posix() for path in foreign.rglob("*.json"))
    kept, repair = tmp_path / "kept", ("verify", "--repair", str(saved(config)))
    shutil.copytree(foreign, kept)
    for _ in range(10):
        name = chance.choice([*notes, "manifest.json", "manifest.json"])
        place = chance.choice(list(leaves(json.loads((foreign / name).read_bytes()))))
        nasty = chance.choice(NASTY)
        forge(foreign, lambda content, place=place, nasty=nasty: put(content, place, nasty), name)  # type: ignore[misc]
        for command in [*chance.sample(COMMANDS, 3), repair]:
            try:
                _, said = outcome(command, foreign)
            except Exception as error:
                error.add_note(f"{command} with {nasty!r} in {name} at {place}")
                raise
            assert SECRET not in said
            assert "root:" not in said
        shutil.rmtree(foreign)
        shutil.copytree(kept, foreign)
    assert (tmp_path / "secret").read_text() == SECRET
    assert {path: path.read_bytes() for path in tmp_path.glob("*.jsonl*")} == inputs
    assert {path.name for path in tmp_path.iterdir()} <= {
        *("secret", "kept", "out", "cache", "config.json", "user", ".packtrain-cache"),
        *(path.name for path in inputs),
    }


@pytest.mark.parametrize(
    "which", ["train/shards/*.arrow", "rejects.jsonl", "_run/plan.json", "_run/run.json", "_run/layout/*"]
)
def test_links_out_of_the_folder_are_not_followed(foreign: Path, config: Config, tmp_path: Path, which: str) -> None:
    path = next(foreign.glob(which))
    outside = tmp_path / "outside"
    path.replace(outside)
    path.symlink_to(outside)
    before = {one: one.is_symlink() or one.read_bytes() for one in foreign.rglob("*") if one.is_file()}
    for command in (("verify",), ("verify", "--deep"), ("verify", "--repair", str(saved(config)))):
        code, said = outcome(command, foreign)
        assert code == 1
        assert "is a link that leads out of" in said.replace("\n", " ")
    assert {one: one.is_symlink() or one.read_bytes() for one in foreign.rglob("*") if one.is_file()} == before
    path.unlink()
    path.symlink_to(os.path.relpath(foreign / "inside", path.parent))
    outside.replace(foreign / "inside")
    assert outcome(("verify",), foreign)[0] == 0, "a link within it is as good as a file"


@pytest.mark.parametrize("which", ["train", "_run"])
def test_nothing_is_written_through_a_linked_folder(foreign: Path, config: Config, tmp_path: Path, which: str) -> None:
    (foreign / which).replace(tmp_path / "outside")
    (foreign / which).symlink_to(tmp_path / "outside")
    before = {path: path.read_bytes() for path in (tmp_path / "outside").rglob("*") if path.is_file()}
    for manifest in ((foreign / "manifest.json").read_text(), "{}"):
        (foreign / "manifest.json").write_text(manifest)
        code, said = outcome(("verify", "--repair", str(saved(config))), foreign)
        assert code == 1
        assert "leads out of" in said
    assert {path: path.read_bytes() for path in (tmp_path / "outside").rglob("*") if path.is_file()} == before


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(foreign: Path) -> None:
    shard = next(foreign.glob("train/shards/*"))
    shard.unlink()
    os.mkfifo(shard)
    with patience():
        code, said = outcome(("verify",), foreign)
    assert code == 1
    assert f"{shard.name}isnotaregularfile" in "".join(said.split())


# Code that a dataset names


@pytest.fixture
def with_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer_loader: None) -> Path:
    """A folder with a dataset whose reader leaves a mark where it runs, made by another process."""
    home = tmp_path / "theirs"
    home.mkdir()
    (home / "mine.py").write_text(ran(tmp_path) + "def read(row):\n    return {'text': row['a']}\n")
    (home / "rows.jsonl").write_bytes(lines({"a": f"up and down {number}"} for number in range(30)))
    own = {**source("texts", format="python:mine:read", path="rows.jsonl"), "name": "own"}
    config = configure(home, own, truncate={"max_length": 64})
    elsewhere(tmp_path, "run", saved(config))
    return home


def elsewhere(folder: Path, *words: object) -> None:
    """Run a command that may run the reader in another process, so that this one has not imported it."""
    done = warm.run(words)
    assert done.returncode == 0, done
    (folder / "ran").unlink()


@pytest.mark.slow
def test_code_that_a_dataset_names_is_never_run(with_reader: Path, tmp_path: Path) -> None:
    out = with_reader / "out"
    for cache in (True, False):
        if not cache:
            shutil.rmtree(with_reader / "cache")
        commands: list[tuple[str, ...]] = [("inspect", "--id", "own/rows:2"), ("inspect", "--id", "1"), ("inspect",)]
        for command in commands:
            assert outcome(command, out)[0] == 0, command
            assert not (tmp_path / "ran").exists(), command
        next(out.glob("shards/*")).write_bytes(b"damaged")
        for command in (("verify",), ("report",), ("loader", "--steps", "1"), ("inspect",)):
            outcome(command, out)
            assert not (tmp_path / "ran").exists(), command
        elsewhere(tmp_path, "verify", out, "--repair", with_reader / "config.json")
    done = cli("inspect", out, "--id", "own/rows:2")
    assert (done.code, "packed" in done.out, (tmp_path / "ran").exists()) == (0, True, False)


def test_records_of_a_cache_name_files_of_the_cache(foreign: Path, config: Config, tmp_path: Path) -> None:
    before = tree(foreign)
    shutil.rmtree(foreign)
    moved = 0
    for record in sorted((tmp_path / "cache").rglob("*.json")):
        value = json.loads(record.read_bytes()).get("file", {}).get("name", "")
        if (part := tmp_path / "cache" / value).is_file():
            part.replace(tmp_path / part.name)
            place = record.relative_to(tmp_path / "cache").as_posix()
            forge(tmp_path / "cache", lambda noted, name=part.name: put(noted, ("file", "name"), f"../{name}"), place)  # type: ignore[misc]
            moved += 1
    assert moved
    packed(config)
    assert tree(foreign) == before


def test_the_loader_opens_nothing_else(foreign: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from packtrain.training import PackedLoader

    def load() -> int:
        loader = PackedLoader(foreign, split="train", rows_per_step=1, rank=0, world_size=1)
        return sum(1 for _ in loader)

    assert load() > 1
    shard = next(foreign.glob("train/shards/*"))
    shard.replace(tmp_path / "outside")
    shard.symlink_to(tmp_path / "outside")
    with pytest.raises(IntegrityError, match="is a link that leads out of"):
        load()
    forge(foreign, lambda content: put(content, ("splits", "train", "shards", 0, "name"), "../outside"))
    with pytest.raises(IntegrityError, match="is not a name below the folder"):
        load()
    (foreign / "manifest.json").write_text('{"hash": 1}')
    with pytest.raises(PacktrainError, match="manifest"):
        load()


def test_a_trainer_hands_on_no_file_that_a_note_names(foreign: Path, tmp_path: Path) -> None:
    """A chat template is taken from where the run had it only if it is still the one of the rows."""
    pytest.importorskip("torch")
    from packtrain.training.models.tokenizer import find_tokenizer
    from packtrain.training.packed_rows import PackedRows

    (tmp_path / "secret").write_text(SECRET)
    before = find_tokenizer(None, PackedRows(foreign)).chat_template
    forge(
        foreign,
        lambda content: put(content, ("chat_template",), str(tmp_path / "secret")),
        "_run/run.json",
    )
    assert find_tokenizer(None, PackedRows(foreign)).chat_template == before
