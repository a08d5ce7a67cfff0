"""The card of a dataset: a pure function of the manifest, which `datasets` reads, and in which foreign text is text."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from packtrain.pipeline.dataset.open_dataset import open_dataset
from packtrain.pipeline.dataset.verify import verify
from packtrain.pipeline.report.card import NAME, dataset_card
from packtrain.pipeline.run.repair import repair
from packtrain.pipeline.run.run import run
from packtrain.schemas.dataset.ledger import Ledger
from packtrain.schemas.dataset.manifest import Manifest
from packtrain.schemas.escape import escape

from tests import kit
from tests.support.examples import examples

pytestmark = pytest.mark.xdist_group("exports")
MARKDOWN = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
"""What the Hub draws, by a parser of other people."""
EVIL = [
    "---", "a\n---\nb", "| a | b |", "<script>alert(1)</script>", "<!-- x", "--> y", "](http://x) [a", "![i](x.png)",
    "`", "```\n# x", "*a*", "_a_", "~~a~~", "# x", "\x1b]0;owned\x07", "a\u202eb", "\udcff", "&amp;", "&#124;", "\\",
    "\\|", "http://evil.example/", "www.evil.example", "me@evil.example", "<http://evil.example>", "*id001", "&a [*a]",
    "!!python/object/apply:os.system [x]", "{{7*7}}", "$$x$$", "a\r\nb", "\t", " ", "null", "1", "\ufeffa", "x" * 5000,
]  # fmt: skip
texts = st.one_of(st.sampled_from(EVIL), st.text(st.characters(), min_size=1, max_size=40))
names = texts.map(lambda text: text.encode("utf-8", "replace").decode())
"""As a manifest can hold them: one with a text that is not Unicode has no hash, and is refused."""


def of(manifest: Manifest) -> str:
    """The card of a dataset's own folder."""
    return dataset_card(manifest).decode()


def split_front(card: str) -> tuple[dict[str, Any], str]:
    """The YAML at its head, and what is below."""
    _, front, body = card.split("---\n", 2)
    return yaml.safe_load(front), body


def shape(card: str) -> list[tuple[str, str, list[str]]]:
    """The elements of a card without their text: what a name must not change."""
    _, body = split_front(card)
    return [
        (token.type, token.tag, [child.type for child in token.children or [] if child.type != "text"])
        for token in MARKDOWN.parse(body)
    ]


def renamed(manifest: Manifest, source: str, reason: str, form: str, version: str) -> Manifest:
    """The manifest with foreign text in every place that the card shows, besides the configuration."""
    first, *others = manifest.ledger.sources.items()
    sources = {source: replace(first[1], rows_rejected={reason: 7}), **dict(others)}
    formats = {source: {"format": form}} | {name: manifest.plan["formats"][name] for name, _ in others}
    versions = manifest.plan["versions"] | {"packtrain": version}
    encode = manifest.plan["encode"] | {"engine": form, "engine_version": reason}
    tokenizer = manifest.plan["tokenizer"] | {"template": version}
    plan = manifest.plan | {"formats": formats, "versions": versions, "encode": encode, "tokenizer": tokenizer}
    return replace(manifest, plan=plan, ledger=Ledger(sources))


@pytest.fixture(scope="session")
def plain(manifest: Manifest) -> list[Any]:
    """The elements of a card with harmless names."""
    return shape(of(renamed(manifest, "d", "reason", "text", "1.0")))


@pytest.fixture(scope="session")
def manifest(little: Any) -> Manifest:
    """Of a finished run of three sources and two splits."""
    return open_dataset(little.out).manifest


def test_a_run_writes_it_and_it_is_a_function_of_the_manifest(little: Any, tmp_path: Path) -> None:
    written = (little.out / NAME).read_bytes()
    config = json.loads(little.copy(tmp_path, cache=False, out=False).read_text())
    made = run(config | {"out": "elsewhere", "run": {"workers": 2, "report": False}}, base=tmp_path).manifest
    assert (tmp_path / "elsewhere" / NAME).read_bytes() == written == of(made).encode()
    assert of(open_dataset(little.out).manifest).encode() == written


