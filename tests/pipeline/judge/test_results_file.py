"""Lines of results: what is written is read, and what a kill cut is gone before more is appended."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.pipeline.judge.judging import Judgement
from packtrain.pipeline.judge.results_file import (
    NAME,
    ResultKey,
    ResultsFile,
    SampleResult,
    encode_result,
    read_results,
    write_sorted,
)
from packtrain.schemas.errors import UnwritableError
from packtrain.stages.judge.extraction import Extraction
from packtrain.stages.judge.verdicts import Rule, Verdict

from tests.support.examples import examples

IDS = {row: f"p{row}" for row in range(3)}


def result(row: int, sample: int, detail: str = "") -> SampleResult:
    outcome = Judgement(Verdict.passed, Rule.tokens, 3, 3, None, "x", detail, 0.5, 0.25, 0.125)
    return SampleResult(ResultKey(row, sample, f"p{row}", Extraction.fence), outcome)


def test_what_a_kill_cut_is_gone_before_more_is_appended(tmp_path: Path) -> None:
    with ResultsFile(tmp_path) as file:
        file.append([result(1, 0), result(0, 1)])
    path = tmp_path / NAME
    for cut in range(1, len(encode_result(result(0, 1)))):
        path.write_bytes(encode_result(result(1, 0)) + encode_result(result(0, 1))[:-cut])
        assert read_results(tmp_path, IDS) == {(1, 0): result(1, 0)}
        with ResultsFile(tmp_path) as file:
            file.append([result(0, 1)])
        assert read_results(tmp_path, IDS) == {(1, 0): result(1, 0), (0, 1): result(0, 1)}
    write_sorted(tmp_path, read_results(tmp_path, IDS).values())
    assert path.read_bytes() == encode_result(result(0, 1)) + encode_result(result(1, 0))


def test_the_last_of_two_lines_counts(tmp_path: Path) -> None:
    with ResultsFile(tmp_path) as file:
        file.append([result(0, 0, "first"), result(0, 0, "second")])
    assert read_results(tmp_path, IDS) == {(0, 0): result(0, 0, "second")}


@given(st.text(), st.integers(0, 10**9))
@examples(100)
def test_any_text_stays_on_its_line(text: str, row: int) -> None:
    line = encode_result(result(row, 0, text.encode("utf-8", "replace").decode()))
    assert line.count(b"\n") == 1
    assert line.endswith(b"}\n")


def test_a_link_in_the_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("mine")
    (tmp_path / NAME).symlink_to(tmp_path / "elsewhere")
    with pytest.raises((UnwritableError, OSError)), ResultsFile(tmp_path):
        pass
    assert (tmp_path / "elsewhere").read_text() == "mine"
