"""`packtrain.run` from Python: what it prints, and datasets in memory as sources."""

from pathlib import Path
from typing import Any

import datasets
import packtrain
import pytest
from packtrain.schemas.tables.reasons import REASONS
from packtrain.schemas.units import share

from tests import kit


@pytest.fixture
def config(tmp_path: Path) -> kit.Config:
    """Chats without a path."""
    made = kit.configure(tmp_path, "chats")
    return made | {"sources": [{"name": "chats", "format": "messages"}]}


def some_rejected(folder: Path, **keys: Any) -> kit.Config:
    """Chats of which one cannot be used."""
    rows = kit.corpus("chats")
    rows[3] = {"messages": "none"}
    kit.write(folder / "mine.jsonl", rows)
    return kit.configure(folder, kit.source("chats", path="mine.jsonl"), **keys)


@pytest.mark.filterwarnings("error::UserWarning")
def test_notes_are_printed_only_if_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = some_rejected(tmp_path)
    loud = packtrain.run(config, base=tmp_path, quiet=False)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"Rejected: 1 row or example of {len(kit.corpus('chats'))} rows (wrong_type 1). " in printed.err
    assert f" All: {tmp_path}/out/rejects.jsonl\n" in printed.err
    assert printed.err.splitlines() == list(loud.notes)
    heard = kit.Heard()
    observed = packtrain.run(config | {"out": str(tmp_path / "other")}, base=tmp_path, observer=heard)
    assert heard.notes == list(observed.notes) != []
    assert capsys.readouterr() == ("", "")


def test_a_quiet_run_keeps_its_notes_and_warns_of_what_it_loses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = some_rejected(tmp_path, mask="assistant", truncate={"max_length": 64})
    with pytest.warns(UserWarning, match="supervised tokens") as caught:
        dataset = packtrain.run(config, base=tmp_path)
    ours = [warning for warning in caught if warning.category is UserWarning]
    warned = [str(warning.message) for warning in ours]
    assert [text.partition(":")[0] for text in warned] == ["Trained", "Rejected"]
    assert {warning.filename for warning in ours} == {__file__}
    assert set(warned) < set(dataset.notes)
    total = dataset.ledger.total()
    trained = share(total.labels_trained / total.supervised_encoded)
    assert f"{trained} of {total.supervised_encoded:,} supervised tokens trained" in repr(dataset)
    assert f"{len(dataset.notes)} notes in .notes" in repr(dataset)
    assert "supervised tokens. The rest: " in dataset._repr_html_()
    assert capsys.readouterr() == ("", "")


@pytest.mark.filterwarnings("error::UserWarning")
def test_a_quiet_run_that_loses_nothing_warns_of_nothing(tmp_path: Path) -> None:
    config = kit.configure(tmp_path, "chats", truncate={"max_length": 1 << 14})
    dataset = packtrain.run(config, base=tmp_path)
    assert "Trained: all of " in "\n".join(dataset.notes)
    (note,) = packtrain.run(config, base=tmp_path).notes
    assert note == f"{tmp_path}/out is already finished; nothing to do"
    assert packtrain.open(tmp_path / "out").notes == ()


def test_plans_and_reports_say_in_notes_what_the_commands_print(tmp_path: Path) -> None:
    config = some_rejected(tmp_path, mask="assistant")
    plan = packtrain.plan(config, base=tmp_path)
    assert any(" Advice: max_length " in note for note in plan.notes)
    assert any(note.startswith("Trained: ") for note in plan.notes)
    packtrain.run(config, base=tmp_path, observer=packtrain.Observer())
    report = packtrain.report(tmp_path / "out")
    printed = kit.cli("report", tmp_path / "out").out
    assert report.notes
    assert all(note in printed for note in report.notes)
    assert "Notes" in report._repr_html_()


def test_mostly_rejected_rows_are_explained(tmp_path: Path) -> None:
    kit.write(tmp_path / "mine.jsonl", [*kit.corpus("chats", 9), *[{"messages": []}] * 20])
    made = kit.packed(kit.configure(tmp_path, kit.source("chats", path="mine.jsonl")))
    (said,) = [note for note in made.notes if note.startswith("Rejected")]
    (reason,) = made.ledger["chats"]["rows_rejected"]
    assert said.startswith(f"Rejected: 20 rows or examples of 29 rows ({reason} 20). {REASONS[reason]}")


