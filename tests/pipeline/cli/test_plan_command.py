"""`packtrain plan`: what it says is what the run then does, and it leaves nothing but the cache and two files."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import packtrain as package
import pytest
from packtrain.pipeline.report.sections import lead
from packtrain.pipeline.run.plan import plan
from packtrain.schemas.report.report import Report

from tests import kit

Command = Callable[..., Any]
Config = dict[str, Any]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Conversations, some of them damaged, and texts."""
    chats = kit.lines(kit.corpus("chats", 300)).splitlines(keepends=True)
    chats[7], chats[200] = b'{"messages": [\n', b'{"messages": []}\n'
    (tmp_path / "chats.jsonl").write_bytes(b"".join(chats))
    sources = [kit.source(name, path=str(tmp_path / f"{name}.jsonl")) for name in ("chats", "texts")]
    return kit.configure(tmp_path, *sources, out=str(tmp_path / "packed"), truncate={"max_length": 128})


@pytest.fixture
def file(config: Config) -> Path:
    return kit.saved(config, "mix.yaml")


def decoded(text: str) -> Report:
    return msgspec.json.decode(text, type=Report)


def test_the_run_does_what_it_says_and_encodes_nothing(
    packtrain: Command, file: Path, config: Config, tmp_path: Path
) -> None:
    done = packtrain("plan", file)
    assert (done.code, done.err) == (0, "")
    page, numbers = tmp_path / "packed-plan.html", tmp_path / "packed-plan.json"
    assert f"page: {page}" in done.out
    assert not (tmp_path / "packed").exists()
    ahead = decoded(numbers.read_text())
    assert ahead.kind == "plan"
    parts = {path: path.stat().st_ino for path in Path(config["cache"]).glob("encoded/**/*.arrow")}
    assert parts

    package.run(kit.merged(config, {"run": {"report": True}}))
    assert {path: path.stat().st_ino for path in Path(config["cache"]).glob("encoded/**/*.arrow")} == parts
    after = decoded((tmp_path / "packed" / "report.json").read_text())
    assert ahead.choice is not None
    assert ahead.flow is not None
    assert (ahead.choice, ahead.flow.sources) == (after.choice, after.flow and after.flow.sources)
    assert [(one.file, one.line) for one in ahead.flow.rejects] == [("chats.jsonl", 8), ("chats.jsonl", 201)]


def test_json_is_all_there_is_on_the_output(packtrain: Command, file: Path, config: Config, tmp_path: Path) -> None:
    before = {*tmp_path.iterdir(), Path(config["cache"])}
    done = packtrain("plan", file, "--json", "--lengths", "64,256", "--set", "seed=5")
    choice = decoded(done.out).choice
    assert choice is not None
    assert {one.max_length for one in choice.points} == {64, 128, 256}
    assert set(tmp_path.iterdir()) == before


def test_the_models_positions_limit_the_advice(packtrain: Command, file: Path, tmp_path: Path) -> None:
    model = shutil.copytree(kit.demo_tokenizer(), tmp_path / "model")
    (model / "config.json").write_text('{"max_position_embeddings": 64}')
    choice = decoded(packtrain("plan", file, "--json", "--set", f"tokenizer.path={model}").out).choice
    assert choice is not None
    assert choice.advice is not None
    assert choice.advice.max_length <= 64
    assert choice.over_limit


@pytest.mark.slow
def test_a_sample_says_about_the_same(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many blocks, and of files that are one: each source has its share, and longer rows at the end have theirs."""
    monkeypatch.setattr("packtrain.pipeline.inputs.scan.BLOCK_BYTES", 20_000)
    # Enough that a fifth of it is like the rest.
    kit.write(tmp_path / "chats.jsonl", sorted(kit.corpus("chats", 3000), key=lambda row: len(str(row))))
    lengths = (64, 128, 256)
    some, every = plan(file, lengths, rows=600), plan(file, lengths)
    assert some.sample is not None
    assert every.sample is None
    assert 500 <= some.sample.rows <= 700
    assert some.sample.rows_in_all == 3090
    assert some.choice is not None
    assert every.choice is not None
    assert abs(some.choice.documents_in_all / every.choice.documents - 1) < 0.1
    for one, other in zip(some.choice.points, every.choice.points, strict=True):
        assert (one.strategy, one.max_length) == (other.strategy, other.max_length)
        lost, truly = (p.labels_lost / (p.labels + p.labels_lost) for p in (one, other))
        assert abs(lost - truly) < 0.05
    assert not (tmp_path / "packed").exists()
    factor = re.search(r"times ([0-9.]+) for all data", lead(some))
    assert factor is not None
    assert float(factor[1]) == pytest.approx(some.sample.rows_in_all / some.sample.rows, rel=0.01)


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "csv", "parquet", "many files"])
def test_a_sample_of_any_input(config: Config, tmp_path: Path, kind: str) -> None:
    rows = [{"text": f"{number} " + "mule " * (1 + number % 40)} for number in range(2000)]
    if kind == "many files":
        (tmp_path / "parts").mkdir()
        for part in range(200):
            kit.write(tmp_path / "parts" / f"{part:03}.jsonl", rows[10 * part : 10 * part + 10])
        path = tmp_path / "parts"
    else:
        path = kit.write(tmp_path / f"rows.{kind}", rows)
    config["sources"] = [{"name": "s", "format": "text", "path": str(path)}]
    sample = plan(config, rows=100).sample
    assert sample is not None
    assert sample.rows_in_all == 2000
    assert 90 <= sample.rows <= 130
    assert plan(config, rows=1990).sample is None, "as good as all"


def test_rejects_of_a_sample_name_the_inputs(file: Path, tmp_path: Path) -> None:
    lines = b'{"messages": [\n'.join(kit.lines([row]) for row in kit.corpus("chats", 900))
    (tmp_path / "chats.jsonl").write_bytes(lines)
    flow = plan(file, rows=300).flow
    assert flow is not None
    assert flow.rejects
    for reject in flow.rejects:
        assert reject.file == "chats.jsonl"
        assert lines.splitlines()[reject.line - 1] == b'{"messages": ['


def test_an_output_of_another_run_is_left_alone(packtrain: Command, file: Path, tmp_path: Path) -> None:
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed/mine.txt").write_text("mine")
    assert packtrain("plan", file).code == 0
    assert [path.name for path in (tmp_path / "packed").iterdir()] == ["mine.txt"]
