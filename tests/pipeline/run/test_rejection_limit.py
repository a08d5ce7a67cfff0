"""A run of which too many rows cannot be used ends before it packs; every rejected row can be found and repaired."""

import json
from pathlib import Path
from typing import Any

import packtrain as package
import pytest
from packtrain.pipeline.encode.excerpt import CHARACTERS
from packtrain.pipeline.run.plan import plan
from packtrain.schemas.tables.reasons import REASONS

from tests import kit

BAD = {"text": 5}


def texts(count: int, bad: int) -> list[dict[str, Any]]:
    """Rows of which the last ones are no texts."""
    return [{"text": f"{number} mules left before the sun was up"} for number in range(count - bad)] + [BAD] * bad


def configure(folder: Path, rows: list[dict[str, Any]], **keys: Any) -> dict[str, Any]:
    kit.write(folder / "rows.jsonl", rows)
    own = {key: keys.pop(key) for key in ("source_limit",) if key in keys}
    limit = {"max_rejected": own["source_limit"]} if own else {}
    source = {"name": "rows", "format": "text", "path": str(folder / "rows.jsonl"), **limit}
    return kit.configure(folder, source, **keys)


@pytest.mark.parametrize(
    ("count", "bad", "keys", "ends"),
    [
        (100, 90, {}, False),  # a small source
        (101, 10, {}, False),
        (101, 11, {}, True),
        (1000, 100, {}, False),  # exactly a tenth
        (1000, 101, {}, True),
        (1000, 101, {"max_rejected": 1}, False),
        (1000, 101, {"max_rejected": "11%"}, False),
        (1000, 101, {"source_limit": 1}, False),
        (1000, 101, {"max_rejected": 1, "source_limit": 0.1}, True),
        (1000, 1, {"max_rejected": 0}, True),
        (1000, 0, {"max_rejected": 0}, False),
        (10, 1, {"max_rejected": 0.05}, True),  # a limit that is asked for counts for a small source, too
        (10, 1, {"max_rejected": 0.1}, False),
    ],
)
def test_the_limit(tmp_path: Path, count: int, bad: int, keys: dict[str, Any], ends: bool) -> None:
    config = configure(tmp_path, texts(count, bad), **keys)
    if not ends:
        assert kit.packed(config).ledger["rows"]["rows_used"] == count - bad
        return
    with pytest.raises(package.PacktrainError) as caught:
        package.run(config, quiet=True)
    assert caught.value.exit_code == 2
    said = str(caught.value)
    assert said.startswith(f"source rows: of {count:,} rows, {bad} cannot be used (")
    assert f"Most often wrong_type ({bad}): {REASONS['wrong_type']} " in said
    assert f"The first: rows.jsonl, line {count - bad + 1}: " in said
    assert "max_rejected=1 allows all" in said
    rejects = tmp_path / "out" / "rejects.jsonl"
    assert f"All rejected rows: {rejects}" in said
    assert len(rejects.read_text().splitlines()) == bad
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert not list((tmp_path / "out").glob("train"))
    package.run(kit.merged(config, {"max_rejected": 1, "sources": [{**config["sources"][0], "max_rejected": 1}]}))
    assert (tmp_path / "out" / "manifest.json").exists(), "the same folder is free for the corrected run"


def test_the_limit_is_not_part_of_the_dataset(tmp_path: Path) -> None:
    config = configure(tmp_path, texts(200, 5))
    first = package.run(config, quiet=True)
    again = package.run(kit.merged(config, {"out": str(tmp_path / "again"), "max_rejected": 0.5}), quiet=True)
    assert first.hash == again.hash


def test_sources_are_judged_one_by_one(tmp_path: Path) -> None:
    """A large clean source does not hide that another is lost."""
    kit.write(tmp_path / "good.jsonl", texts(5000, 0))
    kit.write(tmp_path / "lost.jsonl", texts(110, 60))
    sources = [{"name": name, "format": "text", "path": str(tmp_path / f"{name}.jsonl")} for name in ("good", "lost")]
    with pytest.raises(package.PacktrainError, match=r"source lost: .* sources\.1\.max_rejected=1 allows all"):
        package.run(kit.configure(tmp_path, *sources), quiet=True)


def test_conversations_that_the_mask_leaves_out_count(tmp_path: Path) -> None:
    """They are encoded, and left out where the mask needs what cannot be located: only there, they are rejected."""
    answer = {"role": "assistant", "content": "four", "reasoning_content": "add them"}
    row = {"messages": [{"role": "user", "content": "two and two"}, answer]}
    kit.write(tmp_path / "rows.jsonl", [row] * 120 + kit.corpus("chats", 80))
    hiding = kit.TOOLS.replace(
        "'<think>\n' + message.reasoning_content + '\n</think>\n\n'", "'(%s)' % message.reasoning_content"
    )
    template = kit.tokenizer(tmp_path / "t", template=hiding)
    source = {"name": "rows", "format": "messages", "path": str(tmp_path / "rows.jsonl")}
    config = kit.configure(tmp_path, source, tokenizer={"path": str(template)}, max_rejected=0)
    package.run(config, quiet=True)
    stricter = kit.merged(config, {"mask": {"thoughts": "mask"}, "out": str(tmp_path / "stricter")})
    with pytest.raises(package.PacktrainError, match=r"of 200 rows, 120 rows or examples .*60 %.* Most often unproved"):
        package.run(stricter, quiet=True)