def test_its_numbers_are_those_of_the_manifest(manifest: Manifest) -> None:
    front, body = split_front(of(manifest))
    assert [one["split"] for one in front["configs"][0]["data_files"]] == ["train", "holdout"]
    total, sources = manifest.ledger.total(), manifest.ledger.sources.values()
    labels = [f"{one.labels_trained:,}" for one in (*sources, total)]
    assert f"| **labels trained** | {' | '.join(labels)} |" in body
    for name, split in manifest.splits.items():
        assert f"| {name} | {split.rows:,} |" in body
    assert "rejected: wrong" in body
    assert manifest.hash in body


def as_the_card_says(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The rows that the card's first snippet loads, run as it stands but for the folder's name."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", cache / "hf")
    _, body = split_front((folder / NAME).read_text())
    snippet = next(token.content for token in MARKDOWN.parse(body) if token.type == "fence" and token.info == "python")
    assert snippet.count("path/to/the/dataset") == 1
    names: dict[str, Any] = {}
    exec(snippet.replace("path/to/the/dataset", str(folder)), names)
    return names["rows"]


def test_datasets_reads_it(little: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of two splits: by the names in its head, in order."""
    import datasets

    saved = datasets.load_from_disk(str(little.out))
    rows = datasets.load_dataset(str(little.out), cache_dir=str(tmp_path / "cached"))
    assert set(rows) == {"train", "holdout"}
    for split in rows:
        assert rows[split].features == saved[split].features
        assert rows[split][:] == saved[split][:]
    assert as_the_card_says(little.out, tmp_path, monkeypatch)[:] == saved["train"][:]
    assert len(list((little.out / "train" / "shards").iterdir())) > 2


def test_packed_pairs_load_as_the_card_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = kit.packed(kit.configure(tmp_path, "choices", truncate={"max_length": 4096}))
    found = as_the_card_says(packed.folder, tmp_path, monkeypatch)
    assert found.column_names == packed.table().column_names
    assert found[:] == packed.table().to_pydict()
    front, _ = split_front((packed.folder / NAME).read_text())
    assert front["tags"] == ["packtrain", "packed", "preference", "tokenized"]


def test_one_split_and_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = kit.configure(tmp_path, "choices", truncate={"max_length": 4096}, pack={"strategy": "none"})
    packed = kit.packed(config)
    card = (packed.folder / NAME).read_text()
    found = as_the_card_says(packed.folder, tmp_path, monkeypatch)
    assert "load_from_disk" in card
    assert (len(found), found.column_names) == (90, packed.table().column_names)
    assert "90 preference pairs" in card
    assert split_front(card)[0]["tags"] == ["packtrain", "preference", "tokenized"]


# What it says stays the user's


def test_an_edited_card_stays_and_a_missing_one_is_written_again(little: Any, tmp_path: Path) -> None:
    config, card = little.copy(tmp_path), tmp_path / "out" / NAME
    whole = card.read_bytes()
    for edited in (whole.replace(b"# Packed", b"# My packed"), None):
        if edited is None:
            card.unlink()
            assert verify(tmp_path / "out", deep=True).sound
        else:
            card.write_bytes(edited)
        run(config)
        (tmp_path / "out" / "documents.parquet").unlink()
        assert repair(tmp_path / "out", config).sound
        assert card.read_bytes() == (edited or whole)


def test_a_card_that_cannot_be_written_fails_nothing(little: Any, tmp_path: Path) -> None:
    config = little.copy(tmp_path)
    (tmp_path / "out" / NAME).unlink()
    (tmp_path / "out" / NAME).symlink_to("nowhere")
    made = run(config).manifest
    assert made == open_dataset(little.out).manifest


# Foreign text


@examples(60)
@given(source=names, reason=names, form=names, version=names)
def test_foreign_text_is_only_text(
    manifest: Manifest, plain: list[Any], source: str, reason: str, form: str, version: str
) -> None:
    others = set(manifest.ledger.sources) - {next(iter(manifest.ledger.sources))}
    evil = renamed(manifest, source if source not in others else "d", reason, form, version)
    card = of(evil)
    assert shape(card) == plain
    assert escape(card) == card
    assert split_front(card)[0] == split_front(of(manifest))[0]
    assert [line for line in card.splitlines() if line == "---"] == ["---", "---"]
    assert len(card) < 40_000
