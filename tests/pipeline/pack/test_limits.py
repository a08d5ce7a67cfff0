"""Splitting, filters, duplicates and conditions, from rows to shards: what a person sees of them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import packtrain
import pytest
from packtrain.schemas.errors import ConfigError, InputError
from packtrain.schemas.manifest import Manifest
from packtrain.schemas.rows import IGNORE_INDEX

Row = dict[str, Any]
ReadRows = Callable[..., list[Row]]


def message(role: str, content: str) -> Row:
    return {"role": role, "content": content}


def write(path: Path, rows: list[Row]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def configure(
    make_tokenizer: Callable[..., Path], new_cache: Callable[[Path], Path], tmp_path: Path
) -> Callable[..., Row]:
    """Makes a configuration: `configure(chats=[...], texts=[...], max_length=64, **changes)`."""
    tokenizer = make_tokenizer("tiny")
    cache = new_cache(tokenizer)

    def make(chats: list[Row] | None = None, texts: list[str] | None = None, out: str = "out", **changes: Any) -> Row:
        sources = []
        if chats is not None:
            sources.append({"name": "chats", "format": "messages", "path": write(tmp_path / "chats.jsonl", chats)})
        if texts is not None:
            rows = [{"text": text} for text in texts]
            sources.append({"name": "texts", "format": "text", "path": write(tmp_path / "texts.jsonl", rows)})
        return {
            "out": str(tmp_path / out),
            "cache": str(cache),
            "tokenizer": {"path": str(tokenizer)},
            "sources": sources,
            "run": {"workers": 1, "report": False},
            **changes,
        }

    return make


def split(max_length: int, at: str, overlap: int = 0) -> Row:
    return {"max_length": max_length, "overlong": "split", "split": {"at": at, "overlap": overlap}}


@pytest.fixture
def read_pieces(make_tokenizer: Callable[..., Path], read_rows: ReadRows) -> Callable[[str], list[tuple[str, str]]]:
    """The pieces of a finished folder, in the order of documents and tokens: (text, its trained part)."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(make_tokenizer("tiny") / "tokenizer.json"))

    def decode(ids: list[int]) -> str:
        return str(tokenizer.decode(ids, skip_special_tokens=False))

    def read(folder: str) -> list[tuple[str, str]]:
        found = []
        for row in read_rows(Path(folder)):
            at = 0
            for doc_id, start, size in zip(row["doc_ids"], row["doc_starts"], row["seq_lengths"], strict=True):
                ids, labels = row["input_ids"][at : at + size], row["labels"][at : at + size]
                trained = [one for one, label in zip(ids, labels, strict=True) if label != IGNORE_INDEX]
                found.append(((doc_id, start), (decode(ids), decode(trained))))
                at += size
        return [piece for _, piece in sorted(found)]

    return read


ROUNDS = [
    message(role, f"{role} {number}: " + "the mules left the valley " * 2)
    for number in range(6)
    for role in ("user", "assistant")
]


def test_a_conversation_is_cut_before_its_users(
    configure: Callable[..., Row], read_pieces: Callable[[str], list[tuple[str, str]]]
) -> None:
    """Six rounds in pieces of whole rounds, each trained where the assistant speaks, to the end of its turn."""
    config = configure(chats=[{"messages": ROUNDS}], mask="assistant", truncate=split(200, "turns"))
    manifest = packtrain.run(config)
    pieces = read_pieces(config["out"])
    assert 2 <= len(pieces) <= 5
    assert all(text.startswith("<|im_start|>user\nuser") for text, _ in pieces)
    assert all(text.endswith("<|im_end|>\n") for text, _ in pieces)
    ends = [f"{one['content']}<|im_end|>" for one in ROUNDS if one["role"] == "assistant"]
    assert "".join(trained for _, trained in pieces) == "".join(ends)
    total = manifest.ledger.total()
    assert (total.examples_split, total.turns_cut, total.labels_head) == (1, 0, 0)


