"""Runs that compare examples with evaluation data: what is found, what is left out, and that nothing else changes."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import packtrain
import pytest
from packtrain.pipeline.dataset.verify import verify
from packtrain.pipeline.run.plan import plan
from packtrain.pipeline.run.repair import repair
from packtrain.schemas.config.config import RunConfig
from packtrain.schemas.errors import OutputError, PacktrainError

from tests import kit

Make = Callable[..., kit.Config]

QUESTION = (
    "Thirty pigeons live in a harbour, and every morning seven of them carry a silver ribbon to the lantern on the "
    "island; how many mornings pass before each pigeon has carried one ribbon to the quarry?"
)
ANSWER = (
    "Each morning seven pigeons fly, so after four mornings twenty eight have flown, and on the fifth morning the last "
    "two carry their ribbons together with others"
)
SHORT = "Which anchor sinks below the old quarry?"
PLANTED: dict[tuple[str, int], kit.Row] = {
    ("texts", 4): {"text": f"<b>to begin</b> with, and then: {QUESTION.upper()}"},
    ("texts", 42): {"text": " ".join(QUESTION.split()[3:16])},
    ("texts", 110): {"text": f"well, {SHORT.replace(' ', '  ')}"},
    ("pairs", 7): {"prompt": QUESTION.replace(",", " -"), "completion": "no idea"},
    ("pairs", 21): {"prompt": "what now?", "completion": f"{ANSWER}!"},
}
"""Rows that say the same as evaluation rows, by source and line."""
FOUND = [f"{name}/{name}:{line}" for name, line in PLANTED]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts and pairs with the planted rows, and evaluation rows. Not to be changed."""
    folder = tmp_path_factory.mktemp("corpus")
    for kind, count in (("texts", 160), ("pairs", 40)):
        rows = kit.corpus(kind, count)
        kit.write(folder / f"{kind}.jsonl", [PLANTED.get((kind, line), row) for line, row in enumerate(rows, 1)])
    rows = kit.corpus("texts", 10, seed=100)[1:]
    rows = [{"id": f"q{at}", "question": f"{row['text']} and so on, and on and on"} for at, row in enumerate(rows)]
    rows += [{"id": "planted", "question": QUESTION, "answer": ANSWER}, {"id": "short", "question": SHORT}]
    kit.write(folder / "test.jsonl", rows)
    return folder


@pytest.fixture
def make(corpus: Path, tmp_path: Path) -> Make:
    """A configuration; `action` None compares nothing, other keyword arguments replace sections."""

    def config(out: str = "out", action: str | None = "drop", against: Any = None, **more: Any) -> kit.Config:
        section = {"against": str(against or corpus / "test.jsonl"), "action": action}
        sources = [kit.source(kind, path=str(corpus / f"{kind}.jsonl")) for kind in ("texts", "pairs")]
        made = kit.configure(tmp_path, *sources, out=str(tmp_path / out), truncate={"max_length": 4096})
        return {**made, **({"contamination": section} if action else {}), **more}

    return config


def hits(packed: kit.Packed) -> list[kit.Row]:
    return [json.loads(line) for line in (packed.folder / "contamination.jsonl").read_text().splitlines()]


def shards(packed: kit.Packed) -> list[str]:
    return [shard["name"] for split in packed.record["splits"].values() for shard in split["shards"]]


def test_what_is_planted_is_found_and_nothing_else(make: Make, tmp_path: Path) -> None:
    bare = kit.packed(make("bare", None))
    encoded = {path: path.stat().st_ino for path in (tmp_path / "cache" / "encoded").rglob("*.arrow")}
    report, drop = kit.packed(make("report", "report")), kit.packed(make("drop", "drop"))
    assert encoded == {path: path.stat().st_ino for path in (tmp_path / "cache" / "encoded").rglob("*.arrow")}
    assert [hit["id"] for hit in hits(report)] == FOUND
    assert [(hit["kind"], hit["share"] == 1, hit["evaluation_line"]) for hit in hits(drop)] == [
        ("prompt", True, 10),
        ("prompt", False, 10),
        ("prompt", True, 11),
        ("prompt", True, 10),
        ("answer", True, 10),
    ]
    assert {hit["evaluation"] for hit in hits(drop)} == {"test.jsonl"}
    assert shards(report) == shards(bare)
    total, kept = drop.manifest.ledger.total(), report.manifest.ledger.total()
    assert total.examples_dropped == {"contaminated": 5}
    assert total.examples_contaminated == kept.examples_contaminated == 5
    assert kept.examples_dropped == {}
    assert [one["id"] for one in drop.documents()] == [one["id"] for one in bare.documents() if one["id"] not in FOUND]
    assert "contamination.jsonl" in {file.name for file in drop.manifest.files}
    assert verify(drop.folder, deep=True).sound
    assert bare.manifest.plan["config"]["contamination"] is None
    assert "evaluation" not in bare.manifest.plan
    assert not (bare.folder / "contamination.jsonl").exists()


