"""Datasets published to a stand-in for the Hub (`tests/support/hub_stand_in.py`), by the real huggingface_hub."""

import getpass
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline.dataset.open_dataset import open_dataset
from packtrain.pipeline.export.publish import publish
from packtrain.schemas.errors import PacktrainError

from tests.support.hub_stand_in import TOKEN, HubStandIn, taken_for_the_hub

library = pytest.importorskip("huggingface_hub")
pytestmark = pytest.mark.xdist_group("exports")
Made = Callable[[str], Path]
HERE = "hf://me/packed"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubStandIn]:
    """See `taken_for_the_hub`."""
    with taken_for_the_hub(monkeypatch, tmp_path) as stand_in:
        yield stand_in


def loaded(hub: HubStandIn, folder: Path, name: str = "me/packed") -> Any:
    """What the repository holds, downloaded as others do, and opened by `datasets`."""
    import datasets

    place = library.snapshot_download(
        name, repo_type="dataset", local_dir=folder / "got", endpoint=hub.url, token=TOKEN
    )
    return datasets.load_dataset(place, cache_dir=str(folder / "read"))


@pytest.mark.parametrize("shape", ["bfd", "parallel"])
def test_what_is_published_is_the_dataset(
    made: Made, hub: HubStandIn, read_rows: Callable[..., Any], tmp_path: Path, shape: str
) -> None:
    done = publish(made(shape), HERE)
    dataset = open_dataset(made(shape))
    assert done.commit == hub.repositories["me/packed"].commits[-1].hash
    assert len(hub.repositories["me/packed"].commits) == 2, "one commit"
    held = hub.files("me/packed")
    shards = {shard.name for split in dataset.manifest.splits.values() for shard in split.shards}
    assert set(held) == {".gitattributes", "README.md", *shards}
    assert done.files == {name: len(data) for name, data in held.items() if name != ".gitattributes"}
    for name in shards:
        assert held[name] == (made(shape) / name).read_bytes()
    rows = loaded(hub, tmp_path)
    assert set(rows) == set(dataset.manifest.splits)
    for split in rows:
        assert list(rows[split]) == read_rows(made(shape), split)
    assert 'load_dataset("me/packed")' in held["README.md"].decode()


def test_an_earlier_dataset_leaves_no_rows_behind_and_other_files_stay(
    made: Made, hub: HubStandIn, tmp_path: Path
) -> None:
    publish(made("wrapped"), HERE)
    repository = hub.repositories["me/packed"]
    repository.add({**hub.files("me/packed"), "LICENSE": b"mine"})
    publish(made("bfd"), HERE)
    shards = [shard for split in open_dataset(made("bfd")).manifest.splits.values() for shard in split.shards]
    assert set(hub.files("me/packed")) == {".gitattributes", "README.md", "LICENSE", *(shard.name for shard in shards)}
    rows = open_dataset(made("bfd")).manifest.splits["train"].rows
    assert len(loaded(hub, tmp_path)["train"]) == rows


@pytest.mark.parametrize(
    ("token", "status", "code", "said"),
    [
        ("", 0, 2, "run `hf auth login`, or set HF_TOKEN"),
        (TOKEN, 401, 2, "answers 401"),
        (TOKEN, 403, 2, "answers 403"),
        (TOKEN, 500, 1, "answers 500"),
    ],
)
def test_the_hub_says_no(
    made: Made, hub: HubStandIn, monkeypatch: pytest.MonkeyPatch, token: str, status: int, code: int, said: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    hub.fault = lambda method, path: status
    with pytest.raises(PacktrainError, match=said) as failed:
        publish(made("bfd"), HERE)
    assert failed.value.exit_code == code
    assert "hf_" not in str(failed.value)
    assert hub.repositories == {}


def test_no_network(made: Made, hub: HubStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(PacktrainError, match=r"run the same command again") as failed:
        publish(made("bfd"), HERE)
    assert failed.value.exit_code == 1
    done = publish(made("bfd"), HERE, dry_run=True)
    assert done.commit is None
    assert hub.asked == []


def test_nothing_private_goes_along(made: Made, hub: HubStandIn, tmp_path: Path) -> None:
    publish(made("bfd"), HERE)
    words = [str(made("bfd").parent), str(tmp_path), str(Path.home()), TOKEN]
    short = [socket.gethostname(), getpass.getuser()]  # which bytes may hold by chance
    for name, data in hub.files("me/packed").items():
        for word in words if name.endswith(".arrow") else [*words, *short]:
            assert not re.search(rf"(?<!\w){re.escape(word)}(?!\w)".encode(), data), (name, word)
    assert hub.tokens == {TOKEN}


SECRETS = {
    "where": "prompt = 'Meiers Gehalt'",
    "variables": "sk-abcdefghijklmnopqrstuv",
    "path": "/srv/Kunden/2026",
    "url": "s3://key:word@store/x?signature=abc",
    "key": "Kundennummer",
    "reader": "python:kunden.leser:zeile",
}


def test_the_card_shows_of_the_configuration_only_what_is_public(made: Made, hub: HubStandIn, tmp_path: Path) -> None:
    shutil.copytree(made("bfd"), tmp_path / "packed")
    manifest = open_dataset(tmp_path / "packed").manifest
    config = manifest.plan["config"]
    config["tokenizer"] |= {"variables": {"key": SECRETS["variables"]}, "date": SECRETS["path"]}
    source = config["sources"][0]
    source |= {"where": SECRETS["where"], "keys": {"text": SECRETS["key"]}, "format": SECRETS["reader"]}
    source |= {"path": [SECRETS["url"]], "max_rows": 12_345}
    name = source["name"]
    manifest.plan["formats"][name] = {"format": SECRETS["reader"]}
    (tmp_path / "packed" / "manifest.json").write_bytes(manifest.to_bytes())
    card = publish(tmp_path / "packed", HERE, dry_run=True).card
    for secret in SECRETS.values():
        assert secret not in card
        assert secret.split(":")[0] not in card.replace("python", "")
    assert f"- name: {name}" in card, "the configuration is there"
    assert "max_rows: 12345" in card


def test_a_private_repository(made: Made, hub: HubStandIn) -> None:
    publish(made("bfd"), HERE, private=True)
    assert hub.repositories["me/packed"].private
    hub.create("me/public")
    with pytest.raises(PacktrainError, match="is there already, and public") as failed:
        publish(made("bfd"), "hf://me/public", private=True)
    assert failed.value.exit_code == 2
    assert set(hub.files("me/public")) == {".gitattributes"}
