"""Small files share blocks, parts and records; nothing else about a dataset depends on that."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import packtrain
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.pipeline.dataset.cached_parts import CachedParts, open_parts
from packtrain.pipeline.dataset.ids import Address
from packtrain.pipeline.dataset.open import open_dataset
from packtrain.pipeline.explain.explain import Follower
from packtrain.pipeline.inputs import joined as joined_module
from packtrain.pipeline.inputs.blocks import Block, FileLines, InputFile
from packtrain.pipeline.inputs.containers.lines import TextPlace
from packtrain.pipeline.inputs.joined import FILE_BYTES, MEAN_BYTES, SMALL_BYTES, JoinedFile, join_small
from packtrain.pipeline.inputs.scan import BLOCK_BYTES, read_rows
from packtrain.pipeline.pack import documents as documents_module
from packtrain.pipeline.run.repair import repair
from packtrain.schemas.errors import InputError
from packtrain.schemas.fingerprint import hash_bytes
from packtrain.schemas.manifest import Manifest

from tests.support.examples import examples

Config = dict[str, Any]
WORDS = ("mules", "left", "the", "valley", "before", "sun", "was", "up")


def file_of(content: int, size: int = 2000, rows: int = 2, **changes: Any) -> InputFile:
    """A file with one block. Its content is a number."""
    digest = hash_bytes(f"{content} {size} {rows}".encode())
    block = Block(0, size, 0, rows, digest, **changes)
    return InputFile("s", f"{content}", Path(f"{content}.jsonl"), size, 0, digest, (block,))


def names(files: list[InputFile]) -> list[tuple[str, ...]]:
    """The labels of each group."""
    return [tuple(one.label for one in (file.members if isinstance(file, JoinedFile) else (file,))) for file in files]


sizes = st.integers(1, SMALL_BYTES)


@given(st.lists(sizes, min_size=1, max_size=60))
@examples(100)
def test_groups_keep_every_file_in_order_and_are_bounded(of_files: list[int]) -> None:
    files = [file_of(number, size, rows=1 + size % 7) for number, size in enumerate(of_files)]
    joined = join_small(files)
    assert [label for group in names(joined) for label in group] == [file.label for file in files]
    for file in joined:
        members = file.members if isinstance(file, JoinedFile) else (file,)
        assert sum(one.size + FILE_BYTES for one in members) <= BLOCK_BYTES
        (block,) = file.blocks
        assert (block.end - block.start, block.lines) == (sum(m.size for m in members), sum(m.lines for m in members))
        found = [file.at(block, row) for row in range(block.lines)]
        assert [(one.label, line) for one, line in found] == [
            (one.label, line + 1) for one in members for line in range(one.lines)
        ]
        lines = file.lines_of(block)
        assert [lines.row_of(one.label, line, block.lines) for one, line in found] == list(range(block.lines))
        assert lines.row_of(members[0].label, members[0].lines + 1, block.lines) is None
        assert lines.row_of("another", 1, block.lines) is None


def test_a_file_that_is_added_changes_few_groups() -> None:
    """With 3,000 files in groups of about 170, one more file changes its own group, and sometimes neighbours."""
    chance = random.Random(5)
    files = [file_of(number, size=chance.randrange(500, 4000)) for number in range(3000)]
    before = {file.blocks[0].hash for file in join_small(files)}
    assert 8 < len(before) < 40
    changed = []
    for more in range(60):
        place = chance.randrange(len(files) + 1)
        after = {file.blocks[0].hash for file in join_small([*files[:place], file_of(10_000 + more), *files[place:]])}
        changed.append(len(after - before))
    # A cut at BLOCK_BYTES moves until the next end that the content decides: then two or three change, seldom more.
    assert sorted(changed)[:50][-1] <= 2
    assert max(changed) <= 6
    assert MEAN_BYTES < BLOCK_BYTES


def test_what_is_not_joined() -> None:
    several = InputFile("s", "several", Path("x"), 20, 0, "0" * 64, (Block(0, 10, 0, 1, "a"), Block(10, 20, 1, 1, "b")))
    alone = [
        file_of(1, size=SMALL_BYTES + 1),
        file_of(2, too_long=True),
        file_of(3, spooled=Path("copy")),
        replace(file_of(4), far=(1, 2)),
        several,
        replace(file_of(5), source="reader"),
    ]
    for one in alone:
        files = [file_of(100), one, file_of(101)]
        assert (one.label,) in names(join_small(files, readers=["reader"])), one
    other = [file_of(100), file_of(6, place=TextPlace()), replace(file_of(7), source="t")]
    assert all(len(group) == 1 for group in names(join_small(other)))


def test_rows_of_one_file() -> None:
    """The third block of a file begins at its line 41; a block of its own has rows from 0."""
    lines = FileLines(("a",), (-40,))
    assert lines.find(0) == (0, 41)
    assert [lines.row_of("a", line, 5) for line in (40, 41, 45, 46)] == [None, 0, 4, None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hundred and twenty files of a few rows: conversations, some of them unusable or equal, and texts."""
    root, chance = tmp_path_factory.mktemp("small"), random.Random(3)

    def talk() -> str:
        return " ".join(chance.choices(WORDS, k=chance.randrange(1, 30)))

    for number in range(80):
        rows = []
        for _ in range(chance.randrange(1, 5)):
            turns = [{"role": "user", "content": talk()}, {"role": "assistant", "content": talk()}]
            rows.append(json.dumps({"messages": turns}))
        if number % 5 == 0:
            rows.insert(chance.randrange(1, len(rows) + 1), chance.choice(['{"messages": 3}', "", "{", '{"x": 1}']))
        (root / f"chats-{number:03d}.jsonl").write_text("\n".join(rows) + ("\n" if number % 3 else ""))
    for number in range(40):
        (root / f"text-{number:03d}.txt").write_text(talk() if number % 10 else "the same text")
    return root


