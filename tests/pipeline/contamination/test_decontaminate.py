"""Runs that compare examples with evaluation data: what is found, what is left out, and that nothing else changes."""

import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from packtrain.pipeline.dataset.verify import verify
from packtrain.pipeline.inputs import scan
from packtrain.pipeline.run.plan import plan
from packtrain.pipeline.run.repair import repair
from packtrain.pipeline.run.run import run
from packtrain.schemas.config.config import RunConfig
from packtrain.schemas.errors import ConfigError, OutputError
from packtrain.schemas.manifest import Manifest

Config = dict[str, Any]

WORDS = (
    *("harbour", "lantern", "orchard", "pigeon", "quarry", "ribbon", "saddle", "timber", "umbrella", "violin"),
    *("walnut", "yacht", "zipper", "anchor"),
)
QUESTION = (
    "Thirty pigeons live in a harbour, and every morning seven of them carry a silver ribbon to the lantern on the "
    "island; how many mornings pass before each pigeon has carried one ribbon to the quarry?"
)
ANSWER = (
    "Each morning seven pigeons fly, so after four mornings twenty eight have flown, and on the fifth morning the last "
    "two carry their ribbons together with others"
)
SHORT = "Which anchor sinks below the old quarry?"
HOSTILE = "</script><script>alert(1)</script> \u202e<img src=x onerror=alert(2)> "
PLANTED = {
    "texts/text-0:4": f"{HOSTILE} and then: {QUESTION.upper()}",
    "texts/text-1:2": " ".join(QUESTION.split()[3:16]),
    "texts/text-2:30": f"well, {SHORT.replace(' ', '  ')}",
}
CHATS = {"chats/chats:7": (QUESTION.replace(",", " -"), "no idea"), "chats/chats:21": ("what now?", f"{ANSWER}!")}
FOUND = sorted([*PLANTED, *CHATS])