def test_the_identity_covers_content_and_not_paths(make: Make, corpus: Path, tmp_path: Path) -> None:
    first = kit.packed(make("first")).manifest
    (tmp_path / "elsewhere").mkdir()
    other = Path(shutil.copy(corpus / "test.jsonl", tmp_path / "elsewhere"))
    assert kit.packed(make("second", against=other)).manifest.hash == first.hash
    other.write_bytes(other.read_bytes() + kit.lines([{"question": "a question that is in none of the sources"}]))
    assert kit.packed(make("third", against=other)).manifest.hash != first.hash
    with pytest.raises(PacktrainError, match="belongs to another run") as refused:
        kit.packed(make("first", against=other))
    assert "contamination.against" in str(refused.value)
    assert "against" not in RunConfig.model_validate(make("bare")).identity()["contamination"]


def test_a_plan_shows_what_a_run_finds(make: Make) -> None:
    report = plan(make())
    assert report.contamination is not None
    assert report.contamination.examples == 5
    assert re.findall(r"\d+", report.contamination.sentence)[:4] == ["5", "200", "2", "11"]
    assert [(one.source, one.examples, one.most) for one in report.contamination.counts] == [
        ("texts", 3, 2),
        ("pairs", 2, 2),
    ]
    assert plan(make(action=None)).contamination is None
    assert plan(make(), rows=100).contamination is not None


def test_preference_pairs(make: Make, tmp_path: Path) -> None:
    rows = kit.corpus("choices", 20)
    rows[3]["rejected"] = QUESTION
    path = kit.write(tmp_path / "choices.jsonl", rows)
    packed = kit.packed(make(sources=[kit.source("choices", path=str(path))]))
    assert packed.manifest.ledger.total().examples_dropped == {"contaminated": 1}
    assert [hit["id"] for hit in hits(packed)] == ["choices/choices:4"]


def test_repair(make: Make, corpus: Path, tmp_path: Path) -> None:
    test = tmp_path / "test.jsonl"
    shutil.copy(corpus / "test.jsonl", test)
    config = make(against=test)
    packed = kit.packed(config)
    lost, shard = packed.folder / "contamination.jsonl", shards(packed)[0]
    whole, kept = lost.read_bytes(), test.read_bytes()
    shutil.rmtree(tmp_path / "cache" / "contamination")
    lost.unlink()
    (packed.folder / shard).write_bytes(b"x")
    test.write_bytes(kept + b'{"question": "and one more question that was not there"}\n')
    with pytest.raises(OutputError, match=r"contamination\.against"):
        repair(packed.folder, config)
    test.write_bytes(kept)
    assert repair(packed.folder, config).sound
    assert lost.read_bytes() == whole


def test_the_command_needs_no_tokenizer(make: Make, corpus: Path) -> None:
    file = kit.saved(make(action=None, tokenizer={"path": "there is none"}))
    done = kit.cli("contamination", file, "--against", corpus / "test.jsonl")
    assert done.code == 0, done.err
    assert "5 of 200 examples share text with 2 of 11 evaluation rows" in done.out


def test_a_text_that_the_solutions_of_a_problem_share_is_shown_once(tmp_path: Path) -> None:
    question = "a merchant counts every crate of oranges that twelve slow ships carry over two cold rivers each spring"
    programs = json.dumps([f"print({number})" for number in range(3)])
    tests = json.dumps({"inputs": ["1\n"], "outputs": ["1\n"]})
    problem = {"id": 0, "question": question, "solutions": programs, "input_output": tests}
    kit.write(tmp_path / "train.jsonl", [problem, {**problem, "id": 1}])
    kit.write(tmp_path / "test.jsonl", [{"question": question, "answer": "1"}])
    source = {"name": "train", "path": str(tmp_path / "train.jsonl"), "format": "apps"}
    found = packtrain.contamination({"sources": [source]}, against=tmp_path / "test.jsonl")
    assert found.examples == 6
    assert sorted(hit.id.rpartition("/")[0] for hit in found.shown) == ["train/train:1", "train/train:2"]