@pytest.fixture
def make(
    folder: Path, tmp_path: Path, make_tokenizer: Callable[..., Path], new_cache: Callable[[Path], Path]
) -> Callable[..., Manifest]:
    tokenizer = make_tokenizer("tiny")

    def run(name: str, **changes: Any) -> Manifest:
        return packtrain.run(
            {
                "out": str(tmp_path / name),
                "cache": str(new_cache(tokenizer)),
                "tokenizer": {"path": str(tokenizer), "engine": "tokenizers"},
                "sources": [
                    {"name": "chats", "format": "messages", "path": str(folder / "chats-*.jsonl")},
                    {"name": "texts", "format": "text", "path": str(folder / "*.txt"), "repeat": 2},
                ],
                "truncate": {"max_length": 64},
                "holdout": {"fraction": 0.1},
                "pack": {"window_tokens": 1000},
                "duplicates": "drop",
                "run": {"workers": 1, "report": False},
            }
            | changes
        )

    return run


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it to have no files joined from then on, as in earlier versions."""
    return lambda: monkeypatch.setattr(joined_module, "SMALL_BYTES", -1)


def parts_of(out: Path) -> CachedParts:
    found = open_parts(open_dataset(out))
    assert isinstance(found, CachedParts)
    return found


@pytest.mark.parametrize("group_rows", [7, 1 << 16])
def test_the_dataset_is_that_of_files_apart(
    make: Callable[..., Manifest],
    apart: Callable[[], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    group_rows: int,
) -> None:
    """Rows, windows, documents.parquet with its row groups, rejects and the ledger are the same to the byte."""
    monkeypatch.setattr(documents_module, "GROUP_ROWS", group_rows)
    together = make("together")
    assert len(parts_of(tmp_path / "together").parts) < 10
    apart()
    separate = make("separate")
    assert len(parts_of(tmp_path / "separate").parts) == 120
    assert together.hash == separate.hash
    rejects = (tmp_path / "together/rejects.jsonl").read_bytes()
    assert rejects.count(b"\n") > 10
    assert b"chats-015" in rejects
    assert sum(len(split.shards) for split in together.splits.values()) > 3, "several windows"


def test_every_example_is_found_by_its_id(make: Callable[..., Manifest], folder: Path, tmp_path: Path) -> None:
    make("out")
    dataset = open_dataset(tmp_path / "out")
    follower, cached = Follower(dataset), parts_of(tmp_path / "out")
    for number in range(0, cached.count, 17):
        story = follower.by_number(number)
        assert follower.by_id(story.address.id).doc_id == number
        source, line = story.address.file, story.address.line
        if story.address.source == "chats":
            row = (folder / f"{source}.jsonl").read_text().splitlines()[line - 1]
            assert story.origin.value == json.loads(row)
    entry = json.loads((tmp_path / "out/rejects.jsonl").read_bytes().splitlines()[0])
    assert follower.by_id(f"chats/{entry['file'].removesuffix('.jsonl')}:{entry['line']}").state == "rejected"


def test_repair_makes_lost_parts_and_shards_again(
    make: Callable[..., Manifest], tmp_path: Path, apart: Callable[[], None]
) -> None:
    manifest = make("out")
    for part in (
        parts_of(tmp_path / "out").parts[0].place.path,
        *sorted((tmp_path / "out/train/shards").iterdir())[:1],
    ):
        part.unlink()
    repair(tmp_path / "out")
    assert open_dataset(tmp_path / "out").manifest.hash == manifest.hash
    apart()  # the notes of a dataset whose files were not joined are read as they are
    assert make("separate").hash == manifest.hash
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joined_module, "SMALL_BYTES", SMALL_BYTES)
        assert len(parts_of(tmp_path / "separate").parts) == 120


def test_a_changed_file_is_found(make: Callable[..., Manifest], folder: Path, tmp_path: Path) -> None:
    make("out")
    path = folder / "chats-050.jsonl"
    content = path.read_bytes()
    try:
        path.write_bytes(content.replace(b"user", b"tool", 1))
        found = parts_of(tmp_path / "out").of_row(Address("chats", "chats-050", 1, -1))
        assert found is not None
        part, row = found
        assert row > 0
        with pytest.raises(InputError):
            read_rows(part.file.path, part.block, 1 << 20)
    finally:
        path.write_bytes(content)


def test_shards_share_joined_files(make: Callable[..., Manifest], tmp_path: Path) -> None:
    alone = make("alone")
    run = {"workers": 1, "report": False, "shard": "1/2"}
    assert make("shared", run=run, cache=str(tmp_path / "cache-of-shards")).hash == alone.hash
