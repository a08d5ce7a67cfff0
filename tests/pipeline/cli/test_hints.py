"""Mistakes are answered by what is wrong, where, and what to do."""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from packtrain.schemas import errors
from packtrain.schemas.config.hints import did_you_mean

from tests.support.sources import trees

Command = Callable[..., Any]
pytestmark = pytest.mark.xdist_group("workplace")

MISTAKES: list[tuple[str, int, str]] = [
    ("rum mix.yaml", 2, "No such command 'rum'. Did you mean 'run'"),
    ("inspct packed", 2, "Did you mean 'inspect'"),
    ("run mix.yaml --dryrun", 2, "No such option: --dryrun. Did you mean --dry-run?"),
    ("run mix.yaml --set trunkate.max_length=5", 2, "there is no such key; did you mean truncate?"),
    ("run mix.yaml --set truncate.max_lenght=5", 2, "there is no such key; did you mean max_length?"),
    ("run mix.yaml --set pack.strategy=bdf", 2, "pack.strategy: input should be 'bfd', 'tight', 'bfd_split'"),
    ("run mix.yaml --set sources.0.format=mesages", 2, "did you mean messages?"),
    ("run mix.yaml --set run.wait=soon", 2, "run.wait: 'soon' is not a duration; write 90s, 15min, 1h30m"),
    ("run mix.yaml --set run.memory=much", 2, "run.memory: 'much' is not a size; write 256MiB, 2GiB"),
    ("run mix.yaml --set out.x.y=1", 2, "--set out.x.y=1: out: input should be a valid string"),
    ("run mix.yml", 2, "there is no configuration mix.yml; check the spelling"),
    ("prep mix.yaml --source pear -o x.jsonl", 2, "--source: choose one of chats, pairs; did you mean pairs?"),
    ("inspect packed --split trian", 2, "there is no split 'trian'; choose one of train; did you mean train?"),
    ("inspect packed --row 99999", 2, "there is no row 99999; split 'train' has rows 0 to "),
    ("inspect paked", 2, "paked does not exist; give the folder that `packtrain run` wrote"),
    ("inspect packed --id chats/chat:3", 2, "chats/chat:3"),
    ("launch fsdp", 2, "there is no recipe 'fsdp'; there are ddp, fsdp2, zero3, slurm-node, slurm-nodes; did you mean"),
    ("wait nowhere --timeout 100ms --grace 1h", 1, "nowhere is not finished after 0.1 s: no run has been at work for"),
    ("publish packed me/packed", 2, "me/packed: write hf://owner/name, or hf://owner/name@revision for a branch"),
    ("publish packed hf://me/packed --with raport", 2, "--with raport: choose one of report, rejects, documents, "),
    ("clean", 2, "say what to clean: a configuration, --cache, or --out"),
    ("train --json --demo", 2, "--json works with --dry-run only; add --dry-run"),
]


@pytest.mark.parametrize(("line", "code", "expected"), MISTAKES)
def test_a_mistake_is_answered_by_what_to_do(
    packtrain: Command, workplace: Any, monkeypatch: pytest.MonkeyPatch, line: str, code: int, expected: str
) -> None:
    if line.startswith("train"):
        pytest.importorskip("torch")
    monkeypatch.chdir(workplace.folder)
    done = packtrain(*line.split())
    assert (done.code, done.out) == (code, "")
    assert expected in done.err.replace("\n", " ")
    assert "Traceback" not in done.err


def test_an_error_cannot_command_the_terminal(
    packtrain: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key of a configuration that somebody else wrote, and a name of a folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mix.yaml").write_text('{"out": "x", "\\u001b]0;owned\\u0007": 1}')
    done = packtrain("run", "mix.yaml")
    assert done.code == 2
    assert "\\x1b]0;owned\\x07" in done.err
    assert "\x1b" not in packtrain("verify", "\x1b[31mred").err + done.err


@pytest.mark.parametrize(
    ("word", "near"), [("verfy", "verify"), ("trian", "train"), ("xyz", ""), ("", ""), ("TRAIN", "")]
)
def test_the_nearest_word(word: str, near: str) -> None:
    assert did_you_mean(word, ["train", "verify", "holdout"]) == (f"; did you mean {near}?" if near else "")


# Every message of ours


KINDS = {name for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, errors.PacktrainError)}
ADVICE = re.compile(
    r"\b(?:add|begin|build|call|check|choose|compare|copy|create|decompress|delete|export|free|give|install|keep|leave|"
    r"let|load|look|lower|make|fix|move|must|name|need(?:s|ed)?|pack|pass|pip|point|put|raise|read|rename|repair|report|"
    r"resume|run|save|say|see|set|should|show|start|stop|take|unpack|unset|use|verify|wait|warm|write|fix|"
    r"convert|replace|did you mean|there are|it has|at least|such as|is written|known keys|are 0 to|its row gave|"
    r"looked for|not both|a rule of|"
    r"open|remove|count from 0|is 0 or more|prints|lists|only|flattened to one|have one row|wrote)\b"
)
"""A word that says what to do, or what there is to choose from."""
PASSED_ON = (
    "the workers were closed while", "loading the tokenizer folder  was", " tasks failed:\n,",
    ". What happened to its row", ": format auto found , because", "prep format  takes , got ",
    " falls from  to  at entry", "step  is not taken: ,", "tokenizer.path: the folder  ",
    ": the reader cannot be loaded:", ": the first row has more than", ": a quote that is",
    "nothing can be written there: ", "there is no row ; split  has ", " will not be finished: . ",
    " goes from  to , but", " has no , so it is not", "lora.: peft.LoraConfig has no",
    "trainer.: transformers.Training", "model.overrides.:  has no such", ": cu_seq_lens_q has  entries and",
    ": . At fault: . unknown", ": row  of split  cannot be exported to : ", "--out:  cannot be used: ",
    "the sandbox ended after ", ": its manifest has the padding token ", "the sandbox failed: ",
    "no pipes for a test: ",
    " holds preference pairs, which are not packed; datasets.load_from_disk", " has no losses of documents: ",
    "the dataset  is not there any more; ", "the dataset  has changed since the training",
    "the dataset of the training cannot be opened: ",
)  # fmt: skip
"""Messages without advice: the user did nothing wrong, or the advice is in an inserted part."""


def raises() -> Iterator[tuple[str, str, str]]:
    """(place, class, constant text of the message) of every error that is raised with a text of its own."""
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                name = ast.unparse(node.exc.func)
                texts = [one.value for one in ast.walk(node.exc.args[0]) if isinstance(one, ast.Constant)]
                text = "".join(one for one in texts if isinstance(one, str))
                if name in KINDS and len(text) > 20:
                    yield f"{path}:{node.lineno}", name, text


def test_every_message_says_what_to_do() -> None:
    """A coarse check: it finds messages that only say that something went wrong."""
    found = list(raises())
    assert len(found) > 250
    mute = [one for one in found if not ADVICE.search(one[2].lower()) and not one[2].startswith(PASSED_ON)]
    assert not mute, "\n".join(map(str, mute))
