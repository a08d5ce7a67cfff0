"""An export is complete or not there: what cannot be exported, places that cannot be used, kills."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline.dataset.open_dataset import open_dataset
from packtrain.pipeline.export.export import write_export
from packtrain.pipeline.run.run import run
from packtrain.schemas.tables.export_formats import EXPORT_FORMATS

from tests.support import warm

pytestmark = pytest.mark.xdist_group("exports")
Command = Callable[..., Any]
Made = Callable[[str], Path]


def contents(out: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in out.rglob("*") if path.is_file()}


@pytest.fixture
def refused(packtrain: Command, tmp_path: Path) -> Callable[..., str]:
    """The reason why an export is refused, which must leave nothing behind."""

    def ask(*arguments: object, out: Path | None = None) -> str:
        place = out or tmp_path / "never"
        before = contents(tmp_path)
        done = packtrain("export", *arguments, "--out", place)
        assert (done.code, done.out) == (2, "")
        assert "Traceback" not in done.err
        assert contents(tmp_path) == before
        assert os.path.lexists(place) == (out is not None)
        assert not list(place.parent.glob(".*.part"))
        return str(done.err)

    return ask


def test_a_damaged_dataset(refused: Callable[..., str], made: Made, tmp_path: Path) -> None:
    for shape in ("bfd", "small shards"):
        folder = Path(shutil.copytree(made(shape), tmp_path / shape))
        shard = sorted((folder / "train" / "shards").iterdir())[1]
        whole = shard.read_bytes()
        flipped = bytearray(whole)
        flipped[len(whole) // 2] ^= 4
        for data, reason in ((bytes(flipped), "does not match its hash"), (whole[:-5], "but the manifest says")):
            shard.write_bytes(data)
            said = refused(folder, "--to", "megatron")
            assert f"{folder} is damaged: {shard.relative_to(folder)}" in said
            assert reason in said
            assert f"packtrain verify {folder} --repair rebuilds it" in said
        shard.unlink()
        assert "is missing" in refused(folder, "--to", "megatron")
        manifest = folder / "manifest.json"
        manifest.write_bytes(manifest.read_bytes().replace(b'"rows": 1', b'"rows": 2'))
        assert f"{manifest} was changed after it was written" in refused(folder, "--to", "megatron")


def test_rows_that_do_not_fit(refused: Callable[..., str], made: Made, read_rows: Callable[..., Any]) -> None:
    inside = read_rows(made("bfd"))[0]["input_ids"][1]
    said = refused(made("bfd"), "--to", "olmo-core", "--eos-id", inside)
    assert f"a document has the end-of-sequence token {inside} inside, where NumpyFSLDataset would cut it" in said
    said = refused(made("bfd"), "--to", "olmo-core", "--eos-id", 400_000)
    assert "or does not end with it, and would be joined to the next one" in said
    rows = [row["input_ids"][:-1] for row in read_rows(made("alone"))]
    second = open_dataset(made("alone")).manifest.splits["train"].shards[0].rows  # the first row of the second shard
    late, new = next(
        (late, id) for late in range(second + 1, len(rows)) for id in {*rows[late]} - set().union(*rows[:late])
    )
    assert f"row {late} of split train cannot" in refused(made("alone"), "--to", "olmo-core", "--eos-id", new)


@pytest.mark.parametrize(("behind", "outcome"), [("\\n", "counted"), ("", "refused"), ("never trained", "none")])
def test_labels_that_megatron_bridge_does_not_train(
    packtrain: Command, little: Any, tmp_path: Path, behind: str, outcome: str
) -> None:
    """The one right behind an end-of-sequence token: white space is counted, a word of a turn is refused."""
    separator = "\\n" if outcome == "none" else behind
    template = "{% for message in messages %}{{ message.content + eos_token + '" + separator + "' }}{% endfor %}"
    (tmp_path / "template.jinja").write_text(template)
    messages = [{"role": role, "content": f"words of {role}"} for role in ("user", "assistant", "user", "assistant")]
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": messages}) + "\n")
    tokenizer = json.loads(little.config.read_text())["tokenizer"]
    config = {
        "out": "packed",
        "tokenizer": {**tokenizer, "chat_template": "template.jinja"},
        "sources": [{"name": "chats", "format": "messages", "path": "chats.jsonl"}],
        "mask": "assistant" if outcome == "none" else "all",
        "run": {"workers": 1, "report": False},
    }
    run(config, base=tmp_path)
    done = packtrain("export", tmp_path / "packed", "--to", "megatron-bridge", "--out", tmp_path / "out")
    if outcome == "refused":
        assert done.code == 2
        assert "row 0 of split train cannot be exported to megatron-bridge: 'words'" in done.err
        assert "Megatron-Bridge would not train it" in done.err
        assert not (tmp_path / "out").exists()
    else:
        assert done.code == 0, done.err
        assert ("does not train 4 labels right behind" in done.out) == (outcome == "counted")


def test_a_manifest_that_would_lead_elsewhere(refused: Callable[..., str], made: Made, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made("bfd"), tmp_path / "evil"))
    manifest = open_dataset(folder).manifest
    for name in ("../../away", "a/b", ".hidden", "x\x1b[2J", ""):
        splits = {name: manifest.splits["train"]}
        (folder / "manifest.json").write_bytes(replace(manifest, splits=splits).to_bytes())
        said = refused(folder, "--to", "megatron")
        assert "its manifest has a split named" in said
        assert "\x1b" not in said


def test_an_empty_folder_is_taken_and_the_bytes_are_a_function_of_the_rows(
    packtrain: Command, made: Made, tmp_path: Path
) -> None:
    (tmp_path / "one").mkdir()
    shutil.copytree(made("bfd"), tmp_path / "moved")
    for to in EXPORT_FORMATS:
        for source, out in ((made("bfd"), "one"), (tmp_path / "moved", "two")):
            done = packtrain("export", source, "--to", to, "--out", tmp_path / out)
            assert done.code == 0, done.err
        assert contents(tmp_path / "one") == contents(tmp_path / "two")
        shutil.rmtree(tmp_path / "one")
        shutil.rmtree(tmp_path / "two")


KILLER = """
import os, signal, pathlib

