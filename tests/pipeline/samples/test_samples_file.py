"""The samples file: continued after any cut, in whole groups; and refused where it is another's."""

import json
import os
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.pipeline.samples.samples_file import open_samples, read_samples
from packtrain.pipeline.store.appended import RECORD_SUFFIX
from packtrain.schemas.errors import BusyError, InputError, OutputError
from packtrain.schemas.models.samples import Sample

KEYS = [(row, sample) for row in range(3) for sample in range(2)]
GROUPS = [KEYS[:4], KEYS[4:]]
SIZES = (6, 4)
"""Of all samples, and of a group."""
OPTIONS = {"model": "m", "n": 2}


def sample(key: tuple[int, int], text: str = "ä\n\u2028") -> Sample:
    return Sample(f"p{key[0]}", *key, text=f"{text}{key}", finish_reason="stop", tokens=key[1] + 1)


def write(path: Path, groups: int = 2) -> None:
    """Write so many groups in all."""
    file, done = open_samples(path, OPTIONS, *SIZES)
    with closing(file):
        for group in GROUPS[-(-done // 4) : groups]:
            file.append(b"".join(msgspec.json.encode(sample(key)) + b"\n" for key in group))


def test_a_line_is_one_object(tmp_path: Path) -> None:
    write(tmp_path / "s.jsonl")
    first = (tmp_path / "s.jsonl").read_text(encoding="utf-8").split("\n")[0]
    assert first == '{"id":"p0","row":0,"sample":0,"text":"ä\\n\u2028(0, 0)","finish_reason":"stop","tokens":1}'
    assert list(read_samples(tmp_path / "s.jsonl")) == [sample(key) for key in KEYS]


@given(cuts=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 600)), max_size=3))
def test_cut_anywhere_and_continued_it_is_the_same_file(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[tuple[int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    write(folder / "whole.jsonl")
    path = folder / "s.jsonl"
    for groups, cut in cuts:
        write(path, groups)
        os.truncate(path, min(cut, path.stat().st_size))
    write(path)
    assert path.read_bytes() == (folder / "whole.jsonl").read_bytes()
    assert sorted(one.name for one in folder.iterdir()) == [
        name for one in ("s.jsonl", "whole.jsonl") for name in (one, one + RECORD_SUFFIX)
    ]


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim.jsonl"
    victim.write_text('{"id": "mine"')
    for name in ("s.jsonl", f"t.jsonl{RECORD_SUFFIX}"):
        (tmp_path / name).symlink_to(victim)
    with pytest.raises(OutputError, match="is not a regular file"):
        write(tmp_path / "s.jsonl")
    write(tmp_path / "t.jsonl")  # the record is written anew
    assert victim.read_text() == '{"id": "mine"'


def test_another_command_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "s.jsonl")
    before = (tmp_path / "s.jsonl").read_bytes()
    with pytest.raises(OutputError, match=r"is of another command \(n: 2 there, 3 here\); choose another place"):
        open_samples(tmp_path / "s.jsonl", {**OPTIONS, "n": 3}, *SIZES)
    (tmp_path / "mine.jsonl").write_text("mine")
    with pytest.raises(OutputError, match=r"mine\.jsonl exists, and mine\.jsonl\.run\.json, which would say"):
        open_samples(tmp_path / "mine.jsonl", OPTIONS, *SIZES)
    with pytest.raises(OutputError, match="holds more samples than this command makes"):
        open_samples(tmp_path / "s.jsonl", OPTIONS, 5, 4)
    with pytest.raises(OutputError, match=r"s\.jsonl is not a folder"):
        open_samples(tmp_path / "s.jsonl" / "t.jsonl", OPTIONS, *SIZES)
    with pytest.raises(OutputError, match="is not a regular file"):
        open_samples(tmp_path, OPTIONS, *SIZES)
    assert (tmp_path / "s.jsonl").read_bytes() == before
    assert (tmp_path / "mine.jsonl").read_text() == "mine"


def test_two_do_not_write_one_file(tmp_path: Path) -> None:
    with (
        closing(open_samples(tmp_path / "s.jsonl", OPTIONS, *SIZES)[0]),
        pytest.raises(BusyError, match="another process is writing it"),
    ):
        open_samples(tmp_path / "s.jsonl", OPTIONS, *SIZES)
    write(tmp_path / "s.jsonl")


GOOD = {"id": "a", "row": 0, "sample": 0, "text": "t"}


def test_a_last_line_may_lack_its_end_but_not_be_cut_and_counts_are_not_negative(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text(json.dumps({**GOOD, "more": 1}) + "\n\n" + json.dumps({**GOOD, "sample": 1}))
    assert [one.sample for one in read_samples(path)] == [0, 1]
    bad = [json.dumps({**GOOD, key: -1}).encode() for key in ("row", "sample", "tokens")]
    for data in (
        f"{json.dumps(GOOD)}\n{json.dumps(GOOD)[:-3]}".encode(),
        b'{"id": "\xff", "row": 0, "sample": 0}',
        *bad,
    ):
        path.write_bytes(data)
        with pytest.raises(InputError):
            list(read_samples(path))


def test_a_line_without_end_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_bytes(json.dumps(GOOD).encode() + b"\n")
    os.truncate(path, 1 << 40)
    with pytest.raises(InputError, match="line 2 has 64 MiB or more"):
        list(read_samples(path))
