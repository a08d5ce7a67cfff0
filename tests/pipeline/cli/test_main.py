"""The command line, as a person meets it."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from packtrain.pipeline.cli.arguments.help import GROUPS

from tests.support import warm
from tests.support.terminal import in_terminal

Command = Callable[..., Any]
COMMANDS = (
    "plan", "run", "wait", "prep", "report", "diff", "inspect", "contamination", "loader", "verify", "clean",
    "export", "publish", "train", "explain-loss", "probe", "doctor", "launch", "sample", "eval-apps", "export-model",
    "schema",
)  # fmt: skip
"""In the order in which the help lists them."""
DEMO = Path(str(files("packtrain.pipeline.demo")))


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder in which the installed program has run its demo, and what it said."""
    folder = tmp_path_factory.mktemp("demo")
    program = Path(sys.executable).parent / "packtrain"
    done = subprocess.run([program, "run", "--demo"], cwd=folder, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return folder, done.stdout


@pytest.fixture
def copy(demo: tuple[Path, str], tmp_path: Path) -> Path:
    """The demo's dataset, to be damaged."""
    shutil.copytree(demo[0] / "runs" / "demo", tmp_path / "copy")
    return tmp_path / "copy"


def without_times(text: str) -> str:
    """What was said, without the lines about stages that took more than a moment."""
    return re.sub(r"^\w+: (done in|\d+%).*\n", "", text, flags=re.MULTILINE)


# Help and mistakes


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(packtrain: Command, command: str) -> None:
    done = packtrain(command, "--help")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"Usage: packtrain {command}")
    options = re.findall(r"^  (?:-\w, )?(--[\w-]+)", done.out, re.MULTILINE)
    assert "--help" in options


def test_help_lists_every_command(packtrain: Command) -> None:
    done = packtrain("--help")
    assert done.code == 0
    groups = done.out.partition("Make a dataset:")[2]
    assert re.findall(r"^  ([\w-]+)  ", groups, re.MULTILINE) == list(COMMANDS)
    assert re.findall(r"^(\w.*):$", groups, re.MULTILINE) == list(GROUPS)[1:]
    assert "..." not in groups, "each is said in a whole sentence"


def test_no_command_shows_the_help(packtrain: Command) -> None:
    done = packtrain()
    assert done.code == 2
    assert "Make a dataset:" in done.out + done.err


def test_the_version(packtrain: Command) -> None:
    done = packtrain("--version")
    assert done.code == 0
    assert re.fullmatch(r"packtrain \d+\.\d+\.\d+\n", done.out)


# The demo


def test_an_unexpected_end_of_file_is_no_interruption() -> None:
    """typer takes every EOFError for Ctrl-D; a broken pipe to a child raises it, too."""
    code = (
        "import sys; from packtrain.pipeline.cli import main as cli\n"
        "cli.command.cache_clear()\n"
        "@cli.app.command()\ndef broken() -> None:\n    raise EOFError('a pipe')\n"
        "sys.argv = ['packtrain', 'broken']\ncli.main()"
    )
    done = warm.run(["python", "-c", code])
    assert (done.returncode, done.stderr.strip().splitlines()[-1]) == (1, "EOFError: a pipe")


def test_the_demo_runs_in_an_empty_folder(demo: tuple[Path, str]) -> None:
    folder, out = demo
    assert [path.name for path in folder.iterdir()] == ["runs"]
    assert re.search(r"^rows read +│ +32$", out, re.MULTILINE)
    assert re.search(r"^examples made +│ +77$", out, re.MULTILINE)
    assert "\x1b" not in out, "there is no terminal"


@pytest.mark.slow
def test_what_the_demo_says_to_do_next_works(demo: tuple[Path, str]) -> None:
    commands = re.findall(r"^  (\S*packtrain .*|\S*python\S* .*)$", demo[1], re.MULTILINE)
    assert len(commands) == 5
    assert " train " in commands[-1]
    # torch by itself brings gigabytes of CUDA.
    assert f"open {Path('runs/demo/report.html')}\n" in demo[1]
    # The training takes longer: tests/docs runs it.
    for command in [command for command in commands if " train " not in command]:
        # As it stands there, from the folder where it was printed, whether or not the environment is active.
        done = subprocess.run(command, shell=True, cwd=demo[0], capture_output=True, text=True, check=True)
    assert "DatasetDict" in done.stdout
    assert "input_ids" in done.stdout


