"""Tokenizer folders of other people: their code is never run, and no file is read outside of them."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.kit import CHATML, cli, configure, saved, tokenizer
from tests.support.hostile import ACTIVE, EVIL, SECRET, Trap, ran

MINE = {"AutoTokenizer": ["mine.Mine", "mine.Mine"]}
CONFIGS: dict[str, dict[str, Any]] = {
    "a class of its own": {"tokenizer_class": "Mine", "auto_map": MINE},
    "a map to another repository": {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": ["x/y--mine.Mine", None]}},
    "trust": {"tokenizer_class": "Mine", "auto_map": MINE, "trust_remote_code": True},
    "a class that is a function": {"tokenizer_class": "os.system"},
}


@pytest.fixture
def theirs(tmp_path: Path, tokenizer_loader: None) -> Path:
    """A folder with a good tokenizer and Python that leaves a mark when it runs."""
    folder = tokenizer(tmp_path / "theirs")
    for name in ("mine.py", "tokenization_mine.py", "theirs.py", "json.py", "sitecustomize.py", "__init__.py"):
        (folder / name).write_text(ran(tmp_path) + "class Mine: pass\n")
    for name in ("tokenizer.pkl", "tokenizer.model", "pytorch_model.bin", "added_tokens.pkl"):
        (folder / name).write_bytes(pickle.dumps(Trap(tmp_path)))
    return folder


def change(folder: Path, **keys: object) -> None:
    """Change tokenizer_config.json."""
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


def said_of(folder: Path) -> str:
    """What a run says of a tokenizer that is not taken; empty for one that is."""
    done = cli("run", saved(configure(folder.parent, "chats", tokenizer={"path": str(folder)})))
    said = done.out + done.err
    assert done.code in (0, 1, 2), said
    assert SECRET not in said
    assert "root:" not in said
    assert not ACTIVE.search(said)
    return done.err if done.code else ""


@pytest.mark.parametrize(
    "name", [next(iter(CONFIGS)), *(pytest.param(one, marks=pytest.mark.slow) for one in list(CONFIGS)[1:])]
)
def test_code_from_the_folder_is_never_run(theirs: Path, tmp_path: Path, name: str) -> None:
    change(theirs, **CONFIGS[name])
    said = said_of(theirs)
    assert not (tmp_path / "ran").exists()
    assert not said or "theirs" in said
    if name == "a class of its own":
        assert "needs code from the folder, which packtrain never runs" in said


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("tokenizer.json", kind) for kind in ("secret", "pipe", "loop", "zero")),
        *(pytest.param("tokenizer_config.json", kind, marks=pytest.mark.slow) for kind in ("secret", "pipe")),
        *(pytest.param("chat_template.jinja", kind, marks=pytest.mark.slow) for kind in ("loop", "zero")),
        *(("generation_config.json", kind) for kind in ("pipe", "zero")),
    ],
)
def test_a_file_that_is_none_is_not_taken(theirs: Path, tmp_path: Path, name: str, kind: str) -> None:
    """A link to a file that is no tokenizer fails without its content; a pipe or a device keeps nobody waiting."""
    (tmp_path / "secret").write_text(SECRET)
    (theirs / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(theirs / name)
    else:
        (theirs / name).symlink_to({"secret": tmp_path / "secret", "loop": theirs / name}.get(kind, Path("/dev/zero")))
    assert str(theirs / name) in said_of(theirs).replace("\n", "")


@pytest.mark.parametrize("kind", ["pipe", "zero", "huge", "secret of the kernel"])
def test_a_template_is_a_regular_file(theirs: Path, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "template.jinja"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "huge":
        path.touch()
        os.truncate(path, 1 << 40)
    else:
        path.symlink_to("/dev/zero" if kind == "zero" else "/proc/self/environ")
    done = cli(
        *("run", saved(configure(tmp_path, "chats", tokenizer={"path": str(theirs), "chat_template": str(path)}))),
    )
    assert done.code == 2
    assert "tokenizer.chat_template: cannot read" in done.err


def test_asking_for_a_tokenizer_ends(theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from packtrain.pipeline.encode import ask_transformers as asking

    monkeypatch.setenv("PACKTRAIN_CACHE", str(theirs.parent / "user"))
    with monkeypatch.context() as limits:
        limits.setattr(asking, "ASK_SECONDS", 0.01)
        assert "was not loaded within" in said_of(theirs).replace("\n", " ")
    whole = (theirs / "tokenizer.json").read_bytes()
    (theirs / "tokenizer.json").write_bytes(whole + b" " * (1 << 27))
    with monkeypatch.context() as limits:
        limits.setattr(asking, "ASK_BYTES", 3 << 26)
        assert "GiB of memory to be loaded" in said_of(theirs).replace("\n", " ")
    (theirs / "tokenizer.json").write_bytes(whole)
    assert not said_of(theirs)


BROKEN = (b"", b"[" * 100_000, b"\xff" * 99, b'{"model": {"type": "BPE", "vocab": {"a": 1e99}}}')


@pytest.mark.parametrize("data", [BROKEN[0], *(pytest.param(one, marks=pytest.mark.slow) for one in BROKEN[1:])])
def test_a_damaged_tokenizer_is_named(theirs: Path, data: bytes) -> None:
    (theirs / "tokenizer.json").write_bytes(data)
    assert "theirs" in said_of(theirs)


def test_names_of_tokens_are_text(theirs: Path, tmp_path: Path) -> None:
    """What a folder calls its tokens and templates is printed escaped and leads to no file."""
    change(theirs, chat_template=[{"name": "../../x", "template": CHATML}, {"name": EVIL, "template": "{{ 1 / 0 }}"}])
    said = said_of(theirs)
    assert "theirs" in said
    (theirs / "additional_chat_templates").mkdir()
    (theirs / "additional_chat_templates" / "default.jinja").symlink_to("/etc/passwd")
    said_of(theirs)
    assert not (tmp_path.parent / "x").exists()
