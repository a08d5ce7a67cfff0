"""Inspect by id: every example of a run, compared with the shards and the ledger."""

import json
import shlex
import shutil
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import packtrain
import pytest
from packtrain.pipeline.dataset.open_dataset import Finished, open_dataset
from packtrain.pipeline.explain import Story, explain_example
from packtrain.schemas.errors import InputError, IntegrityError
from packtrain.schemas.rows import IGNORE_INDEX

from tests import kit

Row = dict[str, Any]
Configure = Callable[..., Row]


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
    chat("this is FORBIDDEN", "is it"),
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
    tokenizer = make_tokenizer("refusing", template=kit.REFUSE + kit.CHATML)

    def make(each: Row | None = None, **changes: Any) -> Row:
        paths = {"chats": write(tmp_path / "chats.jsonl", CHATS), "texts": write(tmp_path / "texts.jsonl", TEXTS)}
        sources = [kit.source(name, path=path, **(each or {}).get(name, {})) for name, path in paths.items()]
        plain: Row = {"tokenizer": {"path": str(tokenizer)}, "truncate": {"max_length": 64}}
        return {**kit.configure(tmp_path, *sources, **plain), **changes}

    return make


def followed(config: Row) -> tuple[Finished, list[Story]]:
    """A run, and the story of each of its documents, packed or not."""
    packtrain.run(config)
    dataset = open_dataset(Path(config["out"]))
    return dataset, [explain_example(dataset, str(doc)) for doc in range(dataset.documents(["doc_id"]).num_rows)]


def pieces_of(dataset: Finished) -> "Counter[tuple[Any, ...]]":
    """Document, split, row, first token and trained labels of each piece in the shards."""
    out: Counter[tuple[Any, ...]] = Counter()
    for split, record in dataset.manifest.splits.items():
        for row in range(record.rows):
            columns = dataset.row(row, split).to_pylist()[0]
            at = 0
            for doc_id, start, size in zip(
                columns["doc_ids"], columns["doc_starts"], columns["seq_lengths"], strict=True
            ):
                trained = sum(label != IGNORE_INDEX for label in columns["labels"][at : at + size])
                out[doc_id, split, row, start, trained] += 1
                at += size
    return out


CUT = {"max_length": 40, "overlong": "split", "split": {"at": "tokens", "overlap": 1}}
CHANGES: list[Row] = [
    {"truncate": CUT, "each": {"chats": {"mask": "all", "weight": 1, "repeat": 3}, "texts": {"weight": 0.1}}},
    {"mask": "assistant", "holdout": {"fraction": 0.4}, "truncate": {"max_length": 32, "overlong": "drop"}},
    {"mask": "last_assistant", "duplicates": "drop", "pack": {"strategy": "bfd_split"}},
    {"truncate": {"max_length": 24, "keep": "end"}},
    {"pack": {"align": 8, "max_docs": 2}, "filter": {"min_tokens": 4, "max_tokens": 200}},
]


@pytest.mark.parametrize("changes", CHANGES, ids=lambda changes: ",".join(changes))
def test_every_document_agrees_with_shards_and_ledger(configure: Configure, changes: Row) -> None:
    dataset, stories = followed(configure(**changes))
    total = dataset.manifest.ledger.total()
    assert len(stories) == 9 + 3 - 1, "every example that could be rendered"
    named = [(story.doc_id, one.split, one.row, one.start, one.trained) for story in stories for one in story.standings]
    assert Counter(named) == pieces_of(dataset)
    assert sum(one.trained for story in stories for one in story.standings) == total.labels_trained
    dropped = Counter(story.reason for story in stories if story.state == "dropped")
    assert dropped == {key: count for key, count in total.examples_dropped.items() if key != "template_error"}
    assert sum(story.state == "packed" for story in stories) == sum(total.examples_packed.values())
    assert sum(story.copies for story in stories) == sum(total.examples_packed.values()) + total.examples_repeated
    cut: Counter[str] = Counter()
    for story in stories:
        cut.update({what.removeprefix("truncate."): tokens for what, tokens in story.cut.items()})
    assert cut.pop("pieces in which nothing would be trained", 0) == total.tokens_dropped.get("untrained_piece", 0)
    assert cut == total.tokens_truncated


