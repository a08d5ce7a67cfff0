"""Samples: whole rows, none twice, from everywhere, in proportion; and what is said of them is said of their inputs."""

import gzip
import io
import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.pipeline.observer import Silent
from packtrain.pipeline.report.plan_sample import sampled, take_lines
from packtrain.schemas.config.config import RunConfig

from tests import kit
from tests.support.examples import examples

Rows = list[dict[str, Any]]


def rows_of(count: int, first: int = 0) -> Rows:
    """Rows whose text says which they are; later ones are longer."""
    return [{"text": f"{number} " + "mule " * (1 + number // 40)} for number in range(first, first + count)]


def configured(folder: Path, *sources: dict[str, Any]) -> RunConfig:
    named = ({"name": f"s{number}", "format": "text", **source} for number, source in enumerate(sources))
    return RunConfig.model_validate(kit.configure(folder, *named))


def taken(config: RunConfig, rows: int, observer: Silent | None = None) -> tuple[list[Rows], float, bool]:
    """The sample's rows by source, how many there are said to be in all, and whether it is all of them."""
    with sampled(config, Path(), rows, observer or Silent()) as sample:
        found = [[row for path in source.path for row in read(Path(path))] for source in sample.config.sources]
        return found, sample.rows_estimated, sample.exhaustive


def read(path: Path) -> Rows:
    if path.suffix == ".parquet":
        return list(pq.read_table(path).to_pylist())
    if path.suffix == ".arrow":
        return list(pa.ipc.open_file(path).read_all().to_pylist())
    return [json.loads(line) for line in path.read_text().splitlines()]


def numbers(rows: Rows) -> list[int]:
    return [int(row["text"].split()[0]) for row in rows]


@examples(150)
@given(
    st.lists(st.integers(0, 300), min_size=1, max_size=60),
    st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=9),
    st.floats(0, 0.4),
    st.booleans(),
)
def test_the_lines_that_begin_in_a_stretch_are_taken_once(
    lengths: list[int], places: list[float], span: float, ended: bool
) -> None:
    every = [f"{number}:" + "x" * length for number, length in enumerate(lengths)]
    text = "\n".join(every) + ("\n" if ended else "")
    to = io.BytesIO()
    take_lines(io.BytesIO(text.encode()), len(text), sorted(places), span, to)
    begins = [sum(len(line) + 1 for line in every[:number]) for number in range(len(every))]
    size = len(text)
    spans = [(int(place * size), max(int((place + span) * size), int(place * size) + 1)) for place in places]
    inside = [every[n] for n, begin in enumerate(begins) if any(low <= begin < high for low, high in spans)]
    assert to.getvalue().decode() == "".join(f"{line}\n" for line in inside)


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("kind", ["jsonl", "parquet", "arrow"])
def test_rows_come_from_everywhere(kind: str, far: bool, tmp_path: Path) -> None:
    rows = rows_of(4000)
    path = tmp_path / f"a.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=700)
    elif kind == "arrow":
        table = pa.Table.from_pylist(rows)
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=300)
    else:
        kit.write(path, rows)
    ((found,), every, exhaustive) = taken(configured(tmp_path, {"path": path.as_uri() if far else str(path)}), 400)
    assert not exhaustive
    assert 320 <= len(found) <= 480
    assert abs(every - 4000) < 200
    known = numbers(found)
    assert known == sorted(set(known))
    # Late rows are ten times as long as early ones; each tenth has its share all the same.
    tenths = Counter(number // 400 for number in known)
    assert len(tenths) == 10
    assert max(tenths.values()) <= 2.2 * min(tenths.values())
    assert found == [rows[number] for number in known]


def test_sources_keep_their_shares(tmp_path: Path) -> None:
    kit.write(tmp_path / "a.jsonl", rows_of(6000))
    for part in range(5):
        kit.write(tmp_path / f"b{part}.jsonl", rows_of(400, 400 * part))
    config = configured(tmp_path, {"path": str(tmp_path / "a.jsonl")}, {"path": str(tmp_path / "b*.jsonl")})
    ((first, second), every, _) = taken(config, 800)
    assert 520 <= len(first) <= 680
    assert 160 <= len(second) <= 240
    assert {number // 400 for number in numbers(second)} == set(range(5))
    assert abs(every - 8000) < 400


def test_the_first_rows_are_all_that_max_rows_leaves(tmp_path: Path) -> None:
    kit.write(tmp_path / "a.jsonl", rows_of(4000))
    config = configured(tmp_path, {"path": str(tmp_path / "a.jsonl"), "max_rows": 1000})
    ((found,), every, _) = taken(config, 200)
    assert every == 1000
    assert max(numbers(found)) < 2200  # by bytes, and the first rows are shorter
    assert len(found) < 400


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.csv", "a.tsv"])
def test_what_can_be_read_from_its_beginning_only_says_so(name: str, tmp_path: Path) -> None:
    rows = rows_of(3000)
    path = tmp_path / name
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(kit.lines(rows)))
    else:
        body = "".join(f'"{row["text"]}\nand ""so"" on"\n' for row in rows)
        path.write_text("text\n" + body)
    observer = kit.Heard()
    config = configured(tmp_path, {"path": str(path)})
    with sampled(config, Path(), 150, observer) as sample:
        (source,) = sample.config.sources
        (written,) = (Path(one) for one in source.path)
        assert any("first rows" in note for note in observer.notes)
        assert written.name == "a.jsonl"
        more = "" if name.endswith(".gz") else '\nand "so" on'
        assert read(written) == [{"text": row["text"] + more} for row in rows[:150]]
        assert 1500 < sample.rows_estimated < 6000
        assert sample.origins[str(written)][:2] == (name, str(path))


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    kit.write(tmp_path / "a.jsonl", rows_of(3000))
    taken(configured(tmp_path, {"path": str(tmp_path / "a.jsonl")}), 100)
    assert not list((tmp_path / "tmp").iterdir())
    assert not (tmp_path / "out").exists()
