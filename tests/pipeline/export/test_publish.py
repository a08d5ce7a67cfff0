"""Datasets published to a stand-in for the Hub (`tests/support/hub_stand_in.py`), by the real huggingface_hub."""

import getpass
import json
import os
import re
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline.dataset.open import open_dataset
from packtrain.pipeline.export.driver import export, open_source
from packtrain.pipeline.export.options import export_options
from packtrain.pipeline.export.publish import EXTRAS, own_staging, publish
from packtrain.pipeline.export.verify import verify_export
from packtrain.pipeline.observer import Silent
from packtrain.pipeline.report.card import is_untouched
from packtrain.pipeline.report.markdown import split_front
from packtrain.schemas.errors import InputError, PacktrainError
from packtrain.schemas.fingerprint import fingerprint

from tests.support import warm
from tests.support.hub_stand_in import READER, STRANGER, WRITER, Blob, HubStandIn, taken_for_the_hub

library = pytest.importorskip("huggingface_hub")
pytestmark = pytest.mark.xdist_group("exports")
Made = Callable[[str], Path]
HERE = "hf://me/packed"


class Notes(Silent):
    """Keeps the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubStandIn]:
    """See `taken_for_the_hub`."""
    with taken_for_the_hub(monkeypatch, tmp_path) as stand_in:
        yield stand_in


def loaded(hub: HubStandIn, folder: Path, name: str = "me/packed", revision: str | None = None) -> Any:
    """What the repository holds, downloaded as others do, and opened by `datasets`."""
    import datasets

    place = library.snapshot_download(
        name, repo_type="dataset", revision=revision, local_dir=folder / "got", endpoint=hub.url, token=WRITER
    )
    return datasets.load_dataset(place, cache_dir=str(folder / "read"))


def puts(hub: HubStandIn) -> int:
    """Uploads of large files."""
    return hub.count("PUT", "/storage/")


@pytest.mark.parametrize("shape", ["bfd", "parquet", "parallel"])
def test_what_is_published_is_the_dataset(made: Made, hub: HubStandIn, tmp_path: Path, shape: str) -> None:
    import datasets

    done = publish(made(shape), HERE, workers=1)
    dataset = open_dataset(made(shape))
    assert done.listing.dataset == dataset.manifest.hash
    assert done.commit == hub.repositories["me/packed"].branches["main"][-1].hash
    assert len(hub.repositories["me/packed"].branches["main"]) == 2
    held = hub.files("me/packed")
    assert set(held) == {".gitattributes", *(file.name for file in done.listing.files)}
    assert {file.name: file.bytes for file in done.sent} == {name: len(held[name]) for name in held if name[0] != "."}
    rows = loaded(hub, tmp_path)
    assert set(rows) == set(dataset.manifest.splits)
    if shape == "bfd":
        saved = datasets.load_from_disk(str(made(shape)))
        assert all(rows[split][:] == saved[split][:] for split in rows)
    for split, record in dataset.manifest.splits.items():
        found = [batch for shard in record.shards for batch in dataset.batches(shard)]
        assert rows[split]["input_ids"][:] == [row for batch in found for row in batch.column("input_ids").to_pylist()]
        assert rows[split]["doc_ids"][:] == [row for batch in found for row in batch.column("doc_ids").to_pylist()]
    assert puts(hub) == sum(name.endswith(".parquet") for name in held) >= 3
    assert verify_export(tmp_path / "got", deep=True).sound, "who downloads it can check it"
    assert 'load_dataset("me/packed")' in held["README.md"].decode()
    assert not list((tmp_path / "cache" / "publish").iterdir())


def test_a_second_time_does_nothing(made: Made, hub: HubStandIn, tmp_path: Path) -> None:
    first = publish(made("bfd"), HERE, workers=1)
    hub.asked.clear()
    notes = Notes()
    second = publish(made("bfd"), HERE, workers=1, observer=notes)
    assert (second.sent, second.commit, second.url) == ((), first.commit, first.url)
    assert second.listing.files[0].name == first.listing.files[0].name
    assert {file.name: file.bytes for file in second.listing.files} == {
        file.name: file.bytes for file in first.listing.files
    }
    assert {method for method, _ in hub.asked} == {"GET", "HEAD"}
    assert notes.notes == ["hf://me/packed already holds this dataset; nothing to do"]
    assert len(hub.repositories["me/packed"].branches["main"]) == 2


# Faults


def killing(
    hub: HubStandIn, process: warm.Process, method: str, part: str, at: int
) -> Callable[[str, str], str | None]:
    """Kills the client when it asks for something the `at`-th time, and does not answer."""
    seen, lock = [0], threading.Lock()

    def fault(asked: str, path: str) -> str | None:
        with lock:
            if asked == method and part in path:
                seen[0] += 1
                if seen[0] >= at:
                    if seen[0] == at:
                        os.kill(process.pid, signal.SIGKILL)
                    return "drop"
        return None

    return fault


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "part", "at"), [("PUT", "/storage/", 1), ("PUT", "/storage/", 3), ("POST", "/commit/", 1)]
)
def test_a_killed_upload_goes_on_and_sends_only_what_is_missing(
    made: Made, hub: HubStandIn, tmp_path: Path, method: str, part: str, at: int
) -> None:
    command = ["publish", made("bfd"), HERE, "--workers", 1]
    process = warm.Process(command, env=dict(os.environ))
    hub.fault = killing(hub, process, method, part, at)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    hub.fault = lambda method, path: None
    arrived = set(hub.repositories["me/packed"].objects)
    assert set(hub.files("me/packed")) == {".gitattributes"}, "a reader saw a part"
    if method == "POST":
        assert len(arrived) >= 3
    hub.asked.clear()
    process = warm.Process(command, env=dict(os.environ))
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    held = hub.files("me/packed")
    total = sum(name.endswith(".parquet") for name in held)
    assert puts(hub) == total - len(arrived)
    assert WRITER not in out + err
    publish(made("bfd"), "hf://me/undisturbed", workers=1)
    other = hub.files("me/undisturbed")
    assert {name: data for name, data in held.items() if name != "README.md"} == {
        name: data for name, data in other.items() if name != "README.md"
    }
    hub.asked.clear()
    assert publish(made("bfd"), HERE, workers=1).sent == ()
    assert puts(hub) == 0


@pytest.mark.parametrize("what", [503, "drop"])
def test_a_hub_that_fails_now_and_then(made: Made, hub: HubStandIn, what: int | str) -> None:
    seen: list[str] = []

    def fault(method: str, path: str) -> int | str | None:
        if method == "PUT" and path not in seen:
            seen.append(path)
            return what
        return None

    hub.fault = fault
    done = publish(made("bfd"), HERE, workers=1)
    assert puts(hub) == 2 * len(seen) == 2 * sum(file.name.endswith(".parquet") for file in done.sent)


@pytest.mark.parametrize("what", [500, "drop"])
def test_a_hub_that_goes_down_in_the_middle(made: Made, hub: HubStandIn, tmp_path: Path, what: int | str) -> None:
    seen: list[str] = []

    def fault(method: str, path: str) -> int | str | None:
        if method == "PUT":
            seen.append(path)
        return what if method == "PUT" and path != seen[0] else None

    hub.fault = fault
    with pytest.raises(PacktrainError, match="run the same command again to continue") as failed:
        publish(made("bfd"), HERE, workers=1)
    assert failed.value.exit_code == 1
    assert set(hub.files("me/packed")) == {".gitattributes"}
    assert list((tmp_path / "cache" / "publish").iterdir())
    hub.fault = lambda method, path: None
    hub.asked.clear()
    done = publish(made("bfd"), HERE, workers=1)
    assert puts(hub) == sum(file.name.endswith(".parquet") for file in done.sent) - 1
    assert set(hub.files("me/packed")) > {"README.md", "export.json"}


def test_a_commit_whose_answer_was_lost(made: Made, hub: HubStandIn) -> None:
    repository = hub.create("me/packed")
    commits = repository.branches["main"]

    def fault(method: str, path: str) -> int | None:
        return 502 if len(commits) > 1 else None

    hub.fault = fault
    with pytest.raises(PacktrainError, match="status 502"):
        publish(made("bfd"), HERE, workers=1)
    hub.fault = lambda method, path: None
    assert len(commits) == 2
    assert publish(made("bfd"), HERE, workers=1).sent == ()


def test_another_commit_was_quicker(made: Made, hub: HubStandIn) -> None:
    repository = hub.create("me/packed")

    def fault(method: str, path: str) -> None:
        if "/commit/" in path:
            hub.add_commit(repository, "main", "mine", {"x": Blob(b"x", False)})

    hub.fault = fault
    with pytest.raises(PacktrainError, match="someone else committed first"):
        publish(made("bfd"), HERE, workers=1)
    assert hub.files("me/packed") == {"x": b"x"}


# What cannot be done


@pytest.mark.parametrize(
    ("target", "token", "status", "code", "said"),
    [
        ("me/packed", WRITER, 0, 2, "write hf://owner/name"),
        ("hf://packed", WRITER, 0, 2, "write hf://owner/name"),
        ("hf://me/a/b", WRITER, 0, 2, "write hf://owner/name"),
        ("hf://me/..", WRITER, 0, 2, "does not accept this name"),
        ("hf://me/a--b", WRITER, 0, 2, "does not accept this name"),
        (HERE, "", 0, 2, "there is no token; run `hf auth login`, or set HF_TOKEN"),
        (HERE, STRANGER, 0, 2, "the Hub does not accept the token"),
        (HERE, READER, 0, 2, "the token may only read"),
        ("hf://you/packed", WRITER, 0, 2, r"is of me, who cannot make repositories there; .* owner: me, team"),
        (HERE, WRITER, 500, 1, "the Hub failed with status 500"),
        (HERE, WRITER, 429, 1, "limits how often it is asked"),
        (HERE, WRITER, 403, 2, "may not write there"),
        (HERE, WRITER, 418, 2, "refused with status 418"),
    ],
)
def test_the_hub_says_no(
    made: Made, hub: HubStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    target: str, token: str, status: int, code: int, said: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("HF_TOKEN", token)
    hub.fault = lambda method, path: status or None
    with pytest.raises(PacktrainError, match=said) as failed:
        publish(made("bfd"), target, workers=1)
    assert failed.value.exit_code == code
    assert "hf_" not in str(failed.value)
    assert hub.repositories == {}
    assert not (tmp_path / "cache" / "publish").exists(), "it worked before it asked"


def test_a_right_that_the_hub_denies_only_at_the_end(made: Made, hub: HubStandIn) -> None:
    hub.create("you/packed")
    with pytest.raises(PacktrainError, match="may not write there") as failed:
        publish(made("bfd"), "hf://you/packed", workers=1)
    assert failed.value.exit_code == 2


def test_no_network(made: Made, hub: HubStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(PacktrainError, match=r"cannot be reached .* run the same command again") as failed:
        publish(made("bfd"), HERE, workers=1)
    assert failed.value.exit_code == 1
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(PacktrainError, match="HF_HUB_OFFLINE is set") as failed:
        publish(made("bfd"), HERE, workers=1)
    assert failed.value.exit_code == 2
    done = publish(made("bfd"), HERE, workers=1, dry_run=True)
    assert done.commit is None
    assert hub.asked == []
    assert not own_staging(open_source(made("bfd"))).exists(), "a dry run leaves nothing in the user's cache"
    own_staging(open_source(made("bfd"))).mkdir(parents=True)
    publish(made("bfd"), HERE, workers=1, dry_run=True)
    assert own_staging(open_source(made("bfd"))).exists(), "what an interrupted upload left is for the next one"


def test_a_damaged_dataset_is_refused(made: Made, hub: HubStandIn, tmp_path: Path) -> None:
    shutil.copytree(made("bfd"), tmp_path / "packed")
    shard = sorted((tmp_path / "packed" / "train" / "shards").iterdir())[1]
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 64
    shard.write_bytes(data)
    with pytest.raises(PacktrainError, match="packtrain repair") as failed:
        publish(tmp_path / "packed", HERE, workers=1)
    assert failed.value.exit_code == 2
    (tmp_path / "packed" / "manifest.json").unlink()
    with pytest.raises(PacktrainError) as failed:
        publish(tmp_path / "packed", HERE, workers=1)
    assert failed.value.exit_code == 2
    assert hub.repositories == {}


def test_a_damaged_staging_folder_is_not_published(made: Made, hub: HubStandIn, tmp_path: Path) -> None:
    publish(made("bfd"), HERE, workers=1, dry_run=True, staging=tmp_path / "staged")
    one = sorted((tmp_path / "staged" / "data").iterdir())[0]
    data = bytearray(one.read_bytes())
    data[-20] ^= 1
    one.write_bytes(data)
    with pytest.raises(PacktrainError, match="does not match its hash"):
        publish(made("bfd"), HERE, workers=1, staging=tmp_path / "staged")
    assert hub.repositories == {}
    shutil.rmtree(tmp_path / "staged")
    publish(made("bfd"), HERE, workers=1, staging=tmp_path / "staged")
    assert (tmp_path / "staged" / "export.json").exists(), "a folder that the user names is kept"


def test_a_repository_with_something_else(made: Made, hub: HubStandIn, tmp_path: Path) -> None:
    hub.create("me/packed", {"data/train-mine.parquet": b"x", "README.md": b"# mine"})
    with pytest.raises(PacktrainError, match=r"something else \(README.md, data/train-mine.parquet\)") as failed:
        publish(made("bfd"), HERE, workers=1)
    assert failed.value.exit_code == 2
    done = publish(made("bfd"), HERE, workers=1, replace=True)
    assert done.listing.removed == ("data/train-mine.parquet",)
    assert len(hub.repositories["me/packed"].branches["main"]) == 2, "one commit"
    assert len(loaded(hub, tmp_path)["train"]) == open_dataset(made("bfd")).manifest.splits["train"].rows
    with pytest.raises(PacktrainError, match="something else"):
        publish(made("wrapped"), HERE, workers=1)
    publish(made("wrapped"), HERE, workers=1, replace=True)
    rows = loaded(hub, tmp_path / "again")
    assert len(rows["train"]) == open_dataset(made("wrapped")).manifest.splits["train"].rows


@pytest.mark.parametrize("manifest", [b"{}", b"[" * 100_000, b"\xff", b'{"hash": "0", "format": 1, "plan": {}}'])
def test_a_repository_with_a_manifest_of_another_kind(made: Made, hub: HubStandIn, manifest: bytes) -> None:
    hub.create("me/packed", {"export.json": manifest, "\x1b]0;owned\x07": b""})
    with pytest.raises(PacktrainError, match="something else") as failed:
        publish(made("bfd"), HERE, workers=1)
    assert failed.value.exit_code == 2


def test_rows_that_someone_added_are_noticed_and_files_beside_them_stay(made: Made, hub: HubStandIn) -> None:
    publish(made("bfd"), HERE, workers=1)
    repository = hub.repositories["me/packed"]
    files = dict(repository.branches["main"][-1].files)
    first = sorted(name for name in files if name.startswith("data/"))[0]
    more = {"LICENSE": Blob(b"mine", False), "data/train-zzz.parquet": Blob(b"x", False)}
    hub.add_commit(repository, "main", "edit", {name: blob for name, blob in files.items() if name != first} | more)
    with pytest.raises(PacktrainError, match=r"data/train-zzz\.parquet"):
        publish(made("bfd"), HERE, workers=1)
    done = publish(made("bfd"), HERE, workers=1, replace=True)
    assert done.listing.removed == ("data/train-zzz.parquet",)
    assert [file.name for file in done.sent] == [first], "it sent what was there"
    assert hub.files("me/packed")["LICENSE"] == b"mine"


# Privacy


def test_nothing_private_goes_along(made: Made, hub: HubStandIn, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    done = publish(made("bfd"), HERE, workers=1)
    held = hub.files("me/packed")
    assert {re.sub(r"\d+", "N", name) for name in held} == {
        ".gitattributes", "README.md", "export.json", "data/train-N-of-N.parquet", "data/holdout-N-of-N.parquet",
    }  # fmt: skip
    assert done.listing.kept == ("rejects.jsonl", "documents.parquet", "manifest.json", "_run/")
    words = [str(made("bfd").parent), str(tmp_path), str(Path.home()), WRITER]
    short = [socket.gethostname(), getpass.getuser()]  # which compressed bytes may hold by chance
    for name, data in held.items():
        for word in words if name.endswith(".parquet") else [*words, *short]:
            assert not re.search(rf"(?<!\w){re.escape(word)}(?!\w)".encode(), data), (name, word)
        if name.endswith(".parquet"):
            (tmp_path / "one.parquet").write_bytes(data)
            about = pq.ParquetFile(tmp_path / "one.parquet").metadata
            assert set(about.metadata or {}) <= {b"ARROW:schema"}
            assert "parquet-cpp" in about.created_by
    assert hub.tokens == {WRITER}


def test_more_goes_only_if_it_is_asked_for(made: Made, hub: HubStandIn, tmp_path: Path) -> None:
    shutil.copytree(made("bfd"), tmp_path / "packed")
    with pytest.raises(PacktrainError, match=r"--with report: .* has no report\.html; packtrain report writes it"):
        publish(tmp_path / "packed", HERE, extras=["report"], workers=1)
    with pytest.raises(PacktrainError, match=r"--with repot: choose one of .* did you mean report"):
        publish(tmp_path / "packed", HERE, extras=["repot"], workers=1)
    for name in EXTRAS["report"]:
        (tmp_path / "packed" / name).write_bytes(b"<html>")
    publish(tmp_path / "packed", HERE, workers=1)
    assert "report.html" not in hub.files("me/packed")
    done = publish(tmp_path / "packed", HERE, extras=["report", "documents", "manifest"], workers=1)
    assert sorted(file.name for file in done.sent) == [
        "documents.parquet", "manifest.json", "report.html", "report.json",
    ]  # fmt: skip
    assert set(hub.files("me/packed")) > {"report.html", "documents.parquet", "README.md"}
    assert loaded(hub, tmp_path)["train"].column_names[0] == "input_ids"
    assert publish(tmp_path / "packed", HERE, extras=["report"], workers=1).sent == ()


def test_a_private_repository(made: Made, hub: HubStandIn) -> None:
    publish(made("bfd"), HERE, private=True, workers=1)
    assert hub.repositories["me/packed"].private
    assert publish(made("bfd"), HERE, private=True, workers=1).sent == ()
    hub.create("me/public")
    with pytest.raises(PacktrainError, match="is there already, and public") as failed:
        publish(made("bfd"), "hf://me/public", private=True, workers=1)
    assert failed.value.exit_code == 2
    assert set(hub.files("me/public")) == {".gitattributes"}


def test_a_branch(made: Made, hub: HubStandIn, tmp_path: Path) -> None:
    hub.create("me/packed")
    publish(made("bfd"), f"{HERE}@v1", workers=1)
    assert set(hub.files("me/packed")) == {".gitattributes"}
    assert len(loaded(hub, tmp_path, revision="v1")["train"]) == open_dataset(made("bfd")).manifest.splits["train"].rows
    assert publish(made("bfd"), f"{HERE}@v1", workers=1).sent == ()


# The card


def test_the_users_own_card_is_published_with_the_files_of_the_export(
    made: Made, hub: HubStandIn, tmp_path: Path
) -> None:
    shutil.copytree(made("bfd"), tmp_path / "packed")
    card = tmp_path / "packed" / "README.md"
    front, _ = split_front(card.read_text())
    written = f"---\nlicense: mit\nlanguage: [en]\n{card.read_text()[4:].replace('# Packed training rows', '# Mules')}"
    card.write_text(written)
    publish(tmp_path / "packed", HERE, workers=1)
    held = hub.files("me/packed")["README.md"].decode()
    now, text = split_front(held)
    assert (now["license"], now["language"], now["tags"]) == ("mit", ["en"], front["tags"])
    assert now["configs"][0]["data_files"][0] == {"split": "train", "path": "data/train-*.parquet"}
    assert now["dataset_info"]["splits"][0]["num_examples"] == front["dataset_info"]["splits"][0]["num_examples"]
    assert "# Mules" in text
    assert card.read_text() == written
    assert len(loaded(hub, tmp_path)["train"]) > 0
    # It is edited again, here: only the card goes.
    card.write_text(written.replace("# Mules", "# Horses"))
    assert [file.name for file in publish(tmp_path / "packed", HERE, workers=1).sent] == ["README.md"]
    assert "# Horses" in hub.files("me/packed")["README.md"].decode()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("made in {folder}/x", "line 2: names a path of this machine"),
        ("my token: hf_abcdefghijklmnopqrstuvwxyzABCDEF", r"line 2: holds what looks like a secret \(hf_abc…\); take"),
        ("key: AKIAABCDEFGHIJKLMNOP", "holds what looks like a secret"),
        ("---\na: [\n---\n", "the YAML at its head cannot be read"),
        ("---\n- a\n---\n", "is not a mapping"),
    ],
)
def test_a_card_that_cannot_be_published(made: Made, hub: HubStandIn, tmp_path: Path, text: str, said: str) -> None:
    shutil.copytree(made("bfd"), tmp_path / "packed")
    whole = text if text.startswith("---") else f"# Mine\n{text.format(folder=tmp_path / 'packed')}"
    (tmp_path / "packed" / "README.md").write_text(whole)
    with pytest.raises(PacktrainError, match=said) as failed:
        publish(tmp_path / "packed", HERE, workers=1)
    assert failed.value.exit_code == 2
    (tmp_path / "packed" / "README.md").write_bytes(b"\xff\xfe")
    with pytest.raises(PacktrainError, match=r"README\.md"):
        publish(tmp_path / "packed", HERE, workers=1)
    assert hub.repositories == {}


def test_a_configuration_with_a_secret_is_found_before_anything_is_made(
    made: Made, hub: HubStandIn, tmp_path: Path
) -> None:
    """packtrain's own card shows the configuration, such as variables of a template."""
    folder = tmp_path / "packed"
    shutil.copytree(made("bfd"), folder)
    manifest = open_dataset(folder).manifest
    manifest.plan["config"]["tokenizer"]["variables"] = {"key": "sk-abcdefghijklmnopqrstuv"}
    changed = replace(manifest, plan_hash=fingerprint(manifest.plan))
    (folder / "manifest.json").write_bytes(changed.to_bytes())
    (folder / "README.md").unlink()
    with pytest.raises(InputError, match=r"README\.md, line \d+: holds what looks like a secret \(sk-abc…\); take"):
        publish(folder, HERE, workers=1, staging=tmp_path / "staging")
    with (folder / "README.md").open("wb") as file:
        file.truncate(20 << 20)
    with pytest.raises(InputError, match="has more than 16 MiB; shorten it"):
        publish(folder, HERE, workers=1, staging=tmp_path / "staging")
    (folder / "README.md").unlink()
    (folder / "README.md").mkdir()
    with pytest.raises(InputError, match=r"README\.md is a folder, .* move the folder away"):
        publish(folder, HERE, workers=1, staging=tmp_path / "staging")
    assert hub.repositories == {}
    assert not (tmp_path / "staging").exists()


