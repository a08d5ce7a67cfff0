"""The documentation's tests find mistakes: each rule of `markdown_page` is tried with a page that breaks it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.docs.block_checks import check, commands
from tests.docs.markdown_page import REASONS, ROOT, PageError, names, page, parse
from tests.docs.page_runner import PageRun, shows

F = "```"


def fenced(language: str, text: str, *comments: str) -> str:
    """A block with comments before it."""
    return "".join(f"<!-- {one} -->\n" for one in comments) + f"{F}{language}\n{text}\n{F}\n\n"


# Reading


def test_every_fence_is_a_block() -> None:
    """Count blocks without `parse`: lines that begin with a fence come in pairs."""
    for name in names():
        fences = [line for line in page(name).text.splitlines() if line.strip().startswith((F, "~~~"))]
        assert len(fences) % 2 == 0
        assert len(page(name).blocks) == len(fences) // 2


def test_there_is_something_to_run() -> None:
    pages = [page(name) for name in names()]
    assert {"README.md", "CONTRIBUTING.md", "docs/training.md"} <= {one.name for one in pages}
    run = [block for one in pages for block in one.blocks if block.reason is None]
    assert len([block for block in run if block.language in ("sh", "bash")]) >= 20
    assert len([block for block in run if block.language == "python"]) >= 25
    assert len(pages) == 2 + len(list((ROOT / "docs").rglob("*.md")))


def test_a_block_has_its_comments_its_place_and_no_indentation() -> None:
    text = (
        "1. first\n\n   <!-- slow -->\n   <!-- in the test: a is b -->\n   ```sh\n   echo a\n     indented\n\n   ```\n"
    )
    (block,) = parse("x.md", text).blocks
    assert (block.text, block.line, block.marks) == (
        "echo a\n  indented\n\n",
        5,
        (("slow", ""), ("in the test", "a is b")),
    )
    assert block.tested == "echo b\n  indented\n\n"


@given(st.lists(st.text(st.characters(exclude_characters="`~\r\n", exclude_categories=["C", "Z"])), max_size=6))
def test_what_stands_in_a_block_is_what_is_run(lines: list[str]) -> None:
    (block,) = parse("x.md", fenced("sh", "\n".join(lines))).blocks
    assert block.text.splitlines() == (lines or [""])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("```sh\nls\n", "not closed"),
        ("```sh title=x\nls\n```\n", "more than a language"),
        (fenced("sh", "ls", "not run: no time"), "is no reason"),
        (fenced("sh", "ls", "skip"), "unknown comment"),
        (fenced("sh", "ls", "roughly"), "means nothing for sh"),
        (fenced("sh", "ls", "exits: 1", "exits: 2"), "twice"),
        (fenced("sh", "ls", "in the test: gone is here"), "does not occur"),
        (fenced("sh", "ls", "in the test: a b c"), "cannot read"),
        (fenced("sh", "ls", 'in the test: "ls" is "ls -l"'), "cannot read"),
        (fenced("python", "f(a=1)", "in the test: a=1 is a=1,b=2"), "does not replace a path"),
        (fenced("sh", "ls 16", "in the test: 16 is 2"), "does not replace a path"),
        (fenced("toml", "a = 1"), "nothing is known"),
        ("<!-- slow -->\n\n```sh\nls\n```\n", "right before"),
        ("<!-- slow -->\n", "at the end"),
        ("<!-- starts with: mules -->\n", "cannot start with mules"),
    ],
)
def test_comments_that_are_not_understood(text: str, words: str) -> None:
    with pytest.raises(PageError, match=words):
        parse("x.md", text)


def test_a_reason_is_used() -> None:
    used = {block.reason for name in names() for block in page(name).blocks}
    assert used - {None} <= REASONS
    assert REASONS - used <= {
        "needs a GPU",
        "needs the network",
        "needs real data",
        "for another program",
        "an outline",
    }


# Looking


@pytest.mark.parametrize(
    ("language", "text", "words"),
    [
        ("sh", "if then", "does not parse"),
        ("sh", "packtrain run mix.yaml --workerz 3", "no option --workerz"),
        ("sh", "srun bash -c 'packtrain wait x --graze 3 && y'", "no option --graze"),
        ("sh", "torchrun --nproc-per-node 8 -m packtrain.pipeline.cli trian x", "no command 'trian'"),
        ("sh", "packtrain run \\\n  --set a=1 --dry", "no option --dry"),
        ("python", "print(", "does not compile"),
        ("python", "from packtrain import plan_row", "has no plan_row"),
        ("python", "from packtrain import plan_rows\nplan_rows([1], capacety=2)", "no keyword capacety"),
        ("yaml", "mask: completions", "mask"),
        ("yaml", "masks: completion", "no key 'masks'"),
        ("yaml", "- a", "no mapping"),
        ("yaml", "rows_per_step: 7\nrows_per_device: 2", "rows_per_step"),
    ],
)
def test_what_is_wrong_is_seen(language: str, text: str, words: str) -> None:
    if "rows_per" in text:
        pytest.importorskip("torch")
    (block,) = parse("x.md", fenced(language, text)).blocks
    with pytest.raises(PageError, match=words):
        check(block)


def test_what_is_right_is_let_through() -> None:
    text = "packtrain run mix.yaml --workers 3 # --none\nsrun bash -c 'packtrain wait a --grace 6 && b --none'\n"
    text += "A=1 packtrain inspect x --row 1 | head -n 3\n./packtrain --none\n"
    (block,) = parse("x.md", fenced("sh", text)).blocks
    check(block)
    assert list(commands(text)) == [("run", ["--workers"]), ("wait", ["--grace"]), ("inspect", ["--row"])]


# Running


def ran(text: str, folder: Path, *, slow: bool = False) -> PageRun:
    (folder / "home").mkdir()
    (folder / "work").mkdir()
    with PageRun(parse("x.md", text), folder / "work", folder / "home", slow=slow) as run:
        run.run()
    return run


def test_a_page_runs_from_top_to_bottom(tmp_path: Path) -> None:
    text = (
        fenced("yaml", "out: there", "file: a/b.yaml")
        + fenced("sh", "cat a/b.yaml\necho $HOME > home\necho 3 rows in 1.5 s, hash 1234 >&2")
        + fenced("text", "out:   there\n3 rows in … s, …")
        + fenced("text", "4 rows in 9.25 s", "roughly")
        + fenced("python", "x = open('a/b.yaml').read()\nprint('one')")
        + fenced("python", "print(x)\nimport os; os.system('echo a child')", "continues")
        + fenced("text", "a child")
        + fenced("python", "assert 'x' not in globals()\nraise SystemExit(3)", "exits: 3")
        + fenced("sh", "exit 4", "exits: 4")
        + fenced("text", "3 rows", "output of: echo 3")
        + fenced("sh", "echo in $PWD/out")
        + fenced("text", "in out")
        + fenced("sh", "echo slow > slow", "slow")
        + fenced("text", "whatever it would have said")
        + fenced("sh", "false", "not run: needs Slurm")
    )
    run = ran(text, tmp_path)
    assert [said.block.language for said in run.said] == ["sh", "python", "python", "python", "sh", "sh"]
    assert (tmp_path / "work/home").read_text().strip() == str(tmp_path / "home")
    assert not (tmp_path / "work/slow").exists()


@pytest.mark.slow
def test_what_is_slow_runs_with_the_slow(tmp_path: Path) -> None:
    with pytest.raises(PageError, match=r"but x\.md:2 said"):
        ran(fenced("sh", "echo slow", "slow") + fenced("text", "fast"), tmp_path, slow=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (fenced("sh", "false\necho on"), "ended with 1"),
        (fenced("sh", "false | cat"), "ended with 1"),
        (fenced("sh", "echo $UNSET_ANYWHERE"), "ended with"),
        (fenced("sh", "packtrain run none.yaml"), "none.yaml"),
        (fenced("sh", "true", "exits: 2"), "ended with 0, not 2"),
        (fenced("python", "import os\nos._exit(0)"), "died"),
        (fenced("python", "1 / 0"), "ZeroDivisionError"),
        (fenced("sh", "curl --max-time 5 -s https://example.org"), "ended with"),
        (fenced("sh", "echo three") + fenced("text", "four"), "shows"),
        (fenced("text", "four"), "of nothing before"),
        (fenced("sh", "ls", "not run: takes long") + fenced("text", "x"), "x.md:2, which is not run"),
        (fenced("sh", "ls") + fenced("text", "x", "output of: cat"), "of nothing before"),
    ],
)
def test_what_fails_fails_the_page(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(PageError, match=words):
        ran(text, tmp_path)


@pytest.mark.parametrize(
    ("shown", "said", "roughly", "expected"),
    [
        ("rows │ 32", "x\nrows  │  32\ny", False, True),
        ("rows │ 32", "rows │ 33", False, False),
        ("rows │ 32", "rows │ 33", True, True),
        ("━━╇━━", "━━━━━╇━━━", False, True),
        ("a…z", "abcz", False, True),
        ("a…z", "ab", False, False),
        ("(a.b)", "(aXb)", False, False),
        ("loss 5.69, 1.98k tokens", "loss 4.2, 12 tokens", True, True),
        ("loss 5.69, 1.98k tokens", "loss nan, 12 tokens", True, False),
    ],
)
def test_what_an_output_may_differ_in(shown: str, said: str, roughly: bool, expected: bool) -> None:
    assert shows(shown, said, roughly=roughly) is expected