def test_a_tool_stays_with_its_call(
    configure: Callable[..., Row], read_pieces: Callable[[str], list[tuple[str, str]]]
) -> None:
    turns: list[Row] = []
    for number in range(4):
        turns += [
            message("user", f"question {number} about the valley and the mules"),
            message("assistant", f"call {number}: look up the valley"),
            message("tool", f"result {number}: the valley is behind the houses"),
            message("assistant", f"answer {number}: behind the last houses"),
        ]
    config = configure(chats=[{"messages": turns}], mask="assistant", truncate=split(150, "turns"))
    manifest = packtrain.run(config)
    pieces = read_pieces(config["out"])
    assert len(pieces) >= 2
    assert all(text.startswith("<|im_start|>user\nquestion") for text, _ in pieces)
    assert manifest.ledger.total().turns_cut == 0


def test_a_turn_that_is_too_long_is_cut_and_counted(configure: Callable[..., Row]) -> None:
    chat = [message("user", "Tell."), message("assistant", "the mules left the valley " * 40)]
    config = configure(chats=[{"messages": chat}], truncate=split(64, "turns", overlap=1))
    total = packtrain.run(config).ledger.total()
    assert total.turns_cut == total.tokens_created["overlap"] >= 3
    assert total.labels_head == 0, "an overlap of one keeps the label of a piece's first token"
    assert total.labels_trained == total.asked_encoded
    lost = packtrain.run({**config, "out": config["out"] + "-0", "truncate": split(64, "turns")}).ledger.total()
    assert lost.labels_head == lost.turns_cut >= 3
    assert lost.labels_trained == lost.asked_encoded - lost.labels_head


def test_a_text_is_cut_between_paragraphs(
    configure: Callable[..., Row], read_pieces: Callable[[str], list[tuple[str, str]]]
) -> None:
    paragraphs = [f"Paragraph {number}.\nThe mules left the valley.\nNobody told them." for number in range(9)]
    config = configure(texts=["\n\n".join(paragraphs)], truncate=split(90, "paragraphs"))
    packtrain.run(config)
    pieces = read_pieces(config["out"])
    assert 3 <= len(pieces) <= 9
    assert all(text.startswith("Paragraph") for text, _ in pieces)
    assert all(text.endswith("\n\n") for text, _ in pieces[:-1])
    assert "".join(text for text, _ in pieces) == "\n\n".join(paragraphs) + "<|im_end|>"
    lines = configure(texts=["\n".join(paragraphs)], truncate=split(90, "turns"), out="lines")
    packtrain.run(lines)
    assert all(text.endswith("\n") for text, _ in read_pieces(lines["out"])[:-1])


def test_pieces_without_a_label_are_left_out(
    configure: Callable[..., Row], read_pieces: Callable[[str], list[tuple[str, str]]]
) -> None:
    """A prompt of several pieces, and a short answer: only the last piece has something to learn from."""
    chat = [message("user", "the mules left the valley " * 40), message("assistant", "Yes.")]
    config = configure(chats=[{"messages": chat}], truncate=split(64, "tokens"))
    total = packtrain.run(config).ledger.total()
    assert [trained for _, trained in read_pieces(config["out"])] == ["Yes.<|im_end|>\n"]
    assert total.tokens_dropped["untrained_piece"] == total.tokens_encoded - total.tokens_packed > 100
    kept = {**config, "out": config["out"] + "-kept", "keep_untrained": True}
    assert packtrain.run(kept).ledger.total().tokens_dropped == {}
    assert len(read_pieces(kept["out"])) >= 4


def test_filters_and_duplicates_by_source(configure: Callable[..., Row]) -> None:
    """The first of two equal texts stays, though its source comes second, if the other one is filtered."""
    short, long = "the mules", "the mules left the valley " * 12
    same = [{"messages": [message("user", "Why?"), message("assistant", "Because.")]}] * 3
    config = configure(chats=same, texts=[short, long, short, "another text of some words", long], duplicates="drop")
    config["sources"].append({**config["sources"][1], "name": "again"})
    config["sources"][1]["filter"] = {"max_tokens": 40}
    config["filter"] = {"min_tokens": 8, "max_tokens": 1000}
    ledger = packtrain.run(config).ledger.sources
    assert ledger["chats"].examples_dropped == {"duplicate": 2}
    assert ledger["texts"].examples_dropped == {"min_tokens": 2, "max_tokens": 2}
    assert ledger["again"].examples_dropped == {"min_tokens": 2, "duplicate": 2}
    assert {name: sum(entry.examples_packed.values()) for name, entry in ledger.items()} == {
        "chats": 1,
        "texts": 1,
        "again": 1,
    }


