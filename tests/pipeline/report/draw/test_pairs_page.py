"""Preference pairs in the report: the texts are those of the rows, completions marked, in the JSON and on the page."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import packtrain
import pytest
from packtrain.pipeline.dataset.decode import load_decoder
from packtrain.pipeline.dataset.open import open_dataset
from packtrain.pipeline.report.collect.gather import report_of_dataset
from packtrain.pipeline.report.collect.rows.shown import ROW_CHARACTERS
from packtrain.pipeline.report.files import report_html
from packtrain.pipeline.report.options import ReportOptions
from packtrain.schemas.report import Report, ShownPair, ShownText

HOSTILE = "</pre><script>window.__pwned=1</script>\x1b[31m\u202e"
LONG = 17


def row(number: int) -> dict[str, str]:
    more = " at last" * 2000 if number == LONG else ""
    hostile = HOSTILE if number == 0 else ""
    return {"prompt": f"Where do {number} mules go?{hostile}", "chosen": f"{number} uphill{more}", "rejected": "down"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: Path) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row(number)) + "\n" for number in range(30)))
    packtrain.run(
        {
            "out": "out",
            "cache": "cache",
            "tokenizer": {"path": str(tiny_tokenizer), "engine": "tokenizers"},
            "sources": [{"name": "liked", "format": "preference", "path": "pairs.jsonl"}],
            "truncate": {"max_length": 65536},
            "pack": {"shuffle": False},
            "run": {"workers": 1, "report": False},
        },
        base=folder,
    )
    return folder


def reported(folder: Path, rows: int) -> Report:
    return report_of_dataset(open_dataset(folder / "out"), ReportOptions(rows=rows))


def pairs_of(folder: Path, rows: int) -> list[ShownPair]:
    training = reported(folder, rows).training
    assert training is not None
    assert training.rows == []
    return training.pairs


def parts(pair: ShownPair) -> list[ShownText]:
    return [pair.prompt, pair.chosen, pair.rejected]


def test_they_are_what_stands_in_the_rows(folder: Path, tiny_tokenizer: Path) -> None:
    dataset, decoder = open_dataset(folder / "out"), load_decoder(tiny_tokenizer)
    shown = pairs_of(folder, 30)
    assert [pair.row for pair in shown] == [*range(30)]
    assert {pair.id for pair in shown} == {f"liked/pairs:{line}" for line in range(1, 31)}
    for pair in shown:
        packed = dataset.row(pair.row, "train").to_pylist()[0]
        assert (pair.split, pair.source, [pair.doc_id]) == ("train", "liked", packed["doc_ids"])
        for name, part in zip(("prompt", "chosen", "rejected"), parts(pair), strict=True):
            ids = packed[f"{name}_ids"]
            assert part.tokens == len(ids) == sum(piece.tokens for piece in part.pieces)
            assert {piece.trained for piece in part.pieces} == {name != "prompt"}
            if not part.shortened:
                assert "".join(piece.text for piece in part.pieces) == decoder.text(ids)
    (long,) = (pair for pair in shown if any(part.shortened for part in parts(pair)))
    assert (long.id, long.chosen.shortened) == (f"liked/pairs:{LONG + 1}", True)
    text = long.chosen.pieces[0].text
    assert len(text) < ROW_CHARACTERS
    assert " … " in text


@pytest.mark.parametrize(("wanted", "rows"), [(0, []), (1, [0]), (3, [0, 10, 20]), (100, [*range(30)])])
def test_so_many_as_are_asked_for_from_everywhere(folder: Path, wanted: int, rows: list[int]) -> None:
    assert [pair.row for pair in pairs_of(folder, wanted)] == rows


def test_they_stand_on_the_page_with_completions_marked(folder: Path) -> None:
    report = reported(folder, 30)
    page = report_html(report).decode()
    assert "<script>window" not in page
    assert not {"\x1b", "\u202e"} & {*page}
    assert page.count('<article class="row"') == 30
    mark = '<mark><span class="hidden">[trained: </span>'
    assert page.count(mark) == 60
    assert f"{mark}3 uphill" in page
    assert f"{mark}Where do" not in page
    assert report.training is not None
    without = replace(report, training=replace(report.training, pairs=[], rows_absent="None."))
    assert "<article" not in report_html(without).decode()


def test_nothing_of_one_is_left_out(folder: Path) -> None:
    """Every field of a pair is on the page: what the JSON has, a reader sees."""
    pair = pairs_of(folder, 30)[5]
    page = report_html(reported(folder, 30)).decode()
    assert {field.name for field in fields(ShownPair)} == {
        "split", "row", "id", "source", "doc_id", "prompt", "chosen", "rejected"
    }  # fmt: skip
    for text in (f"Pair {pair.row} of {pair.split}", pair.id, f"Prompt of {pair.prompt.tokens} tokens"):
        assert text in page


@pytest.mark.xdist_group("chromium")
def test_one_is_found_by_its_id(look: Any, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_bytes(report_html(reported(folder, 30)))
    with look(tmp_path / "report.html") as (page, looked):
        page.locator("#find").scroll_into_view_if_needed()
        page.locator("#find").focus()
        page.keyboard.type("pairs:25")
        assert page.text_content("#found") == "1 of 30 pairs"
        (article,) = [one for one in page.query_selector_all("#rows .row") if one.is_visible()]
        text = article.inner_text()
        assert "24 uphill" in text
        assert looked.said == []