def test_a_dataset_in_memory_is_packed_as_its_file(config: kit.Config, tmp_path: Path) -> None:
    rows = kit.corpus("chats")
    kit.write(tmp_path / "file" / "chats.arrow", rows)
    expected = kit.packed(kit.configure(tmp_path / "file", kit.source("chats", path="chats.arrow")))
    whole = datasets.Dataset.from_list(rows)
    packtrain.run(config, data={"chats": whole}, quiet=True)
    made = kit.Packed(tmp_path / "out")
    assert made.digest() == expected.digest()
    assert made.documents() == expected.documents()

    parts = [whole.select(range(40)), whole.select(range(40, len(rows)))]
    again = kit.Heard()
    packtrain.run(config, data={"chats": datasets.concatenate_datasets(parts)}, observer=again)
    assert again.notes == [f"{tmp_path}/out is already finished; nothing to do"]
    assert len(list((tmp_path / "cache" / "data").rglob("*.arrow"))) == 1, "written once, by content"
    with pytest.raises(packtrain.PacktrainError, match=str(tmp_path / "out")):
        packtrain.run(config, data={"chats": whole.select(range(40))}, quiet=True)


@pytest.mark.parametrize("given", ["mapping", "file", "validated"])
def test_it_is_a_further_source_of_any_configuration(given: str, tmp_path: Path) -> None:
    config = kit.configure(tmp_path, "texts", mask="assistant")
    forms: dict[str, Any] = {"file": kit.saved(config), "validated": packtrain.RunConfig.model_validate(config)}
    dataset = datasets.Dataset.from_list(kit.corpus("pairs"))
    manifest = packtrain.run(forms.get(given, config), base=tmp_path, data={"pairs": dataset}, quiet=True)
    assert {name: one.rows_used for name, one in manifest.ledger.sources.items()} == {"texts": 90, "pairs": 90}


def test_errors_name_what_the_user_wrote(config: kit.Config, tmp_path: Path) -> None:
    dataset = datasets.Dataset.from_list([{"colour": "blue"}] * 3)
    with pytest.raises(packtrain.PacktrainError, match=r"chats\.arrow"):
        packtrain.run(config, data={"chats": dataset}, quiet=True)
    splits = datasets.DatasetDict({"train": dataset, "test": dataset})
    with pytest.raises(packtrain.PacktrainError, match=r"chats\.split.* the splits train, test; say which"):
        packtrain.run(config, data={"chats": splits})
    with pytest.raises(packtrain.PacktrainError, match=r'data\["chats"\] is an IterableDataset.*max_rows'):
        packtrain.run(config, data={"chats": dataset.to_iterable_dataset()})
    listed: Any = [{"messages": []}]
    with pytest.raises(packtrain.PacktrainError, match=r'data\["chats"\] is of type list; .*from_list'):
        packtrain.run(config, data={"chats": listed})
    with pytest.raises(packtrain.PacktrainError, match=r'data\["chats"\]: sources.chats has a path'):
        packtrain.run(kit.configure(tmp_path, "chats"), data={"chats": dataset})
    with pytest.raises(packtrain.PacktrainError, match=r"sources\.0\.path: is required"):
        packtrain.run(config)


def test_splits_and_streams_give_what_the_dataset_gives(tmp_path: Path) -> None:
    rows = kit.corpus("chats")
    whole = datasets.Dataset.from_list(rows)
    for name, dataset, keys in (
        ("whole", whole, {}),
        ("only", datasets.DatasetDict({"train": whole}), {}),
        ("named", datasets.DatasetDict({"test": whole.select(range(3)), "train": whole}), {"split": "train"}),
        ("stream", whole.to_iterable_dataset(), {"max_rows": len(rows)}),
    ):
        config = kit.configure(tmp_path, out=str(tmp_path / name), mask="assistant")
        config["sources"] = [{"name": "chats", **keys}]
        packtrain.run(config, base=tmp_path, data={"chats": dataset})
    expected = kit.Packed(tmp_path / "whole").rows()
    for name in ("only", "named", "stream"):
        assert kit.Packed(tmp_path / name).rows() == expected, name


@pytest.mark.parametrize("apply", ["set_transform", "with_transform"])
def test_a_transform_on_the_fly_is_refused(apply: str, tmp_path: Path) -> None:
    dataset = datasets.Dataset.from_list(kit.corpus("chats"))
    changed = getattr(dataset, apply)(lambda batch: batch)
    config = kit.configure(tmp_path, mask="assistant")
    config["sources"] = []
    with pytest.raises(packtrain.PacktrainError, match=r'data\["chats"\] has a transform.*reset_format'):
        packtrain.run(config, data={"chats": dataset if changed is None else changed})
    with pytest.raises(packtrain.PacktrainError, match=r"has a transform"):
        packtrain.run(config, data={"chats": datasets.DatasetDict({"train": dataset if changed is None else changed})})
