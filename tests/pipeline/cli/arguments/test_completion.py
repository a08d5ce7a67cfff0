"""Shell completion: its answers, its speed, and that real shells accept it."""

import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args, get_origin

import pytest
import yaml
from packtrain.pipeline.cli.arguments import completion, config_keys
from packtrain.schemas.config.config import RunConfig
from packtrain.schemas.config.formats import FORMAT_KEYS
from packtrain.schemas.config.section import parse_size
from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from tests.support import warm

ROOT = Path(__file__).parents[4]
TRAINER = ("learning_rate", "max_steps", "warmup_steps", "weight_decay", "lr_scheduler_type", "logging_steps",
           "save_steps", "bf16", "gradient_checkpointing")  # fmt: skip
"""Of transformers.TrainingArguments, whose keys are too many, and depend on its version."""


# What stands in the list of keys


def keys_of(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, tuple[str, ...]]]:
    """(key, its values or its default) of every leaf; of a list of sections, those of its first item."""
    for name, field in model.model_fields.items():
        inner = [one for one in (field.annotation, *get_args(field.annotation))
                 if isinstance(one, type) and issubclass(one, BaseModel)]  # fmt: skip
        if not inner and get_origin(field.annotation) is dict and get_origin(get_args(field.annotation)[0]) is Literal:
            yield from ((f"{path}{name}.{key}", ()) for key in get_args(get_args(field.annotation)[0]))
        elif not inner:
            yield f"{path}{name}", values_of(f"{path}{name}", field)
        else:
            if name == "mask":  # a word will do
                yield name, values_of("", inner[0].model_fields["policy"])
            item = "" if inner[0] is field.annotation or type(None) in get_args(field.annotation) else "0."
            yield from keys_of(inner[0], f"{path}{name}.{item}")


def values_of(key: str, field: FieldInfo) -> tuple[str, ...]:
    if key == "sources.0.format":
        return ("auto", *FORMAT_KEYS)
    words = [str(value) for one in (field.annotation, *get_args(field.annotation)) if get_origin(one) is Literal
             for value in get_args(one)]  # fmt: skip
    if words:
        return (*words, *(["null"] if type(None) in get_args(field.annotation) else []))
    if field.annotation is bool:
        return ("true", "false")
    if field.is_required() or isinstance(field.default, (dict, list, tuple)) or field.default_factory is not None:
        return ()
    size = any(isinstance(item, BeforeValidator) and item.func is parse_size for item in field.metadata)
    if size and field.default is not None:
        return (f"{field.default // 2**20}MiB",)
    return (yaml.safe_dump(field.default).splitlines()[0],)


def listed(name: str, keys: dict[str, tuple[str, ...]]) -> str:
    lines = "".join(f"    {json.dumps(key)}: {shown(values)},\n" for key, values in keys.items())
    return f"{name}: dict[str, tuple[str, ...]] = {{\n{lines}}}"


def shown(values: tuple[str, ...]) -> str:
    return f"({', '.join(map(json.dumps, values))}{',' if len(values) == 1 else ''})"