# Run again, in the program's own way: what it imports, and no more.
AGAIN = """
import sys, time
from packtrain.pipeline.cli.main import main
try:
    main()
finally:
    print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_a_finished_run_says_so_at_once(demo: tuple[Path, str], program: Command) -> None:
    folder, _ = demo
    done = program("run", "--demo", cwd=folder)
    assert (done.code, done.err) == (0, "")


def test_a_finished_run_imports_nothing_heavy(demo: tuple[Path, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", AGAIN, "run", "--demo"], cwd=demo[0], capture_output=True, text=True, check=True
    )
    assert "already finished" in done.stdout
    assert not {"torch", "transformers", "datasets", "pandas", "polars", "tokenizers"} & set(done.stdout.split())


def test_inputs_can_be_verified_by_content(packtrain: Command, tmp_path: Path, tiny_tokenizer: Path) -> None:
    data = tmp_path / "in.jsonl"
    data.write_text('{"text": "hello"}\n')
    stat = data.stat()
    command = ("run", "--format", "text", "--input", data, "--tokenizer", tiny_tokenizer, "--out", tmp_path / "out")
    assert packtrain(*command, "--workers", 1, "--no-report").code == 0
    data.write_text('{"text": "jello"}\n')
    os.utime(data, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    done = packtrain(*command, "--workers", 1, "--verify-inputs")
    assert done.code == 2


def test_a_dry_run_shows_the_pipeline_and_writes_no_output(packtrain: Command, tmp_path: Path) -> None:
    done = packtrain("run", "--demo", "--dry-run", "--out", tmp_path / "deep" / "out", "--workers", 1)
    assert (done.code, done.err) == (0, "")
    lines = [line.lstrip("│├└─ ") for line in done.out.splitlines()]
    for start in (
        f"packtrain → {tmp_path}/deep/out",
        "apps: format apps, 32 lines",
        "encode: 1 block, 0 cached, 1 to do",
        "engine ",
        f"cache {tmp_path}/deep/.packtrain-cache",
        "mask: completion",
        "truncate: max_length 2,048, overlong truncate",
        "pack: bfd, shuffled by seed 7",
        "holdout: 15.00% by group",
        "write: arrow, about ",
    ):
        assert any(line.startswith(start) for line in lines), (start, lines)
    assert not (tmp_path / "deep" / "out").exists()
    assert packtrain("run", "--demo", "--out", tmp_path / "deep" / "out", "--workers", 1, "--no-report").code == 0
    again = packtrain("run", "--demo", "--dry-run", "--out", tmp_path / "deep" / "out", "--workers", 1)
    assert "already finished" in again.out


def test_options_overrule_the_configuration(packtrain: Command, tmp_path: Path) -> None:
    done = packtrain(
        "run", "--demo", "--dry-run", "--out", tmp_path / "out", "--max-length", 512, "--workers", 1,
        "--set", "pack.strategy=none", "--set", "seed=3", "--set", "output.format=parquet",
    )  # fmt: skip
    for what in ("max_length 512", "pack: none, shuffled by seed 3", "write: parquet", "(1 worker)"):
        assert what in done.out


def test_a_configuration_file_and_paths_beside_it(
    packtrain: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(DEMO, tmp_path / "home")
    monkeypatch.chdir(tmp_path)
    done = packtrain("run", "home/demo.yaml", "--workers", 1, "--no-report")
    assert (done.code, done.err) == (0, "")
    assert (tmp_path / "home" / "runs" / "demo" / "manifest.json").exists()
    done = packtrain("run", "home/demo.yaml", "--workers", 1, "--no-report", "--out", "here")
    assert (done.code, done.err) == (0, "")
    assert (tmp_path / "here" / "manifest.json").read_bytes() == (
        tmp_path / "home" / "runs" / "demo" / "manifest.json"
    ).read_bytes()


def test_names_that_look_like_markup(packtrain: Command, tmp_path: Path, tiny_tokenizer: Path) -> None:
    folder = tmp_path / "[bold]x[" / "[red]"
    folder.mkdir(parents=True)
    (folder / "[a].jsonl").write_text('{"text": "[/b] [bold]"}\n{\n')
    out = folder / "out"
    done = packtrain(
        "run", "--format", "text", "--input", folder / "[a].jsonl", "--tokenizer", tiny_tokenizer, "--out", out,
        "--workers", 1, "--no-report",
    )  # fmt: skip
    assert done.code == 0
    assert f"{out} is finished: " in done.out
    assert str(out) in done.out
    assert f"{out} is sound: " in packtrain("verify", out).out
    assert "[/b] [bold]" in re.sub("[⟦⟧]", "", packtrain("inspect", out).out)
    done = packtrain("prep", "--format", "text", "--input", folder / "[a].jsonl", "-o", folder / "[b].jsonl")
    assert f"{folder}/[b].jsonl: 1 example" in done.out


# Prep


@pytest.mark.parametrize("name", ["out.jsonl", "out.parquet"])
def test_prep(packtrain: Command, tmp_path: Path, name: str) -> None:
    done = packtrain("prep", DEMO / "demo.yaml", "-o", tmp_path / name)
    assert (done.code, done.err) == (0, "")
    expected = f"{tmp_path}/{name}: 77 examples from 32 rows\n  filtered: no_solution 2\n  never made: duplicate 2\n"
    assert without_times(done.out) == expected
    if name.endswith("jsonl"):
        rows = [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
    else:
        rows = pq.read_table(tmp_path / name).to_pylist()
    assert [list(row) for row in rows] == [["prompt", "completion"]] * 77
    assert packtrain("prep", DEMO / "demo.yaml", "-o", tmp_path / name).code == 2


def test_prep_of_prompts_alone(packtrain: Command, tmp_path: Path) -> None:
    options = ("--format", "apps", "--input", DEMO / "apps.jsonl")
    done = packtrain("prep", "--prompt-only", *options, "-o", tmp_path / "out.jsonl")
    assert done.code == 0
    assert without_times(done.out) == f"{tmp_path}/out.jsonl: 32 examples from 32 rows\n"
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [list(row) for row in rows] == [["id", "row", "prompt"]] * 32
    assert [row["row"] for row in rows] == list(range(32))


def test_prep_of_one_source_of_several(packtrain: Command, tmp_path: Path) -> None:
    config = {
        "out": "x",
        "tokenizer": {"path": "x"},
        "sources": [{"name": name, "format": "text", "path": f"{name}.jsonl"} for name in ("a", "b")],
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    (tmp_path / "b.jsonl").write_text('{"text": "from b"}\n')
    command = ("prep", tmp_path / "run.yaml", "-o", tmp_path / "out.jsonl")
    assert packtrain(*command, "--source", "b").code == 0
    assert (tmp_path / "out.jsonl").read_text() == '{"text":"from b"}\n'
    for more in ((), ("--source", "c")):
        done = packtrain(*command, *more)
        assert done.code == 2
    assert "a, b" in done.err


# Verify and inspect


def test_a_sound_dataset(packtrain: Command, copy: Path) -> None:
    done = packtrain("verify", copy)
    assert (done.code, done.err) == (0, "")
    expected = rf"{copy} is sound: \d+ files, \d+ rows, [\d,]+ tokens; sizes and rows agree; --deep .*\n"
    assert re.fullmatch(expected, without_times(done.out))
    done = packtrain("verify", copy, "--deep")
    assert done.code == 0


def test_inspect_shows_a_row(packtrain: Command, copy: Path) -> None:
    done = packtrain("inspect", copy, "--row", 1)
    assert (done.code, done.err) == (0, "")
    assert "⟦" in done.out
    assert "<|im_start|>" in done.out
    assert "\x1b" not in done.out
    ids = packtrain("inspect", copy, "--ids").out
    assert re.search(r"\d+ '<\|im_start\|>'  ", ids)


def test_inspect_without_the_tokenizer_of_the_run(packtrain: Command, copy: Path) -> None:
    (copy / "_run" / "run.json").unlink()
    done = packtrain("inspect", copy)
    assert done.code == 0
    assert "⟦" in done.out
    assert "<|im_start|>" in packtrain("inspect", copy, "--tokenizer", DEMO / "tokenizer").out


# Schema


def test_the_schema_describes_the_demo(packtrain: Command) -> None:
    done = packtrain("schema")
    assert done.code == 0
    schema = json.loads(done.out)
    config = yaml.safe_load((DEMO / "demo.yaml").read_text())
    assert set(config) <= set(schema["properties"])
    assert set(schema["required"]) <= set(config)
    for section in ("tokenizer", "truncate", "pack"):
        name = schema["properties"][section]["$ref"].rpartition("/")[2]
        assert set(config[section]) <= set(schema["$defs"][name]["properties"])


def test_the_schema_validates_as_a_schema(packtrain: Command) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(packtrain("schema").out)
    config = yaml.safe_load((DEMO / "demo.yaml").read_text())
    jsonschema.validate(config, schema)
    config["nosuch"] = 1
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(config, schema)


# Terminals and pipes


@pytest.mark.slow
def test_a_terminal_gets_colours_and_progress(tmp_path: Path, warm_program: Path) -> None:
    code, seen = in_terminal([warm_program, "run", "--demo", "--no-report", "--workers", "1"], tmp_path)
    assert code == 0
    assert "\x1b[1;32m" in seen, "colours"
    for stage in ("encode", "pack"):
        assert re.search(rf" {stage}.*━", seen), "a bar"
    assert "tokens/s" in seen
    assert "\x1b[?25h" in seen, "the cursor is back"
    code, seen = in_terminal([warm_program, "inspect", "runs/demo"], tmp_path)
    assert code == 0
    assert "⟦" not in seen
    assert "\x1b[1;32m" in seen


def test_an_interrupted_terminal_is_left_in_order(tmp_path: Path, warm_program: Path) -> None:
    code, seen = in_terminal([warm_program, "run", "--demo"], tmp_path, interrupt_at=b"load inputs")
    assert code == 130
    assert seen.count("\x1b[?25l") == seen.count("\x1b[?25h") > 0, "the cursor is back"


@pytest.mark.parametrize("arguments", ["schema", "inspect runs/demo", "run --help", "verify runs/demo"])
def test_a_reader_that_leaves_early_is_no_error(demo: tuple[Path, str], warm_program: Path, arguments: str) -> None:
    line = f"{warm_program} {arguments} | true"
    done = subprocess.run(line, shell=True, cwd=demo[0], capture_output=True, text=True, check=True)
    assert done.stderr == ""
