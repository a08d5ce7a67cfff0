"""Configurations of other tools: what is said of their keys, in errors and in docs/trainers.md, fits both sides.

PACKTRAIN_REWRITE_DOCS=1 rewrites the tables of the page.
"""

import ast
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from packtrain.pipeline.cli.completion import config_keys
from packtrain.pipeline.foreign_configs import AXOLOTL, DATASET_INFO, LLAMA_FACTORY, TRL, ForeignTool

from tests import kit

PAGE = Path(__file__).parents[2] / "docs" / "trainers.md"
TOOLS = (TRL, AXOLOTL, LLAMA_FACTORY, DATASET_INFO)

AXOLOTL_FILE = """
base_model: Qwen/Qwen3-8B
datasets:
  - {path: tatsu-lab/alpaca, type: alpaca}
  - path: chats.jsonl
    type: chat_template
    field_messages: dialog
    message_property_mappings: {role: from, content: value}
    train_on_eos: turn
val_set_size: 0.05
train_on_inputs: false
sequence_len: 4096
special_tokens: {pad_token: "<pad>"}
micro_batch_size: 2
"""
DATASETS = '{"chats": {"file_name": "chats.json", "formatting": "sharegpt", "columns": {"messages": "talk"}}}'


def table(tool: ForeignTool) -> str:
    """The Markdown table of a tool."""
    head = f"| {tool.name} | here | differs |\n|---|---|---|\n"
    return head + "".join(
        f"| `{path}` | {f'`{key.equivalent}`' if key.equivalent else ''} | {key.differs} |\n"
        for path, key in tool.keys.items()
    )


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: str(tool.name))
def test_the_page_has_the_table(tool: ForeignTool) -> None:
    page = PAGE.read_text(encoding="utf-8")
    heading = f"### From {tool.name}\n\n"
    assert page.count(heading) == 1
    before, _, rest = page.partition(heading)
    old = re.match(r"(\|.*\n)*\n?", rest)
    assert old is not None
    if os.environ.get("PACKTRAIN_REWRITE_DOCS"):
        PAGE.write_text(before + heading + table(tool) + "\n" + rest[old.end() :], encoding="utf-8")
    else:
        assert old[0] == table(tool) + "\n"


def test_what_is_named_here_exists() -> None:
    keys = {key.replace(".0.", "[].") for key in config_keys(training=False)}
    sections = {key.rpartition(".")[0] for key in keys} | {key.partition(".")[0].removesuffix("[]") for key in keys}
    open_keys = re.compile(r"(sources\[\]\.keys|tokenizer\.variables)\.\w+")  # which take any name
    others = {"PackedStream", "PackedLoader(static_shapes=True)", "packtrain train", "packtrain export --to hub"}
    others |= {"--shard I/N", "messages[].train"}
    checked = 0
    for tool in TOOLS:
        for path, key in tool.keys.items():
            if key.equivalent and key.equivalent not in others:
                checked += 1
                assert key.equivalent in keys | sections or open_keys.fullmatch(key.equivalent), (
                    tool.name,
                    path,
                    key.equivalent,
                )
            assert key.equivalent or key.differs, (tool.name, path)
    assert checked > 100


@pytest.mark.parametrize("command", ["run", "plan", "prep"])
@pytest.mark.parametrize(
    ("name", "content", "named", "absent"),
    [
        (
            "ax.yml",
            AXOLOTL_FILE,
            [
                "ax.yml is a configuration of Axolotl",
                "base_model: Qwen/Qwen3-8B → tokenizer.path",
                "datasets[].field_messages: dialog → sources[].keys.messages",
                "datasets[].train_on_eos: turn → mask.train_end",
                "val_set_size: 0.05 → holdout.fraction",
                "train_on_inputs: False → mask",
                "sequence_len: 4096 → truncate.max_length",
                "special_tokens → tokenizer.path",
                "for your trainer: micro_batch_size",
            ],
            "sample_packing",
        ),
        (
            "dataset_info.json",
            DATASETS,
            [
                "LLaMA-Factory's dataset_info.json",
                "[].file_name: chats.json → sources[].path",
                "[].columns.messages: talk → sources[].keys.conversations",
            ],
            "for your trainer",
        ),
        (
            "sft.yaml",
            "model_name_or_path: m\nstage: sft\ncutoff_len: 4096\nmask_history: true\nlearning_rate: 1.0e-5\n",
            ["LLaMA-Factory", "cutoff_len: 4096 → truncate.max_length", "mask_history: True → mask", "learning_rate"],
            "val_size",
        ),
        (
            "trl.yaml",
            "model_name_or_path: m\ndataset_name: d\nmax_length: 512\nassistant_only_loss: true\n",
            ["of TRL", "max_length: 512 → truncate.max_length", "assistant_only_loss: True → mask"],
            "packing_strategy",
        ),
    ],
)
def test_a_file_of_another_tool_is_translated(
    tmp_path: Path, command: str, name: str, content: str, named: list[str], absent: str
) -> None:
    (tmp_path / name).write_text(content)
    outcome = kit.cli(command, name, *(["--output", "x.jsonl"] if command == "prep" else []), cwd=tmp_path)
    assert outcome.code == 2
    for words in named:
        assert words in outcome.err
    assert absent not in outcome.err


