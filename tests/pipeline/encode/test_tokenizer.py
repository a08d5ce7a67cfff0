"""Loading a tokenizer folder: what transformers would give, kept for the user, and refusals that say what to do."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from packtrain.pipeline.encode.spec import TokenizerSpec
from packtrain.pipeline.encode.tokenizer import find_tokenizer, load_tokenizer
from packtrain.schemas.errors import TokenizerError
from packtrain.stages.tokenize.engines import make_engine
from packtrain.stages.tokenize.vocabulary import SpecialTokenAffixes

TEMPLATE = "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}</s>{% endfor %}"


def write_folder(folder: Path, *, bos: bool = False, **config: Any) -> Path:
    """A byte-level tokenizer without merges; `config` goes into tokenizer_config.json."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<s>", "</s>"])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 256), ("</s>", 257)]
        )
    tokenizer.enable_truncation(5)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(named | config))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("toks") / "plain", bos=True, chat_template=TEMPLATE)


@pytest.fixture(scope="module")
def spec(folder: Path) -> TokenizerSpec:
    return load_tokenizer(folder)


class AskedError(AssertionError):
    """A child process was started."""


@pytest.fixture
def unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks transformers gets `AskedError`."""
    monkeypatch.setattr(subprocess, "Popen", Mock(side_effect=AskedError))


def test_it_is_what_transformers_gives(spec: TokenizerSpec, folder: Path) -> None:
    from transformers import AutoTokenizer

    live = AutoTokenizer.from_pretrained(folder)
    assert spec.name == "plain"
    assert spec.special_tokens == live.special_tokens_map == {"bos_token": "<s>", "eos_token": "</s>"}
    assert spec.eos_id == spec.pad_id == 257  # there is no padding token
    assert spec.around == SpecialTokenAffixes((256,), (257,), "<s>", "</s>", "</s>")
    assert spec.require_template() == live.chat_template == TEMPLATE
    ids = make_engine("tokenizers", spec.json).encode(["a longer text"]).ids.tolist()
    assert ids == live("a longer text", add_special_tokens=False)["input_ids"]
    assert [*spec.around.prefix, *ids, *spec.around.suffix] == live("a longer text")["input_ids"]
    whole = json.loads(spec.json)
    assert (whole["truncation"], whole["padding"]) == (None, None)


def test_only_another_content_or_version_asks_again(
    spec: TokenizerSpec, folder: Path, unasked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "model.safetensors").write_bytes(b"weights are not the tokenizer")
    extra = folder / "additional_chat_templates" / "tool_use.jinja"
    extra.parent.mkdir()
    for path in (folder / "extra.json", extra):
        assert load_tokenizer(folder) == spec
        path.write_text("{}")
        with pytest.raises(AskedError):
            load_tokenizer(folder)
        path.unlink()
    monkeypatch.setattr("packtrain.pipeline.encode.tokenizer.version", lambda _: "0.0")
    with pytest.raises(AskedError):
        load_tokenizer(folder)


def test_an_answer_that_is_damaged_or_may_be_another_persons_is_not_believed(
    spec: TokenizerSpec, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACKTRAIN_CACHE", str(tmp_path / "user"))
    assert load_tokenizer(folder) == spec
    (kept,) = (tmp_path / "user" / "tokenizers").iterdir()
    monkeypatch.setattr(subprocess, "Popen", Mock(side_effect=AskedError))

    def is_not_believed() -> None:
        with pytest.raises(AskedError):
            load_tokenizer(folder)

    whole = kept.read_bytes()
    for damage in (b"", whole[: len(whole) // 2], whole.replace(b'"eos_id":257', b'"eos_id":255'), b"[" * 100_000):
        assert damage != whole
        kept.write_bytes(damage)
        is_not_believed()
    kept.write_bytes(whole)
    for place, mode in ((kept, 0o666), (kept.parent, 0o777)):
        before = place.stat().st_mode
        place.chmod(mode)
        is_not_believed()
        place.chmod(before)
    assert load_tokenizer(folder) == spec
    kept.unlink()
    (kept.parent.parent / "elsewhere").write_bytes(whole)
    kept.symlink_to(kept.parent.parent / "elsewhere")
    is_not_believed()
    kept.unlink()
    os.mkfifo(kept)  # opening it would block
    is_not_believed()


def test_a_name_on_the_hub_is_found_in_the_local_cache(
    make_tokenizer: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `huggingface_hub` lays it out: a ref names a commit, whose snapshot links into the blobs."""
    repository = tmp_path / "hub" / "models--someone--tiny"
    blobs, snapshot = repository / "blobs", repository / "snapshots" / ("c0ffee" * 7)[:40]
    for folder in (blobs, snapshot, repository / "refs"):
        folder.mkdir(parents=True)
    (repository / "refs" / "main").write_text(snapshot.name)
    for number, file in enumerate(sorted(make_tokenizer("tiny").iterdir())):
        (blobs / f"{number:040}").write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(Path("../../blobs") / f"{number:040}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    found = find_tokenizer("someone/tiny", tmp_path)
    assert found.samefile(snapshot)
    name = "someone/tiny"
    assert load_tokenizer(found) == replace(load_tokenizer(make_tokenizer("tiny")), name=name, template_name=name)
    with pytest.raises(TokenizerError, match=re.escape(str(tmp_path / "hub"))):
        find_tokenizer("someone/else", tmp_path)


def test_a_process_that_dies_is_reported(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACKTRAIN_CACHE", str(tmp_path / "new-user"))
    real = subprocess.Popen

    def dying(command: list[str], **options: Any) -> Any:
        return real([command[0], "-c", "import sys; sys.exit('out of luck')"], **options)

    monkeypatch.setattr(subprocess, "Popen", dying)
    with pytest.raises(TokenizerError):
        load_tokenizer(folder)


REAL = os.environ.get("PACKTRAIN_REALDATA")


@pytest.mark.slow
@pytest.mark.skipif(not REAL, reason="PACKTRAIN_REALDATA is not set")
@pytest.mark.parametrize("name", ["qwen3", "deepseek-coder-instruct", "olmo-gpt-neox"])
def test_real_folders(name: str) -> None:
    from transformers import AutoTokenizer

    path = Path(str(REAL)) / "tokenizers" / name
    spec, live = load_tokenizer(path), AutoTokenizer.from_pretrained(path)
    assert spec.json == live.backend_tokenizer.to_str()
    assert spec.special_tokens == live.special_tokens_map
    assert spec.chat_template == live.chat_template
    assert spec.eos_id == live.eos_token_id
    inner = live("x y", add_special_tokens=False)["input_ids"]
    assert [*spec.around.prefix, *inner, *spec.around.suffix] == live("x y")["input_ids"]


_TWO_RUNS = """
import sys
from pathlib import Path
import packtrain
from packtrain.pipeline.execute.pool import Pool
from packtrain.pipeline.execute.server import _Pipe
from packtrain.schemas.errors import PacktrainError

rows, tokenizer = Path("rows.jsonl"), {"path": sys.argv[1]}
sources = [{"name": "chats", "path": str(rows)}]
config = {"out": "out", "tokenizer": tokenizer, "sources": sources, "run": {"report": False}}
rows.write_text('{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}\\n' * 3)
try:
    packtrain.run({**config, "tokenizer": {**tokenizer, "chat_template": "absent.jinja"}}, quiet=True)
except PacktrainError as error:
    print(type(error).__name__, _Pipe.path is not None, *Pool(1).map(abs, [-1]))
print(packtrain.run(config, quiet=True).ledger.total().examples_packed)
"""


def test_workers_that_start_while_transformers_is_asked_do_not_wait_for_a_run_that_ended(
    folder: Path, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _TWO_RUNS, str(folder)],
        cwd=tmp_path,
        env=os.environ | {"PACKTRAIN_CACHE": str(tmp_path / "user")},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.stdout, done.stderr) == ("TokenizerError True 1\n{'train': 3}\n", "")