def jsonl(path: Path, rows: list[Any]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def little_text(chance: random.Random) -> str:
    return " ".join(chance.choices(WORDS, k=chance.randrange(5, 30)))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts in four files and chats in one, with the planted rows, and evaluation rows. Not to be changed."""
    folder = tmp_path_factory.mktemp("corpus")
    chance = random.Random(1)
    for number in range(4):
        rows = [
            {"text": PLANTED.get(f"texts/text-{number}:{line}", little_text(chance) + "." * line)}
            for line in range(1, 41)
        ]
        jsonl(folder / f"text-{number}.jsonl", rows)
    chats = []
    for line in range(1, 41):
        asked, said = CHATS.get(f"chats/chats:{line}", (little_text(chance), little_text(chance)))
        turns = [("user", "hello"), ("assistant", "hi"), ("user", asked), ("assistant", said)]
        chats.append({"messages": [{"role": role, "content": content} for role, content in turns]})
    jsonl(folder / "chats.jsonl", chats)
    rows = [
        {"id": f"q{number}", "question": little_text(random.Random(100 + number)) + " and more"} for number in range(9)
    ]
    rows += [
        {"id": "planted", "question": QUESTION, "answer": ANSWER},
        {"id": "short", "question": SHORT, "answer": "x"},
    ]
    jsonl(folder / "test.jsonl", rows)
    return folder


@pytest.fixture
def make(corpus: Path, tmp_path: Path, tiny_tokenizer: Path) -> Callable[..., Config]:
    """A configuration; `action` None compares nothing, other keyword arguments replace sections."""

    def config(out: str = "out", action: str | None = "drop", against: Any = None, **more: Any) -> Config:
        section = {"against": against or str(corpus / "test.jsonl"), "action": action}
        return {
            "out": str(tmp_path / out),
            "cache": str(tmp_path / "cache"),
            "tokenizer": {"path": str(tiny_tokenizer), "engine": "tokenizers"},
            "sources": [
                {"name": "texts", "format": "text", "path": [str(corpus / f"text-{n}.jsonl") for n in range(4)]},
                {"name": "chats", "format": "messages", "path": str(corpus / "chats.jsonl")},
            ],
            "truncate": {"max_length": 256},
            "run": {"workers": 1, "report": False},
            **({"decontaminate": section} if action else {}),
        } | more

    return config


def ids(out: str) -> list[str]:
    """Ids of the packed documents."""
    found: list[str] = pq.read_table(Path(out) / "documents.parquet", columns=["id"])["id"].to_pylist()
    return found


def hits(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(out) / "contamination.jsonl").read_text().splitlines()]


def shards(made: Manifest) -> list[str]:
    return [shard.name for split in made.splits.values() for shard in split.shards]


def test_what_is_planted_is_found_and_nothing_else(make: Callable[..., Config]) -> None:
    bare, report, drop = make("bare", None), make("report", "report"), make("drop", "drop")
    made = {config["out"]: run(config) for config in (bare, report, drop)}
    assert sorted({hit["id"] for hit in hits(report["out"])}) == FOUND
    assert [(hit["id"], hit["kind"], hit["match"], hit["evaluation_id"]) for hit in hits(drop["out"])] == [
        ("texts/text-0:4", "prompt", "whole", "planted"),
        ("texts/text-1:2", "prompt", "n-gram", "planted"),
        ("texts/text-2:30", "prompt", "whole", "short"),
        ("chats/chats:7", "prompt", "whole", "planted"),
        ("chats/chats:21", "answer", "whole", "planted"),
    ]
    assert all(hit["evaluation"] == "test.jsonl" and hit["evaluation_line"] in (10, 11) for hit in hits(drop["out"]))
    assert shards(made[report["out"]]) == shards(made[bare["out"]])
    total, kept = made[drop["out"]].ledger.total(), made[report["out"]].ledger.total()
    assert total.examples_dropped == {"contaminated": 5}
    assert total.examples_contaminated == kept.examples_contaminated == 5
    assert kept.examples_dropped == {}
    assert ids(drop["out"]) == [one for one in ids(bare["out"]) if one not in FOUND]
    assert "contamination.jsonl" in {file.name for file in made[drop["out"]].files}
    assert verify(drop["out"], deep=True).sound
    assert made[bare["out"]].plan["config"]["decontaminate"] is None
    assert "evaluation" not in made[bare["out"]].plan
    assert not (Path(bare["out"]) / "contamination.jsonl").exists()


def test_another_evaluation_file_encodes_nothing_again(make: Callable[..., Config], tmp_path: Path) -> None:
    run(make("bare", None))
    encoded = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache" / "encoded").rglob("*") if path.is_file()}
    other = tmp_path / "other.jsonl"
    jsonl(other, [{"prompt": SHORT}])
    run(make("one"))
    made = run(make("two", against=[str(other)]))
    assert made.ledger.total().examples_dropped == {"contaminated": 1}
    now = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache" / "encoded").rglob("*") if path.is_file()}
    assert now == encoded


def test_a_share_leaves_out_weak_hits(make: Callable[..., Config], corpus: Path) -> None:
    section = {"against": str(corpus / "test.jsonl"), "action": "drop", "share": 0.5}
    config = make(decontaminate=section)
    run(config)
    assert sorted({hit["id"] for hit in hits(config["out"])}) == [one for one in FOUND if one != "texts/text-1:2"]


def test_the_identity_covers_content_and_not_paths(make: Callable[..., Config], corpus: Path, tmp_path: Path) -> None:
    first = run(make("first"))
    (tmp_path / "elsewhere").mkdir()
    shutil.copy(corpus / "test.jsonl", tmp_path / "elsewhere" / "test.jsonl")
    assert run(make("second", against=str(tmp_path / "elsewhere" / "test.jsonl"))).hash == first.hash
    with (tmp_path / "elsewhere" / "test.jsonl").open("a") as file:
        file.write(json.dumps({"question": "something else that these chats never ask at all"}) + "\n")
    assert run(make("third", against=str(tmp_path / "elsewhere" / "test.jsonl"))).hash != first.hash
    with pytest.raises(Exception, match="belongs to another run") as refused:
        run(make("first", against=str(tmp_path / "elsewhere" / "test.jsonl")))
    assert "decontaminate.against" in str(refused.value)
    bare = RunConfig.model_validate(make("bare", None)).identity()
    assert bare["decontaminate"] is None
    assert "against" not in RunConfig.model_validate(make("bare")).identity()["decontaminate"]


def test_blocks_and_shards_do_not_matter(
    make: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make("one")
    first = run(one)
    for index in (1, 0):
        config = make(f"shared-{index}", cache=str(tmp_path / "shared"))
        config["run"] |= {"shard": f"{index}/2"}
        assert run(config | {"out": str(tmp_path / "shared-out")}).hash == first.hash
    monkeypatch.setattr(scan, "BLOCK_BYTES", 700)
    small = make("small", cache=str(tmp_path / "small-cache"))
    run(small)
    assert len(list((tmp_path / "small-cache" / "overlaps").rglob("*.json"))) > 20

    def bare(out: str) -> list[dict[str, Any]]:
        return [{key: value for key, value in hit.items() if key != "texts"} for hit in hits(out)]

    assert bare(small["out"]) == bare(one["out"])


def test_a_plan_shows_what_a_run_finds(make: Callable[..., Config]) -> None:
    config = make()
    report = plan(config)
    assert report.overlap is not None
    assert report.overlap.examples == 5
    assert re.findall(r"\d+", report.overlap.sentence)[:4] == ["5", "200", "2", "11"]
    assert plan(make(action=None)).overlap is None
    assert plan(config, rows=100).overlap is not None


def test_preference_pairs(make: Callable[..., Config], tmp_path: Path) -> None:
    chance = random.Random(5)
    rows = [{"prompt": little_text(chance), "chosen": f"c{at}", "rejected": f"r{at}"} for at in range(20)]
    rows[3]["rejected"] = QUESTION
    jsonl(tmp_path / "pairs.jsonl", rows)
    sources = [{"name": "pairs", "format": "preference", "path": str(tmp_path / "pairs.jsonl")}]
    config = make(sources=sources)
    assert run(config).ledger.total().examples_dropped == {"contaminated": 1}
    assert [hit["id"] for hit in hits(config["out"])] == ["pairs/pairs:4"]


def test_repair(make: Callable[..., Config], corpus: Path, tmp_path: Path, sparing_repairs: None) -> None:
    test = tmp_path / "test.jsonl"
    shutil.copy(corpus / "test.jsonl", test)
    config = make(against=str(test))
    out = Path(config["out"])
    made = run(config)
    whole = (out / "contamination.jsonl").read_bytes()
    kept, shard = test.read_bytes(), out / shards(made)[0]
    (out / "contamination.jsonl").unlink()
    shard.write_bytes(b"x")
    assert sorted(repair(out).rebuilt) == sorted(["contamination.jsonl", shards(made)[0]])
    assert (out / "contamination.jsonl").read_bytes() == whole
    shutil.rmtree(tmp_path / "cache" / "overlaps")
    shutil.rmtree(tmp_path / "cache" / "evaluations")
    (out / "contamination.jsonl").write_bytes(whole[:-9])
    test.unlink()
    with pytest.raises(ConfigError, match=r"decontaminate\.against"):
        repair(out)
    test.write_bytes(kept + b'{"question": "and one more question that was not there"}\n')
    with pytest.raises(OutputError, match=r"decontaminate\.against"):
        repair(out)
    test.write_bytes(kept)
    assert repair(out).rebuilt == ("contamination.jsonl",)
    assert verify(out, deep=True).sound


def test_the_report_shows_both_texts_and_runs_nothing(make: Callable[..., Config]) -> None:
    config = make(run={"workers": 1, "report": True})
    run(config)
    page = (Path(config["out"]) / "report.html").read_text()
    section = page[page.index('<section id="overlap"') :]
    section = section[: section.index("</main>")]
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in section
    assert "\u202e" not in page
    assert "<mark>THIRTY PIGEONS LIVE" in section
    assert "<mark>Thirty pigeons live" in section
    numbers = json.loads((Path(config["out"]) / "report.json").read_text())["overlap"]
    assert numbers["examples"] == 5
    assert [(one["source"], one["examples"], one["whole"], one["ngram"]) for one in numbers["counts"]] == [
        ("texts", 3, 2, 1), ("chats", 2, 2, 0)
    ]  # fmt: skip


def test_the_command_alone(
    make: Callable[..., Config], corpus: Path, tmp_path: Path, packtrain: Callable[..., Any]
) -> None:
    (tmp_path / "mix.yaml").write_text(json.dumps(make(action=None, tokenizer={"path": "there is none"})))
    done = packtrain("contamination", tmp_path / "mix.yaml", "--against", corpus / "test.jsonl", "--json")
    assert done.code == 0
    found = json.loads(done.out)
    assert (found["compared"], found["examples"], found["ngram"]) == (200, 5, 13)
    assert (found["rows"], found["rows_found"]) == (11, 2)
    target = tmp_path / "hits.jsonl"
    done = packtrain(
        "contamination", "--input", corpus / "text-0.jsonl", "--against", corpus / "test.jsonl", "--out", target
    )
    assert done.code == 0, done.err
    assert re.search(r"1 of 40 .* 1 of 11 ", done.out + done.err)
    (hit,) = [json.loads(line) for line in target.read_text().splitlines()]
    assert hit["id"] == "data/text-0:4"
    again = packtrain(
        "contamination", "--input", corpus / "text-0.jsonl", "--against", corpus / "test.jsonl", "--out", target
    )
    assert again.code == 2