def test_the_list_of_keys_is_that_of_the_schema() -> None:
    from packtrain.training.trainer.config import OWNED, TrainConfig

    assert not set(TRAINER) & set(OWNED)
    train = dict(keys_of(TrainConfig)) | {f"trainer.{name}": () for name in TRAINER}
    path = Path(str(config_keys.__file__))
    docstring = '"""The keys of both configurations, with what may stand there. A test makes this file."""'
    listings = f"{listed('RUN', dict(keys_of(RunConfig)))}\n{listed('TRAIN', train)}"
    content = f"{docstring}\n\n# fmt: off\n# ruff: noqa: E501\n{listings}\n# fmt: on\n"
    if os.environ.get("PACKTRAIN_REWRITE_DOCS"):
        path.write_text(content, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == content, "PACKTRAIN_REWRITE_DOCS=1 rewrites it"


# What is offered


def test_the_names_are_those_that_the_package_knows() -> None:
    from packtrain.training.losses.explain import RankBy
    from packtrain.training.order import Order
    from packtrain.training.steps import Tail

    assert set(config_keys.TRAIN["loader.order"]) == {str(one) for one in Order}
    assert set(config_keys.TRAIN["loader.tail"]) == {str(one) for one in Tail}
    assert set(completion.rank_by("")) == {str(one) for one in RankBy}


def test_keys_are_completed_then_their_values() -> None:
    assert completion.setting("truncate.max_l") == ["truncate.max_length=", "truncate.max_length=2048"]
    assert completion.setting("pack.str") == [
        f"pack.strategy={one}" for one in ("bfd", "tight", "bfd_split", "wrapped", "none")
    ]
    assert completion.setting("pack.strategy=bfd_") == ["pack.strategy=bfd_split"]
    assert "mask=assistant" in completion.setting("mask=")
    assert completion.setting("nosuch") == []
    everything = completion.setting("")
    assert len(everything) == len(config_keys.RUN) > 50
    assert all(one.endswith("=") for one in everything)
    assert "loader.order=" in completion.train_setting("loader.")


# In a real shell

SETUP = 'export PATH={}:$PATH; eval "$(_PACKTRAIN_COMPLETE=source_bash packtrain)"'
ASK = (
    'ask() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _packtrain_completion packtrain;'
    ' (IFS=" "; echo "${COMPREPLY[*]}"); }'
)
OFFERS: list[tuple[str, str]] = [
    ("packtrain ins", "inspect"),
    ("packtrain run --exec", "--executor"),
    ("packtrain run --executor ''", "local ray static"),
    ("packtrain run --format m", "messages"),
    ("packtrain loader packed --order ''", "full blocks sequential"),
    ("packtrain loader packed --tail r", "repeat"),
    ("packtrain explain-loss trained --by s", "share"),
    ("packtrain launch slurm-", "slurm-node slurm-nodes"),
    ("packtrain probe model --dtype b", "bfloat16"),
    ("packtrain run --set pack.al", "pack.align= pack.align=1"),
    # Bash takes what is before and behind an equals sign for words of their own.
    ("packtrain run --set pack.strategy = bfd_", "bfd_split"),
    ("packtrain run --set pack.strategy =", "bfd tight bfd_split wrapped none"),
    ("packtrain run --set seed = 3 --set output.format = p", "parquet"),
    ("packtrain run --set seed = 3 --dry", "--dry-run"),
    ("packtrain train --set loader.order = b", "blocks"),
    # Nothing is offered for a path, so that bash completes files by itself.
    ("packtrain run mi", ""),
    ("packtrain verify pa", ""),
    ("packtrain run --out pa", ""),
]


def test_bash_is_offered_what_fits(warm_program: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    script = "\n".join([SETUP.format(warm_program.parent), ASK, *(f"ask {words}" for words, _ in OFFERS)])
    done = subprocess.run([bash, "--norc", "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [offer for _, offer in OFFERS]


def test_a_key_is_completed_where_a_person_presses_it(tmp_path: Path, warm_program: Path) -> None:
    """Tab in a bash of its own terminal: a command, a key with its equals sign and no space, a value, and a file."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    (tmp_path / "mixture.yaml").touch()
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "dumb", "PS1": "$ ", "INPUTRC": "/dev/null", "HISTFILE": "/dev/null"}
    command = [bash, "--norc", "--noprofile", "-i"]
    shell = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)

    def until(what: str) -> str:
        seen, end = "", time.monotonic() + 60
        while what not in seen and time.monotonic() < end:
            if select.select([ours], [], [], 0.2)[0]:
                seen += os.read(ours, 65536).decode().replace("\a", "")
        assert what in seen
        return seen

    os.write(
        ours, f"bind 'set enable-bracketed-paste off'; {SETUP.format(warm_program.parent)}; echo rea''dy\n".encode()
    )
    until("ready\r\n")
    for typed, grows in (
        (b"packtrain ru\t", "packtrain run "),
        (b"mixt\t", "mixture.yaml "),
        (b"--set truncate.max_l\t", "truncate.max_length="),
        (b"512 --set pack.strategy=wra\t", "pped "),
    ):
        os.write(ours, typed)
        until(grows)
    os.write(ours, b"\x01: \x05\nexit\n")
    until("exit")
    os.close(ours)
    shell.wait(20)


def test_the_other_shells_speak_the_protocol() -> None:
    def asked(shell: str, **environment: str) -> str:
        return warm.run([], env=os.environ | environment | {"_PACKTRAIN_COMPLETE": f"complete_{shell}"}).stdout

    assert re.search(r'"?--executor"?', asked("zsh", _TYPER_COMPLETE_ARGS="packtrain run --exec"))
    assert "truncate.max_length=" in asked("zsh", _TYPER_COMPLETE_ARGS="packtrain run --set truncate.max")
    fish = {"_TYPER_COMPLETE_FISH_ACTION": "get-args", "_TYPER_COMPLETE_ARGS": "packtrain launch fs"}
    assert "fsdp2" in asked("fish", **fish)


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_a_script_for_another_shell_is_one(shell: str, tmp_path: Path) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"there is no {shell}")
    source = os.environ | {"_PACKTRAIN_COMPLETE": f"source_{shell}"}
    script = warm.run([], env=source).stdout
    (tmp_path / "script").write_text(script)
    subprocess.run([program, "-n", str(tmp_path / "script")], check=True)


def test_a_press_of_tab_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom packtrain.pipeline.cli.main import main\ntry:\n    main()\nfinally:\n    print(*sys.modules)"
    )
    environment = os.environ | {
        "_PACKTRAIN_COMPLETE": "complete_bash", "COMP_WORDS": "packtrain\nrun\n--set\nseed", "COMP_CWORD": "3",
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("seed=\nseed=42\n")
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    # Typer itself imports pydantic, from some version on.
    assert not {"rich", "yaml", "numpy", "pyarrow", "torch", "transformers", "msgspec"} & loaded


# Installing

ANEW = "from packtrain.pipeline.cli import main as cli; cli.command.cache_clear(); cli.main()"
"""Typer asks the environment for the shell when it makes the commands."""


def test_the_help_says_how_to_install_it(tmp_path: Path) -> None:
    done = warm.run(["--help"])
    assert "--install-completion" in done.stdout
    assert "--show-completion" in done.stdout
    environment = os.environ | {"HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    assert warm.run(["python", "-c", ANEW, "--install-completion", "bash"], env=environment).returncode == 0
    assert "_packtrain_completion" in (tmp_path / ".bash_completions" / "packtrain.sh").read_text()
    assert "packtrain.sh" in (tmp_path / ".bashrc").read_text()
    shown = warm.run(["python", "-c", ANEW, "--show-completion", "bash"], env=environment)
    assert "complete -o default -F _packtrain_completion packtrain" in shown.stdout
