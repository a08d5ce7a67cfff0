"""Inspect by id: every example of a run, compared with the shards and the ledger."""

import json
import shlex
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import packtrain
import pyarrow.parquet as pq
import pytest
from packtrain.pipeline.dataset.open_dataset import Finished, open_dataset
from packtrain.pipeline.explain.explain import Follower
from packtrain.pipeline.explain.story import Story
from packtrain.pipeline.explain.tokens import Stretch, TokenFate
from packtrain.schemas.errors import InputError
from packtrain.schemas.ledger import SourceLedger
from packtrain.schemas.rows import IGNORE_INDEX, UNPADDED

from tests import kit

Row = dict[str, Any]
Configure = Callable[..., Row]

REFUSING = (
    "{% for message in messages %}"
    "{% if 'forbidden' in message.content %}{{ raise_exception('not this word') }}{% endif %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write(path: Path, rows: list[Any]) -> str:
    path.write_bytes(b"".join(row.encode() + b"\n" if isinstance(row, str) else kit.lines([row]) for row in rows))
    return str(path)


def chat(*contents: str, **flags: Any) -> Row:
    """A conversation whose speakers take turns; `flags` go to its second message."""
    roles = ["user", "assistant"]
    messages: list[Row] = [{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)]
    if len(messages) > 1:
        messages[1] |= flags
    return {"messages": messages}


CHATS = [
    chat("hello", "hi there"),
    chat("how far is it", "far", "how far exactly", "nobody had told them how far it would be"),
    chat("one", "two", "three", "four " * 30, "five", "six " * 40),
    chat("do not train this", "as you say", "and this", "yes", train=False),
    chat("hello", "hi there"),
    chat("only asked"),
    chat("a long question " * 20, "short"),
    "{not json",
    chat("über naïve", "Façaden 🙂 中文"),
    chat("this is forbidden", "is it"),
    "",
]
TEXTS = [
    {"text": "The mules left the valley before the sun was up.\n\n" * 9},
    {"text": "Behind the last houses"},
    {"text": "x"},
]


@pytest.fixture
def configure(make_tokenizer: Callable[..., Path], tmp_path: Path) -> Configure:
    """Makes a configuration of conversations and texts: `configure(each={"texts": {…}}, truncate={…}, …)`."""
    tokenizer = make_tokenizer("refusing", template=REFUSING)

    def make(each: Row | None = None, **changes: Any) -> Row:
        paths = {"chats": write(tmp_path / "chats.jsonl", CHATS), "texts": write(tmp_path / "texts.jsonl", TEXTS)}
        sources = [kit.source(name, path=path, **(each or {}).get(name, {})) for name, path in paths.items()]
        plain: Row = {"tokenizer": {"path": str(tokenizer)}, "truncate": {"max_length": 64}}
        return {**kit.configure(tmp_path, *sources, **plain), **changes}

    return make


def ids_of(dataset: Finished) -> list[str]:
    ids: list[str] = pq.read_table(dataset.store.local("documents.parquet")).column("id").to_pylist()
    return ids


def followed(config: Row) -> tuple[Finished, list[Story]]:
    """A run, and the story of each of its documents, packed or not."""
    packtrain.run(config)
    dataset = open_dataset(Path(config["out"]))
    follower = Follower(dataset)
    assert follower.cached is not None
    return dataset, [follower.by_number(doc) for doc in range(follower.cached.count)]


def tokens_of(story: Story) -> Iterator[tuple[int, int, Stretch]]:
    """(place in the document, id, its stretch) of each token."""
    for stretch in story.stretches:
        for offset, id in enumerate(stretch.ids):
            yield stretch.begin + offset, id, stretch


def held_against_the_shards(dataset: Finished, stories: list[Story]) -> None:
    """The pieces that stories name are all pieces there are, token by token and label by label."""
    pieces: Counter[tuple[Any, ...]] = Counter()
    for split, record in dataset.manifest.splits.items():
        for row in range(record.rows):
            columns = dataset.row(row, split).to_pylist()[0]
            at = 0
            sizes = columns["seq_lengths"]
            own = columns.get(UNPADDED, sizes)
            for doc_id, start, size, tokens in zip(columns["doc_ids"], columns["doc_starts"], sizes, own, strict=True):
                here = slice(at, at + tokens)
                pieces[split, row, at, doc_id, start, *columns["input_ids"][here], "|", *columns["labels"][here]] += 1
                at += size
    align = 1 if UNPADDED in dataset.manifest.schema else dataset.manifest.plan["config"]["pack"]["align"]
    pad = dataset.manifest.plan["tokenizer"]["pad_id"]
    for story in stories:
        for one in story.standings:
            ids, labels, gap = one.piece.ids, one.piece.labels, -len(one.piece.ids) % align
            key = (*ids, *[pad] * gap, "|", *labels, *[IGNORE_INDEX] * gap)
            pieces[one.split, one.row, one.at, story.doc_id, one.piece.start, *key] -= 1
        held = [one.piece for one in story.standings]
        for index, id, stretch in tokens_of(story):
            labels = [one.labels[index - one.start] for one in held if one.start <= index < one.start + len(one.ids)]
            assert (stretch.fate is TokenFate.TRAINED) == any(label == id for label in labels)
            assert stretch.trained == sum(label != IGNORE_INDEX for label in labels)
            assert stretch.stands == len(labels)
    assert set(pieces.values()) == {0}


def held_against_the_ledger(dataset: Finished, stories: list[Story]) -> None:
    """Reasons, cuts and fates add up to what the run counted."""
    total: SourceLedger = dataset.manifest.ledger.total()
    dropped = Counter(story.reason for story in stories if story.state == "dropped")
    refused = {"template_error"}
    assert dropped == {key: count for key, count in total.examples_dropped.items() if key not in refused}
    assert sum(story.state == "packed" for story in stories) == sum(total.examples_packed.values())
    assert sum(story.copies for story in stories) == sum(total.examples_packed.values()) + total.examples_repeated
    cuts: Counter[str] = Counter()
    for story in stories:
        for cut in story.cuts:
            cuts[cut.reason.removeprefix("truncate.")] += cut.end - cut.begin
    pieces = cuts.pop("a piece in which nothing would be trained", 0)
    assert cuts == total.tokens_truncated
    assert pieces <= total.tokens_dropped.get("untrained_piece", 0)
    if not total.tokens_created.get("overlap"):  # else the overlap of a piece left out stands at the head of the next
        assert pieces == total.tokens_dropped.get("untrained_piece", 0)
    every = [(story, stretch) for story in stories for stretch in story.stretches]
    assert sum(one.trained * len(one.ids) for _, one in every) == total.labels_trained
    if not total.tokens_created.get("overlap"):
        heads = sum(story.copies * len(one.ids) for story, one in every if one.fate is TokenFate.HEAD)
        assert heads == total.labels_head
    for story in stories:
        gone = {index for cut in story.cuts for index in range(cut.begin, cut.end)}
        assert gone == {index for index, _, one in tokens_of(story) if one.fate is TokenFate.CUT}


CUT = {"max_length": 40, "overlong": "split", "split": {"at": "tokens", "overlap": 1}}


CHANGES: list[Row] = [
    {},
    {"truncate": CUT, "each": {"chats": {"mask": "all"}}},
    {"truncate": CUT, "each": {"chats": {"weight": 1, "repeat": 3}, "texts": {"weight": 0.1}}},
    {"mask": "assistant", "holdout": {"fraction": 0.4}},
    {"mask": "all", "pack": {"strategy": "wrapped"}, "truncate": {"max_length": 50}},
    {"mask": "last_assistant", "duplicates": "drop", "pack": {"strategy": "bfd_split"}},
    {"mask": {"policy": "assistant", "train_end": False}, "truncate": {"max_length": 32, "overlong": "drop"}},
    {"truncate": {"max_length": 40, "overlong": "split", "split": {"at": "turns", "overlap": 3}}},
    {"truncate": {"max_length": 64, "max_prompt_length": 9, "max_completion_length": 30, "keep": "end"}},
    {"pack": {"align": 8, "max_docs": 2, "shuffle": False}, "filter": {"min_tokens": 4, "max_tokens": 200}},
    {"keep_untrained": True, "duplicates": "drop", "pack": {"strategy": "none"}, "output": {"format": "parquet"}},
    {"pack": {"parallel": {"cp": 4}}, "truncate": {"max_length": 64, "max_completion_length": 30}},
    {
        "mask": "all",
        "pack": {"strategy": "wrapped", "parallel": {"cp": 7, "layout": "ring"}},
        "truncate": {"max_length": 49},
    },
]


@pytest.mark.parametrize(
    "changes",
    [pytest.param(one, marks=[pytest.mark.slow] * (place % 3 > 0)) for place, one in enumerate(CHANGES)],
    ids=lambda changes: ",".join(changes) or "default",
)
def test_every_document_agrees_with_shards_and_ledger(configure: Configure, changes: Row) -> None:
    dataset, stories = followed(configure(**changes))
    assert len(stories) == 9 + 3 - 1, "every example that could be rendered"
    for story in stories:
        assert sum(len(one.ids) for one in story.stretches) == story.total
        assert not story.notes
    held_against_the_shards(dataset, stories)
    held_against_the_ledger(dataset, stories)


def test_a_duplicate_names_its_twin(configure: Configure) -> None:
    config = configure(duplicates="drop")
    packtrain.run(config)
    story = Follower(open_dataset(Path(config["out"]))).by_id("chats/chats:5")
    assert (story.state, story.reason, story.twin) == ("dropped", "duplicate", "chats/chats:1")


def test_rows_that_gave_no_document(configure: Configure, tmp_path: Path) -> None:
    config = configure()
    rows = [{"id": n, "question": f"q{n}", "solutions": json.dumps(s)} for n, s in enumerate([["a", "b", "a"], []])]
    config["sources"].append({"name": "apps", "format": "apps", "path": write(tmp_path / "apps.jsonl", rows)})
    config["sources"][1]["max_rows"] = 2
    packtrain.run(config)
    follower = Follower(open_dataset(Path(config["out"])))

    broken = follower.by_id("chats/chats:8")
    assert (broken.state, broken.reason, broken.origin.value) == ("rejected", "invalid_json", "{not json")
    assert follower.by_id("chats/chats.jsonl:8").address.id == "chats/chats:8", "as rejects.jsonl shows it"
    refused = follower.by_id("chats/chats:10")
    assert (refused.state, refused.reason) == ("rejected", "template_error")
    assert follower.by_id("chats/chats:11").state == "blank"
    beyond = follower.by_id("texts/texts:3")
    assert beyond.state == "not taken"
    empty = follower.by_id("apps/apps:2")
    assert empty.state == "left out"
    with pytest.raises(InputError) as none:
        follower.by_id("apps/apps:1/2")
    assert "apps/apps:1/0, apps/apps:1/1" in str(none.value)
    untrained = follower.by_id("chats/chats:6")
    assert (untrained.state, untrained.reason) == ("dropped", "untrained")
    assert {one.fate for one in untrained.stretches} == {TokenFate.DROPPED}


def test_a_changed_source_is_said(configure: Configure, tmp_path: Path) -> None:
    config = configure()
    packtrain.run(config)
    path = tmp_path / "chats.jsonl"
    content = path.read_bytes()

    def story() -> Story:
        return Follower(open_dataset(Path(config["out"]))).by_id("chats/chats:2")

    path.write_bytes(content + b'{"messages": []}\n')
    grown = story()
    assert grown.origin.state == "same"
    assert grown.origin.value == CHATS[1]

    path.write_bytes(content.replace(b"how far is it", b"how far is IT"))
    changed = story()
    assert changed.origin.state == "changed"
    assert str(path) in changed.origin.said
    assert f"{len(content):,} bytes" in changed.origin.said
    assert changed.origin.item is None
    assert "".join(one.text for one in changed.stretches).count("how far is it") == 1

    path.unlink()
    gone = story()
    assert gone.origin.state == "gone"
    assert Follower(open_dataset(Path(config["out"]))).by_id("chats/chats:11").state == "left out"


def test_what_is_left_without_cache_and_notes(configure: Configure, tmp_path: Path) -> None:
    config = configure(mask="assistant", duplicates="drop")
    packtrain.run(config)
    follower = Follower(open_dataset(Path(config["out"])))
    whole = {id: follower.by_id(id) for id in ids_of(follower.dataset)}
    shutil.rmtree(config["cache"])
    follower = Follower(open_dataset(Path(config["out"])))
    for id, before in whole.items():
        story = follower.by_id(id)
        assert story.origin.value == before.origin.value
        assert story.standings == before.standings
        stood = [(index, id, one.trained) for index, id, one in tokens_of(before) if one.stands]
        assert [(index, id, one.trained) for index, id, one in tokens_of(story)] == stood
        assert {one.kind for one in story.stretches} == {None}
    lost = follower.by_id("chats/chats:5")
    assert (lost.state, lost.reason) == ("dropped", "")
    with pytest.raises(InputError):
        follower.by_number(4)

    shutil.rmtree(Path(config["out"]) / "_run")
    follower = Follower(open_dataset(Path(config["out"])))
    for id, before in whole.items():
        story = follower.by_id(id)
        assert story.origin.state == "unknown"
        assert story.standings == before.standings
        assert any("--tokenizer" in note for note in story.notes)
    named = Follower(open_dataset(Path(config["out"])), Path(config["tokenizer"]["path"])).by_id("chats/chats:1")
    assert "".join(one.text for one in named.stretches) == "".join(one.text for one in whole["chats/chats:1"].stretches)


def test_many_blocks_and_files(configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of which nothing is packed lie before, between and behind others, in files of several blocks."""
    monkeypatch.setattr("packtrain.pipeline.inputs.scan.BLOCK_BYTES", 300)
    folder = tmp_path / "data"
    folder.mkdir()
    kept, lost = "x" * 60, "y" * 9
    shapes = {
        "a": [kept] * 20,
        "b": [lost] * 40,
        "c": [*[lost] * 30, *[kept] * 9, *[lost] * 30, kept],
        "d": [lost] * 30,
    }
    for name, texts in shapes.items():
        write(folder / f"{name}.jsonl", [{"text": f"{text}{name}{n}"} for n, text in enumerate(texts)])
    marked = folder / "a.jsonl"
    marked.write_bytes(b"\xef\xbb\xbf" + marked.read_bytes())
    config = configure(sources=[{"name": "s", "format": "text", "path": str(folder)}], filter={"min_tokens": 30})
    packtrain.run(config)
    dataset = open_dataset(Path(config["out"]))
    follower = Follower(dataset)
    assert follower.cached is not None
    assert len(follower.cached.parts) > 12
    expected = [f"s/{name}:{n + 1}" for name, texts in shapes.items() for n in range(len(texts))]
    for doc, id in enumerate(expected):
        for story in (follower.by_number(doc), follower.by_id(id)):
            assert (story.address.id, story.doc_id) == (id, doc)
            assert story.origin.value["text"][0] == ("x" if story.state == "packed" else "y")
            assert (story.state, story.reason) in {("packed", ""), ("dropped", "min_tokens")}
    for name in shapes:
        (folder / f"{name}.jsonl").unlink()
    assert follower.by_number(65).address.id == "s/c:6", "before something packed in its file"
    gone = follower.by_number(25)
    assert (gone.address.id, gone.state, gone.reason) == ("s/b:6", "dropped", "min_tokens"), "nothing of it was packed"
    assert gone.origin.state == "gone"


def test_preference_pairs_are_shown_by_row(configure: Configure, tmp_path: Path, packtrain: Callable[..., Any]) -> None:
    from packtrain.pipeline.run.run import run

    rows = [{"prompt": f"say {n}", "chosen": f" it is {n}", "rejected": f" no, {n}"} for n in range(9)]
    path = write(tmp_path / "pairs.jsonl", rows)
    config = configure(sources=[{"name": "p", "format": "preference", "path": path}])
    run(config)
    for line in (1, 5, 9):
        done = packtrain("inspect", config["out"], "--id", f"p/pairs:{line}")
        assert done.code == 0
        assert f'"rejected": " no, {line - 1}"' in done.out
        (command,) = (one for one in done.out.splitlines() if one.startswith("  packtrain inspect"))
        assert str(line) in packtrain(*shlex.split(command)[1:]).out
