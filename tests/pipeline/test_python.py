"""`import packtrain` gives what the commands give: each function's example runs as it stands in its docstring."""

import doctest
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import packtrain
import pytest
from packtrain.schemas.notebook import Shown

from tests import kit

FUNCTIONS = (
    "contamination",
    "diff",
    "explain",
    "export",
    "inspect",
    "open",
    "plan",
    "repair",
    "report",
    "run",
    "verify",
)
REPR_CHARACTERS = 300
"""Most characters of the `repr` of a result, or of a part of it."""
ACTIVE = '<script>alert("x")</script>\x1b[31m\u202e'


@pytest.fixture
def here(workplace: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the workplace, as the working directory: `packed`, `packed-2k`, `mix.yaml` and its inputs."""
    folder: Path = workplace.copy(tmp_path / "here")
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("name", FUNCTIONS)
def test_its_example_runs_and_it_prints_nothing(here: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    function = getattr(packtrain, name)
    (test,) = doctest.DocTestFinder(recurse=False).find(function, name, globs={"packtrain": packtrain})
    assert test.examples, "no example"
    assert any(f"packtrain.{name}(" in example.source for example in test.examples)
    failures: list[str] = []
    assert doctest.DocTestRunner(verbose=False).run(test, out=failures.append).failed == 0, "".join(failures)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_is_typed_and_described(name: str) -> None:
    """Parameters and result have types, and each parameter is described, there or where the docstring points to."""
    function = getattr(packtrain, name)
    signature = inspect.signature(function)
    assert signature.return_annotation is not inspect.Signature.empty
    for parameter in signature.parameters.values():
        assert parameter.annotation is not inspect.Parameter.empty
    assert "Raises:" in (inspect.getdoc(function) or "")


def results(here: Path) -> Iterator[Any]:
    """What each function returns."""
    yield packtrain.run("mix.yaml", overrides={"out": "again"})
    yield packtrain.plan("mix.yaml")
    yield packtrain.open("packed")
    yield packtrain.open("packed").ledger
    yield packtrain.report("packed")
    yield packtrain.inspect("packed", 1)
    yield packtrain.explain("packed", "chats/chats:1")
    yield packtrain.explain("packed", 0)
    yield packtrain.diff("packed", "packed-2k")
    yield packtrain.diff("packed", "packed")
    yield packtrain.verify("packed", deep=True)
    yield packtrain.contamination("mix.yaml", against=here / "test.jsonl")
    yield packtrain.export("packed", "mds", "exported")
    yield packtrain.export("packed", "hf://me/packed", dry_run=True)
    shard = next((here / "packed").rglob("shards/*.arrow"))
    shard.write_bytes(shard.read_bytes()[:-8])
    yield packtrain.verify("packed")
    yield packtrain.repair("packed", "mix.yaml")


@pytest.mark.slow
def test_results_are_plain_and_short(here: Path) -> None:
    """Frozen, with a line as `repr`, and with tables in a notebook."""
    for result in results(here):
        assert isinstance(result, Shown)
        assert len(repr(result)) <= REPR_CHARACTERS, repr(result)
        assert "\n" not in repr(result)
        page = result._repr_html_()
        assert page.count("<table>") == page.count("</table>")
        assert page.count("<tr>") == page.count("</tr>")
        assert len(page) < 200_000


def parts_of(value: Any) -> Iterator[Any]:
    """A result, and every object that its attributes lead to."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from parts_of(item)
    elif is_dataclass(value):
        yield value
        for field in fields(value):
            yield from parts_of(getattr(value, field.name))


def test_parts_of_results_are_short_too(here: Path) -> None:
    """A shell shows the ledger of a source, or the comparison of lengths in a line, never in pages."""
    report = packtrain.report("packed")
    dataset = packtrain.open("packed")
    kinds = set()
    for part in parts_of([report, dataset.ledger, dataset.ledger.total(), packtrain.plan("mix.yaml")]):
        if isinstance(part, Shown):
            kinds.add(type(part).__name__)
            assert len(repr(part)) <= REPR_CHARACTERS, repr(part)
    assert kinds >= {"Report", "Choice", "Flow", "Ledger", "SourceLedger", "ShownRow"}
    total = dataset.ledger.total()
    assert f"{total.rows_read:,} rows read" in repr(total)
    assert f"<td>{total.tokens_packed:,}</td>" in total._repr_html_()


def test_a_configuration_shows_what_is_set(here: Path) -> None:
    config = packtrain.RunConfig.model_validate(kit.configure(here, "texts", seed=7))
    assert "seed=7" in repr(config)
    assert "keep_untrained" not in repr(config), "a default"


def test_what_comes_from_data_is_escaped(tmp_path: Path) -> None:
    """Texts, names of files and reasons cannot write a notebook's page, or control a terminal."""
    rows = [{"text": f"{ACTIVE} {number}"} for number in range(30)] + [{"text": [ACTIVE]}]
    kit.write(tmp_path / "<b>rows.jsonl", rows)
    config = kit.configure(tmp_path, {"name": "s", "format": "text", "path": "<b>rows.jsonl"})
    packed = kit.packed(config).folder
    shown = [
        packtrain.inspect(packed),
        packtrain.report(packed),
        packtrain.plan(config, base=tmp_path),
        packtrain.open(packed),
        packtrain.explain(packed, "s/<b>rows:31"),
        packtrain.explain(packed, 0),
    ]
    for result in shown:
        for text in (repr(result), result._repr_html_()):
            assert "\x1b" not in text
            assert "\u202e" not in text
        assert "<script" not in result._repr_html_()
        assert "<b>rows" not in result._repr_html_()
    assert "script&gt;" in shown[0]._repr_html_()


def test_a_dataset(here: Path) -> None:
    dataset = packtrain.open("packed")
    expected = kit.Packed(here / "packed")
    assert dataset.path == str(here / "packed")
    assert list(dataset.splits) == expected.splits
    assert dataset.documents().to_pylist() == expected.examples()
    assert dataset.rows("train").to_pylist() == expected.rows("train")
    assert dataset.ledger.sources["chats"].rows_read == expected.ledger["chats"]["rows_read"]
    with pytest.raises(packtrain.PacktrainError, match="did you mean train"):
        dataset.rows("trian")
    (here / "packed" / "documents.parquet").write_bytes(b"PAR1")
    with pytest.raises(packtrain.PacktrainError, match=r"documents\.parquet has 4 bytes"):
        dataset.documents()


def test_overrides_are_named_in_errors(here: Path) -> None:
    for function in (packtrain.run, packtrain.plan):
        with pytest.raises(
            packtrain.PacktrainError, match=r"overrides\['truncate.max_length'\]: truncate.max_length: "
        ):
            function("mix.yaml", overrides={"truncate.max_length": 1})
        with pytest.raises(packtrain.PacktrainError, match="did you mean max_length"):
            function("mix.yaml", overrides={"truncate.max_lenght": 128})


def test_a_plan_takes_datasets_in_memory(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list(kit.corpus("texts"))
    config = kit.configure(tmp_path, "texts")
    report = packtrain.plan(config | {"sources": []}, data={"texts": rows})
    assert report.flow is not None
    assert report.flow.sources["texts"].rows_read == 90


def test_help_describes_every_key() -> None:
    text = re.sub(r"\s+", " ", packtrain.RunConfig.__doc__ or "")
    pages = json.loads(json.dumps(packtrain.RunConfig.model_json_schema()))
    seen = 0
    for section in (pages, *pages["$defs"].values()):
        for name, key in section.get("properties", {}).items():
            assert re.search(rf"(?<![\w]){name} \(", text), name
            description = " ".join(key.get("description", "").split())
            assert description in text
            seen += 1
    assert seen > 60
    assert "Keys:" not in json.dumps(pages), "the schema describes each key by itself"


def test_a_star_does_not_replace_what_python_has() -> None:
    names: dict[str, Any] = {}
    exec("from packtrain import *", names)
    assert names["run"] is packtrain.run
    assert "open" not in names
    assert "open" in dir(packtrain)


def test_listing_the_names_imports_nothing_heavy() -> None:
    code = "import packtrain, sys; dir(packtrain); packtrain.run; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