def test_rows_that_gave_no_document(configure: Configure, tmp_path: Path) -> None:
    config = configure(duplicates="drop")
    rows = [{"id": n, "question": f"q{n}", "solutions": json.dumps(s)} for n, s in enumerate([["a", "b", "a"], []])]
    config["sources"].append({"name": "apps", "format": "apps", "path": write(tmp_path / "apps.jsonl", rows)})
    config["sources"][1]["max_rows"] = 2
    packtrain.run(config)
    of = partial(explain_example, open_dataset(Path(config["out"])))

    twin = of("chats/chats:5")
    assert (twin.state, twin.reason, twin.twin) == ("dropped", "duplicate", "chats/chats:1")
    broken = of("chats/chats:8")
    assert (broken.state, broken.reason) == ("rejected", "invalid_json")
    assert of("chats/chats.jsonl:8").id == "chats/chats:8", "as rejects.jsonl shows it"
    refused = of("chats/chats:10")
    assert (refused.state, refused.reason) == ("rejected", "template_error")
    for none in ("chats/chats:11", "texts/texts:3", "apps/apps:2"):  # blank, beyond max_rows, without a solution
        with pytest.raises(InputError, match="no example of"):
            of(none)
    with pytest.raises(InputError) as wrong:
        of("apps/apps:1/2")
    assert "apps/apps:1/0, apps/apps:1/1" in str(wrong.value)
    untrained = of("chats/chats:6")
    assert (untrained.state, untrained.reason) == ("dropped", "untrained")


def test_a_copied_folder_without_notes_of_the_run_says_the_same(configure: Configure, tmp_path: Path) -> None:
    config = configure(mask="assistant", duplicates="drop")
    _, before = followed(config)
    assert {story.state for story in before} == {"packed", "dropped"}
    shutil.rmtree(config["cache"])
    (tmp_path / "chats.jsonl").unlink()
    copy = tmp_path / "copy"
    shutil.copytree(config["out"], copy, ignore=shutil.ignore_patterns("_run"))
    of = partial(explain_example, open_dataset(copy))
    assert [of(story.id) for story in before] == before
    (copy / "documents.parquet").unlink()
    with pytest.raises(IntegrityError, match=r"documents\.parquet"):
        of(before[0].id)


def test_many_blocks_and_files(configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of which nothing is packed lie before, between and behind others, in files of several blocks."""
    monkeypatch.setattr("packtrain.pipeline.inputs.scan.BLOCK_BYTES", 300)
    folder = tmp_path / "data"
    folder.mkdir()
    kept, lost = "x" * 60, "y" * 9
    shapes = {"a": [kept] * 9, "b": [lost] * 20, "c": [*[lost] * 15, *[kept] * 5, *[lost] * 15, kept]}
    for name, texts in shapes.items():
        write(folder / f"{name}.jsonl", [{"text": f"{text}{name}{n}"} for n, text in enumerate(texts)])
    marked = folder / "a.jsonl"
    marked.write_bytes(b"\xef\xbb\xbf" + marked.read_bytes())
    config = configure(sources=[{"name": "s", "format": "text", "path": str(folder)}], filter={"min_tokens": 30})
    packtrain.run(config)
    of = partial(explain_example, open_dataset(Path(config["out"])))
    shown = {f"s/{name}:{n + 1}": text for name, texts in shapes.items() for n, text in enumerate(texts)}
    for doc, id in enumerate(shown):
        for story in (of(str(doc)), of(id)):
            assert (story.id, story.doc_id) == (id, doc)
            assert (story.state, story.reason) == (("packed", "") if shown[id][0] == "x" else ("dropped", "min_tokens"))


def test_the_command_names_commands_that_work(configure: Configure, packtrain: Callable[..., Any]) -> None:
    config = configure()
    kit.packed(config)
    said = packtrain("inspect", config["out"], "--id", "texts/texts:1")
    (command,) = (one for one in said.out.splitlines() if one.startswith("  packtrain inspect"))
    assert "texts/texts:1" in packtrain(*shlex.split(command)[1:]).out


def test_preference_pairs_are_shown_by_row(configure: Configure, tmp_path: Path, packtrain: Callable[..., Any]) -> None:
    rows = [{"prompt": f"say {n}", "chosen": f" it is {n}", "rejected": f" no, {n}"} for n in range(9)]
    path = write(tmp_path / "pairs.jsonl", rows)
    config = configure(sources=[{"name": "p", "format": "preference", "path": path}])
    kit.packed(config)
    done = packtrain("inspect", config["out"], "--id", "p/pairs:5")
    assert done.code == 0
    (command,) = (one for one in done.out.splitlines() if one.startswith("  packtrain inspect"))
    assert "p/pairs:5" in packtrain(*shlex.split(command)[1:]).out
