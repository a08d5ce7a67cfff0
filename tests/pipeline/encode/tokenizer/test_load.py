"""Loading a tokenizer folder: what transformers would give, memoised, and refusals that a person can act on."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline.encode.tokenizer import load as module
from packtrain.pipeline.encode.tokenizer import process as tokenizer_process
from packtrain.pipeline.encode.tokenizer.load import TokenizerLoading, TokenizerSpec, load_tokenizer
from packtrain.pipeline.encode.tokenizer.place import find_tokenizer, tokenizer_name
from packtrain.schemas.errors import TaskError, TokenizerError
from packtrain.stages.tokenize.engines import make_engine

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
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache") / "memo"


@pytest.fixture(scope="module")
def spec(folder: Path, cache: Path) -> TokenizerSpec:
    return load_tokenizer(folder, cache=cache)


def forbid_children(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a child process was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)


def test_it_is_what_transformers_gives(spec: TokenizerSpec, folder: Path) -> None:
    from transformers import AutoTokenizer

    live = AutoTokenizer.from_pretrained(folder)
    assert spec.name == "plain"
    assert spec.special_tokens == live.special_tokens_map == {"bos_token": "<s>", "eos_token": "</s>"}
    assert (spec.bos_id, spec.eos_id, spec.eos_token) == (256, 257, "</s>")
    assert spec.pad_id == 257  # there is no padding token
    assert (spec.prefix_ids, spec.suffix_ids) == ((256,), (257,))
    assert spec.require_template() == live.chat_template == TEMPLATE
    ids = make_engine("tokenizers", spec.json).encode(["a longer text"]).ids.tolist()
    assert ids == live("a longer text", add_special_tokens=False)["input_ids"]
    assert [*spec.prefix_ids, *ids, *spec.suffix_ids] == live("a longer text")["input_ids"]


def test_the_json_neither_truncates_nor_pads(spec: TokenizerSpec) -> None:
    whole = json.loads(spec.json)
    assert whole["truncation"] is None
    assert whole["padding"] is None


def test_it_can_be_pickled(spec: TokenizerSpec) -> None:
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert "merges" not in repr(spec)


def test_a_second_run_reads_the_memo(
    spec: TokenizerSpec, folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [path.suffix for path in cache.iterdir()] == [".json"]
    forbid_children(monkeypatch)
    assert load_tokenizer(folder, cache=cache) == spec
    (folder / "model.safetensors").write_bytes(b"weights are not the tokenizer")
    assert load_tokenizer(folder, cache=cache) == spec


def test_a_second_data_set_reads_the_memo_of_the_user(
    spec: TokenizerSpec, folder: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid_children(monkeypatch)
    assert load_tokenizer(folder, cache=tmp_path / "second") == spec
    (first,), (second,) = cache.iterdir(), (tmp_path / "second").iterdir()
    assert (second.name, second.read_bytes()) == (first.name, first.read_bytes())
    monkeypatch.setenv("PACKTRAIN_CACHE", str(tmp_path / "user"))  # of another user
    with pytest.raises(AssertionError, match="a child process was started"):
        load_tokenizer(folder, cache=tmp_path / "third")


def test_another_content_or_version_is_another_memo(
    spec: TokenizerSpec, folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = module._folder_key(folder)
    (folder / "extra.json").write_text("{}")
    assert module._folder_key(folder) != key
    (folder / "extra.json").unlink()
    assert module._folder_key(folder) == key
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("x")
    assert module._folder_key(folder) != key
    (folder / "additional_chat_templates" / "tool_use.jinja").unlink()
    monkeypatch.setattr(module, "version", lambda _: "0.0")
    assert module._folder_key(folder) != key


def test_a_damaged_memo_is_made_again(spec: TokenizerSpec, folder: Path, cache: Path) -> None:
    (memo,) = cache.glob("tokenizer-*.json")
    whole = memo.read_bytes()
    for damage in (whole[: len(whole) // 2], b"[]", b'{"format": 1}'):
        memo.write_bytes(damage)
        assert module.read_answer(memo) is None
    assert load_tokenizer(folder, cache=cache) == spec
    assert memo.read_bytes() == whole
    assert list(cache.iterdir()) == [memo]


def test_a_cache_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    module._write_atomically(blocked / "memo.json", b"{}")
    assert list(tmp_path.iterdir()) == [blocked]


def test_other_work_can_be_done_meanwhile(spec: TokenizerSpec, folder: Path) -> None:
    with TokenizerLoading.start(folder) as loading:
        assert loading.result() == spec
        assert loading.result() == spec


def test_a_cancelled_loading_leaves_no_process(folder: Path) -> None:
    loading = TokenizerLoading.start(folder)
    loading.cancel()
    assert loading._child is not None
    assert loading._child.returncode is not None


def test_a_template_of_ones_own(
    spec: TokenizerSpec, folder: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid_children(monkeypatch)
    path = tmp_path / "my.jinja"
    path.write_text("{{ messages[0]['content'] }} é", encoding="utf-8")
    for given in (path, str(path), path.read_text(encoding="utf-8")):
        other = load_tokenizer(folder, chat_template=given, cache=cache)
        assert other.require_template() == "{{ messages[0]['content'] }} é"
        assert other.hash == spec.hash
        assert other.template_hash != spec.template_hash


def named(*names: str) -> list[dict[str, str]]:
    return [{"name": name, "template": f"{{{{ '{name}' }}}}"} for name in names]


@pytest.mark.slow
def test_named_templates(tmp_path: Path) -> None:
    both = load_tokenizer(write_folder(tmp_path / "both", chat_template=named("tool_use", "default")))
    assert both.require_template() == "{{ 'default' }}"
    some = write_folder(tmp_path / "some", chat_template=named("tool_use", "rag"))
    cache = tmp_path / "cache"
    spec = load_tokenizer(some, cache=cache)
    with pytest.raises(TokenizerError):
        spec.require_template()
    assert load_tokenizer(some, chat_template="{{ 1 }}", cache=cache).require_template() == "{{ 1 }}"


@pytest.mark.parametrize("path", ["tokeniser", "./tokeniser"])
def test_a_misspelt_folder_is_answered_by_the_tokenizer_beside_it(tmp_path: Path, path: str) -> None:
    (tmp_path / "tokenise").mkdir()  # nearer, but no tokenizer
    with pytest.raises(TokenizerError) as caught:
        find_tokenizer(path, tmp_path)
    write_folder(tmp_path / "tokenizer")
    with pytest.raises(TokenizerError) as caught:
        find_tokenizer(path, tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_a_name_on_the_hub_is_found_in_the_local_cache(
    program: Callable[..., Any], make_tokenizer: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "in.jsonl").write_text('{"text": "hello"}\n')
    options = ("--format", "text", "--input", "in.jsonl", "--workers", 1, "--no-report")
    done = program("run", *options, "--tokenizer", "someone/tiny", "--out", "out")
    assert done.code == 0, done
    assert program("run", *options, "--tokenizer", make_tokenizer("tiny"), "--out", "local").code == 0
    manifests = [json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("out", "local")]
    assert manifests[0]["plan"]["tokenizer"] == manifests[1]["plan"]["tokenizer"]

    done = program("run", *options, "--tokenizer", "someone/else", "--out", "other")
    assert done.code == 2
    assert str(tmp_path / "hub") in done.err


def test_a_snapshot_is_called_by_its_repository(tmp_path: Path) -> None:
    assert tokenizer_name(tmp_path / "models--a--b-c" / "snapshots" / "0123") == "a/b-c"
    assert tokenizer_name(tmp_path / "b") == "b"


def test_a_damaged_tokenizer_json(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "damaged")
    (folder / "tokenizer.json").write_text('{"version": "1.0"')
    with pytest.raises(TokenizerError):
        load_tokenizer(folder)


def test_code_from_the_folder_is_never_run(tmp_path: Path) -> None:
    folder = write_folder(
        tmp_path / "code", tokenizer_class="Mine", auto_map={"AutoTokenizer": ["mine.Mine", "mine.Mine"]}
    )
    (folder / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nclass Mine: pass\n")
    with pytest.raises(TokenizerError):
        load_tokenizer(folder)
    assert not (tmp_path / "ran").exists()


def test_a_process_that_dies_is_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = subprocess.Popen

    def dying(command: list[str], **options: Any) -> Any:
        return real([command[0], "-c", "import sys; sys.exit('out of luck')"], **options)

    monkeypatch.setattr(subprocess, "Popen", dying)
    with pytest.raises(TokenizerError):
        load_tokenizer(folder)


class Killed(subprocess.Popen[bytes]):
    """A child that is killed as soon as it runs; the first `left` of them."""

    left = 0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if Killed.left:
            Killed.left -= 1
            self.kill()


def test_a_child_that_is_killed_is_tried_again_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", Killed)
    Killed.left = 1
    assert load_tokenizer(folder).hash
    Killed.left = 2
    with pytest.raises(TaskError) as error:
        load_tokenizer(folder)
    assert error.value.exit_code == 1
    assert Killed.left == 0


def test_transformers_is_not_imported_here(folder: Path, cache: Path, spec: TokenizerSpec) -> None:
    code = (
        "import sys; from pathlib import Path; from packtrain.pipeline.encode.tokenizer.load import load_tokenizer;"
        "from packtrain.stages.tokenize.engines import make_engine;"
        f"s = load_tokenizer(Path({str(folder)!r}), cache=Path({str(cache)!r}));"
        "make_engine('tokenizers', s.json).encode(['a']);"
        "print(s.hash, 'transformers' in sys.modules, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [spec.hash, "False", "False"]


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
    assert (spec.bos_id, spec.eos_id) == (live.bos_token_id, live.eos_token_id)
    inner = live("x y", add_special_tokens=False)["input_ids"]
    assert [*spec.prefix_ids, *inner, *spec.suffix_ids] == live("x y")["input_ids"]


@pytest.mark.slow
def test_what_makes_the_import_quick_changes_no_name_of_transformers() -> None:
    code = (
        "import json, sys\nfrom packtrain.pipeline.encode.tokenizer import child\n"
        "child._hasten() if sys.argv[1:] else sys.modules.update(torch=None)\n"
        "import transformers, transformers.models\n"
        "for one in (transformers, transformers.models):\n"
        "    print(sorted(one._class_to_module.items()), one._object_missing_backend, sorted(one.__all__))"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", code, *quick],
            capture_output=True,
            check=True,
            env=os.environ | tokenizer_process.ENVIRONMENT | {"PYTHONHASHSEED": "0"},
        ).stdout
        for quick in ([], ["quick"])
    ]
    assert said[0] == said[1]
    assert b"Qwen2Tokenizer" in said[0]