def test_of_a_row_with_several_examples_only_its_share_counts(tmp_path: Path) -> None:
    """One of three examples of every row cannot be encoded: a third is lost."""
    turn = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    forbidden = [{"role": "user", "content": "FORBIDDEN"}, {"role": "assistant", "content": "b"}]
    kit.write(tmp_path / "rows.jsonl", [{"messages": [*turn, *turn, *forbidden]}] * 150)
    template = kit.tokenizer(tmp_path / "t", template=kit.REFUSE + kit.CHATML)
    source = {"name": "rows", "format": "messages", "path": str(tmp_path / "rows.jsonl"), "expand": "per_turn"}
    config = kit.configure(tmp_path, source, tokenizer={"path": str(template)})
    package.run(kit.merged(config, {"max_rejected": 0.34}), quiet=True)
    with pytest.raises(package.PacktrainError, match=r"of 150 rows, 150 rows or examples cannot be used \(33\.3 %\)"):
        package.run(kit.merged(config, {"max_rejected": 0.33, "out": str(tmp_path / "other")}), quiet=True)


def test_a_plan_says_that_a_run_would_end(tmp_path: Path) -> None:
    heard = kit.Heard()
    plan(configure(tmp_path, texts(200, 50)), observer=heard)
    assert any(
        note.startswith("a run would end before it packs: source rows: of 200 rows, 50 ") for note in heard.notes
    )


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz", "rows.json", "rows.parquet", "rows.arrow"])
def test_a_reject_says_enough_to_repair_it(tmp_path: Path, name: str) -> None:
    """The file, the line, the reason, the remedy, and an excerpt that is bounded: for any container."""
    long = {"text": None, "title": "x" * 5000, "tags": [f"tag {number}" for number in range(100)]}
    rows = [{"text": "fine", "title": "a", "tags": []}] * 3 + [long] + [{"text": "fine", "title": "b", "tags": []}] * 3
    kit.write(tmp_path / name, rows)
    source = {"name": "s", "format": "text", "path": name}
    (reject,) = kit.packed(kit.configure(tmp_path, source)).rejects()
    assert (reject["source"], reject["file"], reject["line"]) == ("s", name, 4)
    assert reject["remedy"] == REASONS[reject["reason"]]
    assert len(reject["excerpt"]) <= CHARACTERS + 1
    shown = json.loads(reject["excerpt"])
    assert list(shown) == ["text", "title", "tags"]
    assert shown["text"] is None
    assert shown["title"] == "x" * 48 + "…"
    assert shown["tags"] == ["tag 0", "tag 1", "… 98 more"]


def test_rows_of_small_files_have_their_own_excerpts(tmp_path: Path) -> None:
    """Files that share a block, each with a row that cannot be used."""
    for number in range(5):
        kit.write(tmp_path / "parts" / f"{number}.jsonl", [{"text": "fine"}] * 2 + [{"text": number, "n": number}])
    source = {"name": "s", "format": "text", "path": "parts"}
    rejects = kit.packed(kit.configure(tmp_path, source)).rejects()
    assert [(reject["file"], reject["line"], json.loads(reject["excerpt"])["n"]) for reject in rejects] == [
        (f"{number}.jsonl", 3, number) for number in range(5)
    ]


def test_an_excerpt_of_a_line_that_is_no_json_is_escaped_and_short(tmp_path: Path) -> None:
    line = b'{"text": "\x1b[31m\xff\xe2\x80\xae' + b"x" * 10_000
    (tmp_path / "rows.jsonl").write_bytes(b'{"text": "fine"}\n' * 9 + line + b"\n" + b'{"text": "fine"}\n')
    config = kit.configure(tmp_path, {"name": "s", "format": "text", "path": "rows.jsonl"})
    (reject,) = kit.packed(config).rejects()
    assert len(reject["excerpt"]) <= CHARACTERS + 1
    assert reject["excerpt"].startswith('{"text": "')
    written = (tmp_path / "out" / "rejects.jsonl").read_bytes()
    assert b"\x1b" not in written
    assert "\u202e".encode() not in written


def test_a_line_that_is_too_long_has_an_excerpt(tmp_path: Path) -> None:
    row = {"text": "y" * 6_000_000}
    kit.write(tmp_path / "rows.jsonl", [{"text": "fine"}, row, {"text": "fine"}])
    config = kit.configure(tmp_path, {"name": "s", "format": "text", "path": "rows.jsonl", "max_row_bytes": "64KiB"})
    (reject,) = kit.packed(config).rejects()
    assert (reject["reason"], reject["line"]) == ("row_too_long", 2)
    assert reject["excerpt"].startswith('{"text": "yyyyyyyy')
    assert len(reject["excerpt"]) <= CHARACTERS + 1


def test_rejects_that_are_only_counted_have_no_excerpt(tmp_path: Path) -> None:
    rejects = kit.packed(configure(tmp_path, texts(1500, 1200), max_rejected=1)).rejects()
    assert rejects[-1]["reason"] == "more"
    assert "excerpt" not in rejects[-1]
    assert all(json.loads(reject["excerpt"]) == BAD for reject in rejects[:-1])