def killing(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)

pathlib.Path.rename = killing
"""


@pytest.mark.slow
def test_a_killed_export_is_not_there_and_the_next_one_is_whole(made: Made, tmp_path: Path) -> None:
    command = ["export", made("bfd"), "--to", "mds", "--out", tmp_path / "out"]
    process = warm.Process(command, env=dict(os.environ), patch=KILLER)
    process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    write_export(made("bfd"), tmp_path / "out", "mds")
    write_export(made("bfd"), tmp_path / "other", "mds")
    assert contents(tmp_path / "out") == contents(tmp_path / "other")


def test_a_split_without_rows(little: Any, tmp_path: Path) -> None:
    """A held-out part that nothing fell into has a shard all the same."""
    (tmp_path / "one.jsonl").write_text('{"text": "the mules left before sun was up"}\n')
    tokenizer = json.loads(little.config.read_text())["tokenizer"]
    config = {
        "out": "packed",
        "tokenizer": tokenizer,
        "sources": [{"name": "one", "format": "text", "path": "one.jsonl"}],
        "holdout": {"fraction": 0.0001},
        "run": {"workers": 1, "report": False},
    }
    manifest = run(config, base=tmp_path)
    assert [split.rows for split in manifest.splits.values()] in ([1, 0], [0, 1])
    for to in EXPORT_FORMATS:
        made = write_export(tmp_path / "packed", tmp_path / to, to, eos_id=400_000 if to == "olmo-core" else None)
        assert sorted(split["rows"] for split in made["splits"].values()) == [0, 1]
