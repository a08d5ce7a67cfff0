"""Inspect: documents of a row are separated, trained tokens are marked, and every id is at its place."""

import io
import re
import shutil
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline.dataset.decode import Piece, load_decoder, pieces, show_row
from packtrain.pipeline.dataset.open import Finished, open_dataset
from packtrain.pipeline.run.driver import run
from packtrain.schemas.errors import IntegrityError
from rich.console import Console
from tokenizers import Tokenizer


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: Path) -> Path:
    """A finished dataset of prompts and completions, two splits."""
    folder = tmp_path_factory.mktemp("inspect")
    lines = [f'{{"prompt": "what is {n}? ", "completion": "[it is {n * n}]"}}\n' for n in range(60)]
    (folder / "in.jsonl").write_text("".join(lines))
    run(
        {
            "out": "out",
            "cache": "cache",
            "tokenizer": {"path": str(tiny_tokenizer), "engine": "tokenizers"},
            "sources": [{"name": "squares", "format": "prompt_completion", "path": "in.jsonl"}],
            "truncate": {"max_length": 100},
            "holdout": {"fraction": 0.2},
            "run": {"workers": 1, "report": False},
        },
        base=folder,
    )
    return folder / "out"


@pytest.fixture
def copy(demo: Path, tmp_path: Path) -> Path:
    """The same, to be damaged."""
    shutil.copytree(demo, tmp_path / "copy")
    return tmp_path / "copy"


def shown(dataset: Finished, tokenizer: Path | None, *, ids: bool = False, color: bool = False, row: int = 0) -> str:
    stream = io.StringIO()
    system: Any = "truecolor" if color else None
    console = Console(file=stream, width=100, force_terminal=color, color_system=system, no_color=not color)
    show_row(console, dataset, row, "train", load_decoder(tokenizer) if tokenizer else None, ids)
    return stream.getvalue()


def test_pieces_are_the_row_cut_at_its_documents(demo: Path) -> None:
    dataset = open_dataset(demo)
    for split, record in dataset.manifest.splits.items():
        for row in range(record.rows):
            batch = dataset.row(row, split)
            found = pieces(dataset, row, split)
            assert list(chain.from_iterable(piece.ids for piece in found)) == batch.column("input_ids")[0].as_py()
            assert list(chain.from_iterable(piece.labels for piece in found)) == batch.column("labels")[0].as_py()
            assert [piece.doc_id for piece in found] == batch.column("doc_ids")[0].as_py()
            for piece in found:
                runs = list(piece.spans())
                assert list(chain.from_iterable(ids for _, ids in runs)) == piece.ids
                assert [trained for trained, _ in runs] == [False, True], "a prompt, then a completion"


def test_spans_by_eye() -> None:
    piece = Piece(0, 0, [5, 6, 7, 8, 9], [-100, 6, 7, -100, 9])
    assert list(piece.spans()) == [(False, [5]), (True, [6, 7]), (False, [8]), (True, [9])]
    assert list(Piece(0, 0, [], []).spans()) == []


def test_without_colour_brackets_tell_what_is_trained(demo: Path, tiny_tokenizer: Path) -> None:
    text = shown(open_dataset(demo), tiny_tokenizer)
    documents = re.findall(r"squares/in:(\d+) · (\d+) tokens · (\d+) trained", text)
    assert len(documents) == int(text.split()[4])
    bodies = re.findall(r"│ what is (\d+)\? ?⟦ ?\[it is (\d+)\]<\|im_end\|>⟧ *│", text)
    numbers = [int(line) - 1 for line, _, _ in documents]
    assert [(int(n), int(m)) for n, m in bodies] == [(n, n * n) for n in numbers]
    assert "\x1b" not in text


def test_with_colour_there_are_no_brackets(demo: Path, tiny_tokenizer: Path) -> None:
    text = shown(open_dataset(demo), tiny_tokenizer, color=True)
    assert re.search("\x1b\\[1;32m ?\\[it is", text)
    assert "⟦" not in text


def test_ids_stand_before_their_tokens(demo: Path, tiny_tokenizer: Path) -> None:
    dataset = open_dataset(demo)
    tokenizer = Tokenizer.from_file(str(tiny_tokenizer / "tokenizer.json"))
    text = shown(dataset, tiny_tokenizer, ids=True).replace("\n", " ")
    for one in pieces(dataset, 0, "train")[0].ids:
        assert f"{one} {tokenizer.decode([one], skip_special_tokens=False)!r}" in text


def test_without_a_tokenizer_there_are_ids(demo: Path) -> None:
    dataset = open_dataset(demo)
    text = shown(dataset, None)
    first = pieces(dataset, 0, "train")[0]
    (ids, _) = (run for _, run in first.spans())
    assert f"│ {' '.join(map(str, ids))} ⟦" in text


@pytest.mark.parametrize("damage", ["missing", "cut", "other"])
def test_a_damaged_table_of_documents(copy: Path, damage: str) -> None:
    path = copy / "documents.parquet"
    content = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes(content[:-20] if damage == "cut" else b"something else")
    with pytest.raises(IntegrityError):
        shown(open_dataset(copy), None)


@pytest.mark.parametrize("damage", ["missing", "cut", "other"])
def test_a_damaged_shard(copy: Path, damage: str) -> None:
    (path,) = copy.glob("train/shards/*.arrow")
    content = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes(content[:-200] if damage == "cut" else b"something else")
    with pytest.raises(IntegrityError, match="missing" if damage == "missing" else "cannot be read"):
        pieces(open_dataset(copy), open_dataset(copy).manifest.splits["train"].rows - 1, "train")


def test_a_character_across_two_runs_stands_whole_in_the_later() -> None:
    from packtrain.pipeline import demo
    from packtrain.pipeline.dataset.decode import load_decoder

    decoder = load_decoder(Path(demo.__file__).parent / "tokenizer")
    ids = Tokenizer.from_file(str(Path(demo.__file__).parent / "tokenizer" / "tokenizer.json")).encode("a日本").ids
    halves = [decoder.spans([ids[:cut], ids[cut:]]) for cut in range(1, len(ids))]
    assert len(halves) > 3, "the characters are several tokens each"
    assert all("".join(pair) == "a日本" for pair in halves)
    assert not any("\ufffd" in text for pair in halves for text in pair)
