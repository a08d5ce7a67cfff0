"""Datasets of other people: their content is checked, never executed, and never followed out of the folder."""

import json
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline.dataset.open import open_dataset
from packtrain.pipeline.dataset.verify import verify
from packtrain.pipeline.run.driver import run
from packtrain.pipeline.run.repair import repair
from packtrain.pipeline.store.checksummed import seal, unseal
from packtrain.schemas.errors import InputError, IntegrityError
from packtrain.schemas.fingerprint import fingerprint, hash_bytes
from packtrain.schemas.names import check_name
from packtrain.stages.prep.reader import _module
from packtrain.training.rows import PackedRows
from packtrain.training.trainer.export import find_tokenizer, template_text

SECRET = "nobody but me reads this"


@pytest.fixture
def foreign(little: Any, tmp_path: Path) -> Path:
    """A dataset as somebody else could hand it on."""
    little.copy(tmp_path)
    return tmp_path / "out"


@pytest.fixture
def patience() -> Iterator[None]:
    """Ends a test that hangs."""

    def give_up(*_: object) -> None:
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def forge(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the manifest, and give it the hash that goes with it."""
    path = folder / "manifest.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    del content["hash"]
    change(content)
    path.write_text(json.dumps({"hash": fingerprint(content), **content}), encoding="utf-8")


def read_all(folder: Path) -> None:
    """As a loader does."""
    rows = PackedRows(folder)
    for index in range(len(rows)):
        rows.row(index)
    assert rows.sizes
    rows.documents()


def everybody(folder: Path) -> dict[str, Callable[[], object]]:
    """Every function that opens a dataset, called so that it reads all of it."""
    return {
        "open": lambda: open_dataset(folder),
        "verify": lambda: verify(folder, deep=True),
        "repair": lambda: repair(folder),
        "loader": lambda: read_all(folder),
    }


BAD_NAMES = [
    "../secret",
    "/etc/passwd",
    "shards/../../secret",
    "shards//x",
    "",
    ".",
    "a/./b",
    "s3://b/x",
    "a\\b",
    "a\nb",
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_in_a_manifest_stays_in_the_folder(foreign: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_text(SECRET)

    def shard(content: dict[str, Any]) -> None:
        content["splits"]["train"]["shards"][0]["name"] = name

    def file(content: dict[str, Any]) -> None:
        content["files"][0]["name"] = name

    whole = (foreign / "manifest.json").read_bytes()
    for change in (shard, file):
        (foreign / "manifest.json").write_bytes(whole)
        forge(foreign, change)
        for who, opens in everybody(foreign).items():
            if who != "repair":  # which makes the manifest again
                with pytest.raises(IntegrityError, match="is not a name below the folder"):
                    opens()
    assert (tmp_path / "secret").read_text() == SECRET


def test_a_hash_in_a_manifest_is_a_hash(foreign: Path) -> None:
    forge(foreign, lambda content: content["splits"]["train"]["shards"][0].update(sha256="../../../../etc/passwd"))
    for who in ("open", "verify", "loader"):
        with pytest.raises(IntegrityError, match="is not a hash"):
            everybody(foreign)[who]()


def test_names_that_packtrain_writes_are_names(foreign: Path) -> None:
    for path in foreign.rglob("*"):
        check_name(path.relative_to(foreign).as_posix())


@pytest.mark.parametrize(
    "which", ["train/shards/*.arrow", "rejects.jsonl", "_run/plan.json", "_run/parts.json", "_run/layout/*"]
)
def test_links_out_of_the_folder_are_not_followed(foreign: Path, tmp_path: Path, which: str) -> None:
    path = next(foreign.glob(which))
    outside = tmp_path / "outside"
    path.replace(outside)
    path.symlink_to(outside)
    before = {one: one.is_symlink() or one.read_bytes() for one in foreign.rglob("*") if one.is_file()}
    for who, opens in everybody(foreign).items():
        if who != "loader" or "shards" in which:  # it has no need of the others
            with pytest.raises(IntegrityError, match=r"is a link that leads out of .*, and is not followed"):
                opens()
    assert {one: one.is_symlink() or one.read_bytes() for one in foreign.rglob("*") if one.is_file()} == before
    path.unlink()
    path.symlink_to(os.path.relpath(foreign / "inside", path.parent))
    outside.replace(foreign / "inside")
    verify(foreign)  # a link within it is as good as a file


@pytest.mark.parametrize("which", ["train", "_run"])
def test_nothing_is_written_through_a_linked_folder(foreign: Path, tmp_path: Path, which: str) -> None:
    (foreign / which).replace(tmp_path / "outside")
    (foreign / which).symlink_to(tmp_path / "outside")
    before = {path: path.read_bytes() for path in (tmp_path / "outside").rglob("*") if path.is_file()}
    for damage in (lambda: None, lambda: (foreign / "manifest.json").write_text("{}")):
        damage()
        with pytest.raises(IntegrityError, match="leads out of"):
            repair(foreign)
    assert {path: path.read_bytes() for path in (tmp_path / "outside").rglob("*") if path.is_file()} == before


def test_a_folder_of_others_is_not_judged(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match=r"has no manifest\.json, so it is not a finished dataset"):
        verify(tmp_path)


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("which", ["manifest.json", "train/shards/*.arrow", "documents.parquet", "_run/plan.json"])
def test_a_named_pipe_keeps_nobody_waiting(foreign: Path, which: str, packtrain: Callable[..., Any]) -> None:
    path = next(foreign.glob(which))
    path.unlink()
    os.mkfifo(path)
    for command in (["verify"], ["verify", "--deep"], ["repair"], ["inspect"], ["report"], ["loader", "--steps", "1"]):
        done = packtrain(*command, str(foreign))
        if command[0] == "loader" and which != "manifest.json":
            continue  # which has no need of the others, or not of this shard
        assert done.code == 1, done
        assert "is not a regular file, and is not opened" in done.err, done


@pytest.fixture
def with_reader(tmp_path: Path, tiny_tokenizer: Path) -> Path:
    """A dataset that a reader was used for, whose code leaves a mark wherever it runs. Its cache is gone."""
    home = tmp_path / "theirs"
    home.mkdir()
    code = f"open({str(tmp_path / 'ran')!r}, 'a').close()\ndef read(row):\n    return {{'text': row['a']}}\n"
    (home / "mine.py").write_text(code)
    (home / "rows.jsonl").write_text("".join(json.dumps({"a": f"up and down {n}"}) + "\n" for n in range(30)))
    config = {
        "out": "out",
        "cache": "cache",
        "tokenizer": {"path": str(tiny_tokenizer), "engine": "tokenizers"},
        "sources": [{"name": "own", "format": "python:mine:read", "path": "rows.jsonl"}],
        "truncate": {"max_length": 64},
        "run": {"workers": 1, "report": False},
    }
    (home / "run.yaml").write_text(json.dumps(config))
    run(home / "run.yaml")
    forget(tmp_path)
    return home


def forget(folder: Path) -> None:
    """As a new process does, which has run no reader."""
    _module.cache_clear()
    (folder / "ran").unlink()


def test_code_that_a_dataset_names_is_never_run(
    with_reader: Path, tmp_path: Path, packtrain: Callable[..., Any]
) -> None:
    out = with_reader / "out"
    for cache in (True, False):
        if not cache:
            shutil.rmtree(with_reader / "cache")
        for command in (["inspect", "--id", "own/rows:2"], ["inspect", "--doc", "1"], ["repair"]):
            if command[0] == "repair":
                next(out.glob("shards/*")).write_bytes(b"damaged")
            done = packtrain(*command, out)
            assert done.code == 2, done
            assert (
                "packtrain only runs code that you name yourself: give the run's configuration with --config"
                in done.err
            )
            assert "python:mine:read" in done.err
            assert not (tmp_path / "ran").exists()
        for command in (["verify"], ["report"], ["loader", "--steps", "1"], ["inspect"], ["clean", "--out"]):
            packtrain(*command, out)
            assert not (tmp_path / "ran").exists(), command
        done = packtrain("repair", out, "--config", with_reader / "run.yaml")
        assert done.code == 0, done
        forget(tmp_path)
    done = packtrain("inspect", out, "--id", "own/rows:2", "--config", with_reader / "run.yaml")
    assert done.code == 0, done
    assert "up and down 1" in done.out
    assert (tmp_path / "ran").exists()


def test_conditions_that_only_a_note_names_are_not_evaluated(
    foreign: Path, tmp_path: Path, packtrain: Callable[..., Any]
) -> None:
    """polars would open the file."""

    def condition(content: dict[str, Any]) -> None:
        content["config"]["sources"][0]["where"] = f"text IN (SELECT * FROM read_csv('{tmp_path}/secret.csv'))"

    noted(foreign, condition)
    next(foreign.glob("train/shards/*")).write_bytes(b"damaged")
    done = packtrain("repair", foreign)
    assert (done.code, "conditions that you write yourself" in done.err) == (2, True), done


def test_a_manifest_alone_names_no_code(with_reader: Path, tmp_path: Path, packtrain: Callable[..., Any]) -> None:
    out = with_reader / "out"
    (out / "manifest.json").write_text("{}")
    done = packtrain("repair", out)
    assert (done.code, (tmp_path / "ran").exists()) == (2, False), done
    assert (out / "manifest.json").read_text() == "{}"


def noted(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change what a run noted of its configuration."""
    path = folder / "_run" / "config.json"
    content = json.loads(unseal(path.read_bytes()) or b"")
    change(content)
    path.write_bytes(seal(json.dumps(content).encode()))


def test_repair_fetches_nothing_that_only_a_note_names(
    foreign: Path, tmp_path: Path, packtrain: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(*_: object) -> None:
        raise AssertionError("it connects")

    monkeypatch.setattr(socket.socket, "connect", connect)
    shutil.rmtree(tmp_path / "cache")
    (foreign / "_run" / "scan.json").unlink()
    next(foreign.glob("train/shards/*")).write_bytes(b"damaged")
    for url in ("http://127.0.0.1:9/x.jsonl", "s3://bucket/x.jsonl", "hf://owner/name", "file:///etc/passwd"):
        noted(foreign, lambda content, url=url: content["config"]["sources"][0].update(path=[url]))  # type: ignore[misc]
        done = packtrain("repair", foreign)
        assert done.code == 2, done
        assert f" names {url}, which would have to be fetched" in done.err
        assert "give the run's configuration with --config" in done.err


def test_repair_writes_nothing_where_only_a_note_says(foreign: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    (mine / "encoded").mkdir(parents=True)
    (mine / "encoded" / "thesis.txt").write_text(SECRET)
    for elsewhere in (mine, tmp_path / "new", "relative"):
        noted(foreign, lambda content, place=elsewhere: content.update(cache=str(place)))  # type: ignore[misc]
        noted(foreign, lambda content: content["config"]["run"].update(scratch=str(tmp_path / "scratch")))
        noted(foreign, lambda content: content.update(base=str(tmp_path)))
        next(foreign.glob("train/shards/*")).write_bytes(b"damaged")
        assert repair(foreign).sound
        assert [path.name for path in mine.rglob("*")] == ["encoded", "thesis.txt"]
        assert not (tmp_path / "new").exists()
        assert not (tmp_path / "scratch").exists()
    assert (tmp_path / ".packtrain-cache" / "encoded").is_dir()


def test_records_of_a_cache_name_parts_of_the_cache(little: Any, tmp_path: Path) -> None:
    config = little.copy(tmp_path, out=False)
    records = sorted((tmp_path / "cache").glob("encoded/*/*.json"))
    for record in records:
        content = json.loads(unseal(record.read_bytes()) or b"")
        part = tmp_path / "cache" / content["part"]
        part.replace(tmp_path / part.name)
        record.write_bytes(seal(json.dumps({**content, "part": f"../{part.name}"}).encode()))
    run(config)
    assert little.files(tmp_path / "out") == little.files()
    for record in records:
        part = json.loads(unseal(record.read_bytes()) or b"")["part"]
        assert (tmp_path / "cache" / part).is_file(), "it was made again"
        assert part.startswith("encoded/")


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.update(plan={}),
        lambda content: content.update(plan=[1]),
        lambda content: content["plan"]["config"]["truncate"].update(max_length="long"),
        lambda content: content["plan"]["config"]["truncate"].update(max_length=10**30),
        lambda content: content.update(schema=[1]),
        lambda content: content["splits"]["train"]["shards"][0].update(rows="many"),
        lambda content: content["splits"]["train"].update(shards=[]),
        lambda content: content["ledger"].update(sources={"a": {"rows_read": "many"}}),
    ],
)
def test_a_manifest_of_another_shape_is_refused_in_words(
    foreign: Path, change: Callable[[dict[str, Any]], None], packtrain: Callable[..., Any]
) -> None:
    forge(foreign, change)
    for command in (["verify"], ["inspect"], ["loader", "--steps", "1", "--rows-per-step", "1"]):
        done = packtrain(*command, foreign)
        assert done.code in (1, 2), done
        assert "manifest" in done.err + done.out or "has no rows" in done.err


def test_a_manifest_that_is_cut_short_is_said_to_be_no_json(foreign: Path, packtrain: Callable[..., Any]) -> None:
    path = foreign / "manifest.json"
    path.write_bytes(path.read_bytes()[:100])
    done = packtrain("verify", foreign)
    assert done.code == 1
    assert "manifest.json is not JSON (" in done.err
    assert "Error(" not in done.err


def test_an_exported_template_is_the_one_of_the_data(foreign: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    request = foreign / "_run" / "request.json"
    noted = json.loads(request.read_text())
    noted["tokenizer"]["chat_template"] = str(secret)
    request.write_text(json.dumps(noted))
    found = find_tokenizer(None, PackedRows(foreign))
    assert found is not None
    assert found[1] is not None
    assert template_text(found[1], "own") == "own", "a file that the note names is not handed on"
    meant = (found[1][0], hash_bytes(SECRET.encode()))
    assert template_text(meant, "own") == SECRET