def test_the_same_text_with_another_prompt_is_no_duplicate(configure: Callable[..., Row], tmp_path: Path) -> None:
    pairs = [
        {"prompt": "one two ", "completion": "three four"},
        {"prompt": "one ", "completion": "two three four"},
        {"prompt": "one ", "completion": "two three four"},
    ]
    config = configure(texts=["one two three four"], duplicates="drop")
    path = write(tmp_path / "pairs.jsonl", pairs)
    config["sources"].append({"name": "pairs", "format": "prompt_completion", "path": path})
    ledger = packtrain.run(config).ledger.sources
    assert ledger["texts"].examples_dropped == {}
    assert ledger["pairs"].examples_dropped == {"duplicate": 1}


def test_limits_and_filters_tokenize_nothing_again(configure: Callable[..., Row], encoded: list[str]) -> None:
    texts = ["the mules left the valley\n\n" * 20, "short", "short"]
    config = configure(chats=[{"messages": ROUNDS}], texts=texts)
    changes: list[Row] = [
        {},
        {"duplicates": "drop"},
        {"filter": {"min_tokens": 4}},
        {"truncate": split(64, "turns", 2)},
        {"truncate": split(64, "paragraphs")},
        {"truncate": {"max_length": 64, "max_prompt_length": 20, "max_completion_length": 9}},
        {"truncate": {"max_length": 64, "overlong": "drop"}},
    ]
    hashes = {
        packtrain.run({**config, **change, "out": f"{config['out']}-{number}"}).hash
        for number, change in enumerate(changes)
    }
    assert len(encoded) == 2
    assert len(hashes) == len(changes), "each is another dataset"


# --- conditions ---


def run_where(config: Row, condition: str, out: str) -> Manifest:
    sources = [{**source, "where": condition} for source in config["sources"]]
    return packtrain.run({**config, "sources": sources, "out": f"{config['out']}-{out}"})


def test_a_condition_filters_rows(
    configure: Callable[..., Row], encoded: list[str], read_pieces: Callable[[str], list[tuple[str, str]]]
) -> None:
    config = configure(texts=["one", "two words", "three words here", "four"])
    manifest = run_where(config, "text LIKE '%words%'", "a")
    entry = manifest.ledger.sources["texts"]
    assert (entry.rows_used, entry.rows_filtered) == (2, {"where": 2})
    assert [text for text, _ in read_pieces(f"{config['out']}-a")] == [
        "two words<|im_end|>",
        "three words here<|im_end|>",
    ]
    assert len(encoded) == 1
    run_where(config, "text NOT LIKE '%words%'", "b")
    assert len(encoded) == 2, "another condition is another part"
    run_where(config, "text LIKE '%words%'", "c")
    packtrain.run({**config, "out": f"{config['out']}-d"})
    assert len(encoded) == 3, "and the first one is known"
    with pytest.raises(InputError, match=r"nothing is left to pack: .*where 4"):
        run_where(config, "text = 'none'", "e")


def test_a_condition_filters_some_solutions(configure: Callable[..., Row], tmp_path: Path) -> None:
    """A row that keeps one of its examples is used; the others are skipped, and counted."""
    rows = [
        {"id": number, "question": "Why?", "solutions": json.dumps(solutions)}
        for number, solutions in enumerate([["print(1)", "print(22222)"], ["print(3)"], ["print(44444)"]])
    ]
    config = configure()
    config["sources"] = [{"name": "apps", "format": "apps", "path": write(tmp_path / "apps.jsonl", rows)}]
    entry = run_where(config, "LENGTH(completion) > 24", "a").ledger.sources["apps"]
    assert (entry.rows_used, entry.rows_filtered, entry.examples_skipped) == (2, {"where": 1}, {"where": 1})
    assert entry.examples_made == 2