def test_an_export_is_not_a_dataset(made: Made, hub: HubStandIn, tmp_path: Path) -> None:
    export(made("bfd"), tmp_path / "out", export_options("trl"), workers=1)
    with pytest.raises(InputError, match="is an export, not a dataset; give the dataset that it was made from"):
        publish(tmp_path / "out", HERE, workers=1)
    assert hub.repositories == {}


def test_a_card_that_was_edited_on_the_hub_stays(made: Made, hub: HubStandIn) -> None:
    publish(made("bfd"), HERE, workers=1)
    repository = hub.repositories["me/packed"]
    files = dict(repository.branches["main"][-1].files)
    assert is_untouched(files["README.md"].data)
    edited = files["README.md"].data + b"\nA word of mine.\n"
    hub.add_commit(repository, "main", "edit", files | {"README.md": Blob(edited, False)})
    notes = Notes()
    assert publish(made("bfd"), HERE, workers=1, observer=notes).sent == ()
    assert notes.notes[0] == "README.md was edited in the repository, and stays; --replace writes a new one"
    assert hub.files("me/packed")["README.md"] == edited
    done = publish(made("bfd"), HERE, workers=1, replace=True)
    assert [file.name for file in done.sent] == ["README.md"]
    assert is_untouched(hub.files("me/packed")["README.md"])


# The command


def test_the_command(made: Made, hub: HubStandIn, packtrain: Callable[..., Any]) -> None:
    done = packtrain("publish", made("bfd"), HERE, "--workers", 1)
    assert done.code == 0, done.err
    assert re.match(r"hf://me/packed: \d files, [\d.]+ KiB\n  README.md \([\d.]+ KiB\)\n  data/holdout-00000", done.out)
    assert "not published: rejects.jsonl, documents.parquet, manifest.json, _run/" in done.out
    assert f"{hub.url}/datasets/me/packed" in done.out.replace("\n", "")
    assert WRITER not in done.out + done.err
    again = packtrain("publish", made("bfd"), HERE, "--workers", 1, "--json")
    assert json.loads(again.out)["state"] == "unchanged"
    assert packtrain("publish", made("bfd"), "hf://you/packed").code == 2