def test_foreign_values_are_bounded_and_escaped(tmp_path: Path) -> None:
    nested = "{a: " * 60 + "1" + "}" * 60
    content = f'base_model: "\\e]0;title\\a{"x" * 5000}"\nsequence_len: {nested}\n'
    many = "".join(f"key_{number}: 1\n" for number in range(5000))
    (tmp_path / "ax.yml").write_text(content + many)
    outcome = kit.cli("run", "ax.yml", cwd=tmp_path)
    assert outcome.code == 2
    assert "\x1b" not in outcome.err
    assert len(outcome.err) < 3000


def _classes(wheel: Path, member: str) -> dict[str, list[str]]:
    """The annotated names of each class in a module of a wheel, which is parsed, not run."""
    with zipfile.ZipFile(wheel) as archive:
        tree = ast.parse(archive.read(member))
    return {
        node.name: [
            line.target.id
            for line in node.body
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
        ]
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }


def _wheel(folder: Path, requirement: str) -> Path:
    """A package's wheel, without what it depends on; skips where there is none."""
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "download",
        "--no-deps",
        "--only-binary",
        ":all:",
    ]
    done = subprocess.run(
        [*pip, "--dest", str(folder), requirement], capture_output=True, text=True, check=False, timeout=300
    )
    if done.returncode:
        pytest.skip(f"pip cannot download {requirement}: {done.stderr.strip().splitlines()[-1]}")
    return next(folder.glob("*.whl"))


def _below(tool: ForeignTool, prefix: str) -> Iterator[str]:
    """The keys of a table directly below a prefix."""
    for path in tool.keys:
        if path.startswith(prefix) and not re.search(r"[][.]", path[len(prefix) :]):
            yield path[len(prefix) :]


AXOLOTL_OLD = {"conversation", "input_format", "input_transform", "field_human", "field_model"}
"""Keys that Axolotl still declares and no longer documents."""
AXOLOTL_TRAINING = {"logprobs_field", "temperature"}
"""Keys of a dataset that are about distillation."""


@pytest.mark.slow
def test_every_key_of_axolotl_is_its_own_and_none_of_a_dataset_is_left_out(tmp_path: Path) -> None:
    wheel = _wheel(tmp_path, "axolotl==0.19.0")
    datasets = _classes(wheel, "axolotl/utils/schemas/datasets.py")
    top = {
        name
        for module in ("config", "model", "training")
        for names in _classes(wheel, f"axolotl/utils/schemas/{module}.py").values()
        for name in names
    }
    assert set(_below(AXOLOTL, "")) <= top
    assert set(_below(AXOLOTL, "datasets[].")) | AXOLOTL_OLD | AXOLOTL_TRAINING == set(datasets["SFTDataset"])
    assert set(_below(AXOLOTL, "datasets[].type.")) == set(datasets["UserDefinedPrompterType"])


@pytest.mark.slow
def test_every_key_of_llama_factory_is_its_own_and_none_about_data_is_left_out(tmp_path: Path) -> None:
    wheel = _wheel(tmp_path, "llamafactory==0.9.5")
    arguments = set(_classes(wheel, "llamafactory/hparams/data_args.py")["DataArguments"])
    dataset = set(_classes(wheel, "llamafactory/data/parser.py")["DatasetAttr"])
    of_other_classes = {"model_name_or_path", "stage", "seed"}
    assert set(_below(LLAMA_FACTORY, "")) - of_other_classes <= arguments
    assert arguments - set(_below(LLAMA_FACTORY, "")) <= {"eval_num_beams"}
    where = {"file_name", "hf_hub_url", "ms_hub_url", "om_hub_url", "script_url", "cloud_file_name"}
    listed = {key for prefix in ("[].", "[].columns.", "[].tags.") for key in _below(DATASET_INFO, prefix)}
    assert listed - where == dataset - {"load_from", "dataset_name"}


def test_every_key_of_trl_is_its_own() -> None:
    trl = pytest.importorskip("trl")
    known = {field.name for config in (trl.SFTConfig, trl.ScriptArguments, trl.ModelConfig) for field in fields(config)}
    assert set(_below(TRL, "")) <= known
