"""No text from outside controls the terminal, however it is printed; and all printing uses one function."""

import ast
import json
import logging
import re
import shutil
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline.cli.views.console import EscapingConsole, make_console
from packtrain.pipeline.cli.views.streams import print_line
from packtrain.pipeline.report.draw.printing import say
from packtrain.pipeline.run.driver import run
from packtrain.schemas.escape import EscapingFormatter, escape, escape_json
from rich.markup import escape as no_markup
from rich.panel import Panel
from rich.table import Table
from rich.tree import Tree

from tests.support.sources import trees

EVIL = "\x1b]0;owned\x07\x1b[2J\u202eevil\x9b31m[red]"
ACTIVE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def calls(tree: ast.Module) -> Iterator[str]:
    """How everything is called, or handed on, that prints."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in ("print", "Console"):
            yield node.id
        if isinstance(node, ast.Attribute):
            name = ast.unparse(node) if re.match("buffer$|write|echo", node.attr) else ""
            if re.fullmatch(r"sys\.(__)?std(out|err)(__)?\.(buffer|write|writelines)|typer\.echo.*", name):
                yield name
            if node.attr == "Console":
                yield name


def test_there_is_one_way_to_print() -> None:
    found: dict[str, set[str]] = {}
    for path, tree in trees().items():
        used = set(calls(tree))
        if used:
            found[path.as_posix()] = used
    said = {path: used for path, used in found.items() if used != {"Console"}}
    assert said == {
        "pipeline/cli/views/streams.py": {"print", *said["pipeline/cli/views/streams.py"]},
        "training/printing.py": {"print"},
        "pipeline/inputs/places/hubchild.py": {"print"},  # JSON in ASCII, to its parent
        **{path: used for path, used in said.items() if path in PARENTS},
    }
    makes = [
        path
        for path in found
        for node in ast.walk(trees()[Path(path)])
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "Console"
    ]
    assert makes == [], "make_console makes them"


PARENTS = ("pipeline/encode/tokenizer/child.py", "pipeline/execute/local_worker.py")
"""They hold no text: they write JSON and pickles for their own parent."""


def test_every_shape_of_a_console_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    console = make_console()
    assert isinstance(console, EscapingConsole)
    table = Table(title=no_markup(EVIL), caption=no_markup(EVIL))
    table.add_column(no_markup(EVIL))
    table.add_row(no_markup(EVIL))
    tree = Tree(no_markup(EVIL))
    tree.add(no_markup(EVIL))
    for one in (table, tree, Panel(no_markup(EVIL), title=no_markup(EVIL)), no_markup(EVIL)):
        console.print(one)
    say(console, EVIL)
    print_line(EVIL)
    out = capsys.readouterr().out
    assert not ACTIVE.search(out)
    assert out.count("\\u202eevil") >= 9


def test_colours_are_still_written() -> None:
    stream = StringIO()
    console = EscapingConsole(file=stream, force_terminal=True, color_system="standard", width=200)
    console.print(no_markup(EVIL), style="green")
    shown = stream.getvalue()
    assert "\x1b[32m" in shown
    assert not ACTIVE.search(re.sub("\x1b\\[[0-9;]*m", "", shown))


def test_json_that_is_looked_at_keeps_its_values() -> None:
    data = json.dumps({EVIL: "a\x7fb\U000e0001é"}, ensure_ascii=False).encode()
    said = escape_json(data + b"\n")
    assert json.loads(said) == json.loads(data)
    assert not ACTIVE.search(said.decode())
    assert said.endswith(b'\\u202eevil\\u009b31m[red]": "a\\u007fb\\udb40\\udc01\xc3\xa9"}\n')


def test_a_log_without_a_handler_is_escaped() -> None:
    record = logging.LogRecord("x", logging.WARNING, "", 0, "%s is damaged", (EVIL,), None)
    assert EscapingFormatter().format(record) == f"{escape(EVIL)} is damaged"


@pytest.fixture
def hostile(little: Any, tmp_path: Path) -> Path:
    """A folder whose inputs, output and cache have hostile names."""
    little.copy(tmp_path, cache=False, out=False)
    name = EVIL.replace("/", "")
    with (tmp_path / "inputs" / "a.jsonl").open("a") as file:
        file.write("no JSON\n")
    (tmp_path / "inputs" / "a.jsonl").rename(tmp_path / "inputs" / f"{name}.jsonl")
    config = json.loads((tmp_path / "run.yaml").read_text())
    config |= {"out": f"out {name}", "cache": f"cache {name}"}
    config["sources"][0]["path"] = f"inputs/{name}.jsonl"
    shutil.move(tmp_path / "cache", tmp_path / f"cache {name}")
    (tmp_path / "run.yaml").write_text(json.dumps(config))
    return tmp_path


def test_no_command_prints_what_a_name_holds(hostile: Path, packtrain: Callable[..., Any]) -> None:
    name = EVIL.replace("/", "")
    out = hostile / f"out {name}"
    config = hostile / "run.yaml"
    commands: list[tuple[Any, ...]] = [
        ("run", config, "--dry-run"),
        ("run", config),
        ("run", config),
        ("plan", config),
        ("report", out),
        ("report", out, "--json"),
        ("inspect", out),
        ("inspect", out, "--doc", "1"),
        ("inspect", out, "--id", "nothing"),
        ("inspect", out, "--json"),
        ("diff", out, out),
        ("loader", out, "--explain", "--steps", "1"),
        ("loader", out, "--explain", "--steps", "1", "--json"),
        ("verify", out),
        ("verify", hostile / name),
        ("repair", out),
        ("clean", config, "--all"),
        ("clean", "--cache", hostile / "inputs"),
        ("wait", out),
        ("run", f"{name}.yaml"),
        ("run", config, name),
        ("run", config, "--set", f"{name}=1"),
        ("run", config, f"--{name}"),
        (name,),
        ("train", f"{name}.yaml"),
    ]
    escaped = 0
    for command in commands:
        done = packtrain(*command)
        said = done.out + done.err
        assert said, command
        assert not ACTIVE.search(said), (command, said)
        escaped += "\\u202eevil" in said
    assert escaped > 15
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "\\u202eevil" in page
    assert not re.search("[\x07\x1b\u202e]", page)
    for file in ("rejects.jsonl", "report.json"):
        text = (out / file).read_text(encoding="utf-8")
        assert "\\u202eevil" in text
        assert not ACTIVE.search(text)


def test_a_note_that_a_run_leaves_is_read_out_harmless(
    little: Any, tmp_path: Path, packtrain: Callable[..., Any]
) -> None:
    little.copy(tmp_path)
    run(tmp_path / "run.yaml")
    (tmp_path / "out" / "manifest.json").unlink()
    failed = {"message": EVIL, "kind": EVIL}
    lease = next((tmp_path / "out" / "_run" / "lease").iterdir())
    (tmp_path / "out" / "_run" / "failed.json").write_text(
        json.dumps({**failed, "lease": json.loads(lease.read_text())})
    )
    done = packtrain("verify", tmp_path / "out")
    assert not ACTIVE.search(done.err)