@pytest.mark.parametrize("condition", ["LENGTH(answer) > 3", "LENGTH(text", "LENGTH(text)", "CAST(text AS INT) > 3"])
def test_a_wrong_condition_is_found_before_anything_is_encoded(
    configure: Callable[..., Row], encoded: list[str], condition: str
) -> None:
    config = configure(texts=["one", "two"])
    with pytest.raises(ConfigError, match=r"sources\.texts\.where: the condition"):
        run_where(config, condition, "a")
    assert encoded == []
    left = sorted(path.name for path in Path(f"{config['out']}-a").rglob("*") if path.is_file())
    assert left == ["failed.json", "run-000001.json"]  # for whoever waits for it


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"truncate": {"split": {"overlap": 3}}}, "split is for overlong: split"),
        ({"truncate": split(64, "turns", 33)}, r"split.overlap \(33\) is more than half of max_length \(64\)"),
        ({"truncate": split(64, "turns"), "pack": {"strategy": "bfd_split"}}, "overlong split has no meaning"),
        ({"filter": {"min_tokens": 9, "max_tokens": 8}}, r"min_tokens \(9\) is above max_tokens \(8\)"),
    ],
)
def test_what_excludes_itself_is_refused(configure: Callable[..., Row], changes: Row, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        packtrain.run(configure(texts=["one"], **changes))


# --- real documents ---


@pytest.mark.slow
@pytest.mark.parametrize("overlap", [0, 32])
def test_real_documents(realdata: Path, tmp_path: Path, read_rows: ReadRows, overlap: int) -> None:
    """20 PEPs of Qwen3's tokens in pieces of 1,024: every token once, and nearly every cut after a blank line."""
    from tokenizers import Tokenizer

    lines = (realdata / "longdoc/peps.jsonl").read_text().splitlines()[:20]
    (tmp_path / "peps.jsonl").write_text("\n".join(lines) + "\n")
    manifest = packtrain.run(
        {
            "out": str(tmp_path / "out"),
            "tokenizer": {"path": str(realdata / "tokenizers/qwen3")},
            "sources": [{"name": "peps", "format": "text", "path": str(tmp_path / "peps.jsonl")}],
            "truncate": split(1024, "turns", overlap),
            "run": {"workers": 1, "report": False},
        }
    )
    tokenizer = Tokenizer.from_file(str(realdata / "tokenizers/qwen3/tokenizer.json"))
    whole = [tokenizer.encode(json.loads(line)["text"]).ids for line in lines]
    pieces: dict[int, list[tuple[int, list[int], list[int]]]] = {}
    for row in read_rows(tmp_path / "out"):
        at = 0
        for doc_id, start, size in zip(row["doc_ids"], row["doc_starts"], row["seq_lengths"], strict=True):
            here = slice(at, at + size)
            pieces.setdefault(doc_id, []).append((start, row["input_ids"][here], row["labels"][here]))
            at += size
    cuts = natural = 0
    for number, ids in enumerate(whole):
        done = trained = 0
        for start, tokens, labels in sorted(pieces[number]):
            assert start == (done - overlap if done else 0)
            assert tokens == (ids + tokens[-1:])[start : start + len(tokens)]
            new = overlap if done else 1
            assert all(label == IGNORE_INDEX for label in labels[:new])
            trained += sum(label != IGNORE_INDEX for label in labels)
            if done:
                cuts += 1
                natural += "\n\n" in tokenizer.decode(ids[done - 3 : done])
            done = start + len(tokens)
        assert done == len(ids) + 1  # and the end of the sequence
        assert trained == done - (1 if overlap else len(pieces[number]))
    assert cuts > 50
    assert natural / cuts > 0.95
    assert manifest.ledger.total().tokens_created.get("overlap", 0) == cuts * overlap
