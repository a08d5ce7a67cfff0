"""The code of other trainers on packed rows: their loss is that of the documents alone.

Each is installed without its dependencies into a folder of its own, with the few that it imports, and run in a process
that has this folder before its other packages: `RECIPES` says how much of it runs.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from packtrain.pipeline.export.export import write_export
from transformers import AutoTokenizer

from tests.support.installed import install_packages, run_with_packages
from tests.training.foreign.conftest import Documented

pytestmark = [pytest.mark.slow, pytest.mark.installs, pytest.mark.xdist_group("foreign trainers")]
BEGIN = """
import functools, importlib.machinery, json, sys, types
import torch
from torch.nn import functional
from packtrain.training.packed_rows import PackedRows

torch.set_num_threads(1)
data, model_folder, out = sys.argv[1:4]
rows = PackedRows(data)


def documents(numbers):
    for number in numbers:
        row, begin = rows.row(number), 0
        for size in row.seq_lengths.tolist():
            yield (torch.tensor(one[begin : begin + size].tolist()) for one in (row.input_ids, row.labels))
            begin += size


def alone(logits_of, numbers):
    total = count = 0
    with torch.no_grad():
        for ids, labels in documents(numbers):
            logits = logits_of(ids[None])[0, :-1].float()
            total += functional.cross_entropy(logits, labels[1:], reduction="sum", ignore_index=-100).item()
            count += int((labels[1:] != -100).sum())
    return total / count


def model():
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model_folder).eval()


def finish(loss, logits_of, numbers, **more):
    print(json.dumps({"loss": float(loss), "alone": alone(logits_of, numbers), **more}))


def model_alone(numbers):
    network = model()
    return alone(lambda ids: network(ids, use_cache=False).logits, numbers)

"""
TORCHTUNE = """
from packtrain.training import PackedDataset
from torchtune.data import padded_collate_packed
from torchtune.models.qwen2 import qwen2
from torchtune.modules.loss import CEWithChunkedOutputLoss

dataset = PackedDataset(data, "torchtune")
batch = padded_collate_packed([dataset[0], dataset[1]])
torch.manual_seed(0)
network = qwen2(vocab_size=rows.highest_id + 1, num_layers=2, num_heads=4, num_kv_heads=2, embed_dim=64,
                intermediate_dim=128, max_seq_len=4096, tie_word_embeddings=True)
for weight in network.parameters():
    torch.nn.init.normal_(weight, 0, 0.15)
loss_of = CEWithChunkedOutputLoss()
network.set_num_output_chunks(loss_of.num_output_chunks)
labels = torch.hstack((batch["labels"][..., 1:], torch.full((2, 1), -100)))  # as its recipes do
batch["tokens"].clamp_(max=rows.highest_id)  # padding may have a higher id
loss = loss_of(network(batch["tokens"], mask=batch["mask"], input_pos=batch["input_pos"]), labels)
network.set_num_output_chunks(0)
finish(loss, network, [0, 1])
"""
VERL = """
from packtrain.training import PackedDataset
from tensordict import TensorDict
from verl.utils.dataset.dataset_utils import DatasetPadMode, SFTTensorCollator
from verl.workers.utils.losses import sft_loss

dataset = PackedDataset(data, "verl")
batch = SFTTensorCollator(DatasetPadMode.NO_PADDING)([dataset[0], dataset[1]])
network = model()
# As its engine does with use_remove_padding.
ids, positions = (batch[name].values()[None] for name in ("input_ids", "position_ids"))
logits = network(input_ids=ids, attention_mask=None, position_ids=positions, use_cache=False).logits[0]
next_ids = torch.roll(ids[0], shifts=-1, dims=0)
chosen = logits.log_softmax(-1).gather(-1, next_ids[:, None])[:, 0]
log_probs = torch.nested.nested_tensor_from_jagged(chosen, batch["input_ids"].offsets())
tensors = {"loss_mask": batch["loss_mask"], "dp_size": 1, "batch_num_tokens": int(batch["loss_mask"].values().sum())}
loss, _ = sft_loss(None, {"log_probs": log_probs}, tensors)
finish(loss, lambda ids: network(ids, use_cache=False).logits, [0, 1])
"""
TORCHTITAN = """
class Kernels(types.ModuleType):  # of a GPU, for experts
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


for name in ("minimal_async_ep", "minimal_async_ep.kernels"):
    sys.modules[f"torchtitan.distributed.{name}"] = Kernels(f"torchtitan.distributed.{name}")
from packtrain.training import PackedDataset
from torch.utils.data import DataLoader
from torchtitan.components.loss import cross_entropy_loss
from torchtitan.models.common.attention import create_varlen_metadata_for_document, get_document_mask_mod
from torchtitan.trainer import Trainer

loader = DataLoader(PackedDataset(data, "torchtitan"), batch_size=2)
metrics = types.SimpleNamespace(ntokens_since_last_log=0, data_loading_times=[])
inputs, labels = next(Trainer.batch_generator(types.SimpleNamespace(metrics_processor=metrics), loader))
places = torch.arange(labels.shape[1])
see = get_document_mask_mod(inputs["positions"])
mask = torch.stack([
    see(torch.tensor(row), torch.tensor(0), places[:, None], places[None]) & (places[:, None] >= places[None])
    for row in range(2)
])[:, None]
bounds = create_varlen_metadata_for_document(inputs["positions"]).cu_seq_q.tolist()
network = model()
logits = network(inputs["input"], attention_mask=mask, position_ids=inputs["positions"], use_cache=False).logits
loss = cross_entropy_loss(logits, labels) / (labels != -100).sum()
finish(loss, lambda ids: network(ids, use_cache=False).logits, [0, 1], bounds=bounds)
"""
AUTOMODEL = """
from nemo_automodel.components.datasets.utils import neat_packed_collater, packed_sequence_thd_collater
from nemo_automodel.components.loss.masked_ce import MaskedCrossEntropy
from packtrain.training import PackedDataset

dataset = PackedDataset(data, "nemo-automodel")
thd = packed_sequence_thd_collater([dataset[0], dataset[1]])
assert thd["seq_lens_padded"][0][thd["seq_lens_padded"][0] > 0].sum() == thd["input_ids"].shape[1]
batch = neat_packed_collater([dataset[0], dataset[1]], "sdpa")
network = model()
names = ("input_ids", "attention_mask", "position_ids")
logits = network(**{name: batch[name] for name in names}, use_cache=False).logits
loss = MaskedCrossEntropy()(logits, batch["labels"], num_label_tokens=int((batch["labels"] != -100).sum()))
finish(loss, lambda ids: network(ids, use_cache=False).logits, [0, 1])
"""
LLAMA_FACTORY = """
sound = types.ModuleType("torchaudio")  # for audio
sound.__spec__ = importlib.machinery.ModuleSpec("torchaudio", None)
sys.modules["torchaudio"] = sound
from llamafactory.train.tuner import run_exp
from packtrain.training import PackedGuard
from transformers import TrainerCallback


class Losses(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        losses.append(logs.get("loss"))


losses = []
extra = json.loads(sys.argv[4])
try:
    run_exp({
        "model_name_or_path": model_folder, "stage": "sft", "do_train": True, "finetuning_type": "full", "bf16": False,
        "template": "default", "cutoff_len": 128, "output_dir": out, "max_steps": 1, "logging_steps": 1,
        "report_to": "none", "save_strategy": "no", "dataset": "none", "use_cpu": True, "learning_rate": 1e-9,
        "disable_shuffling": True, **extra,
    }, callbacks=[PackedGuard(data), Losses()])
except RuntimeError as error:
    print(json.dumps({"error": str(error)}))
else:
    network = model()
    finish(float(losses[0]), lambda ids: network(ids, use_cache=False).logits, [0, 1])
"""
SWIFT = """
sound = types.ModuleType("torchaudio")  # for audio
sound.__spec__ = importlib.machinery.ModuleSpec("torchaudio", None)
sys.modules["torchaudio"] = sound
import datasets, transformers
from packtrain.training import PackedGuard
from swift import sft_main
from swift.arguments import SftArguments
from swift.model.register import get_processor
from swift.template.register import get_template

exported = datasets.load_from_disk(sys.argv[4])
template = get_template(
    get_processor(model_folder, model_type="qwen3"), template_type="qwen3", max_length=128, padding_free=True
)
template.set_mode("train")
batch = template.data_collator([dict(exported[0]), dict(exported[1])])  # the rest needs a FlashAttention
network = model()
names = ("input_ids", "position_ids", "labels")
loss = network(**{name: batch[name] for name in names}, use_cache=False).loss
packed = {"loss": float(loss), "alone": alone(lambda ids: network(ids, use_cache=False).logits, [0, 1])}

begin = transformers.Trainer.__init__


@functools.wraps(begin)
def guarded(self, *args, **kwargs):
    begin(self, *args, **kwargs)
    self.add_callback(PackedGuard(data))


transformers.Trainer.__init__ = guarded
settings = {
    "model": model_folder, "model_type": "qwen3", "template": "qwen3", "tuner_type": "full", "max_length": 128,
    "per_device_train_batch_size": 2, "max_steps": 1, "report_to": ["none"], "save_strategy": "no", "output_dir": out,
    "use_cpu": True, "torch_dtype": "float32", "attn_impl": "sdpa", "dataset_num_proc": 1, "dataloader_num_workers": 0,
    "split_dataset_ratio": 0.0, "cached_dataset": [sys.argv[4]], "truncation_strategy": "split",
    "use_chat_template": False, "lazy_tokenize": False,
}
try:
    sft_main(SftArguments(**settings))
except RuntimeError as error:
    packed["error"] = str(error)
print(json.dumps(packed))
"""

AXOLOTL = """
tracking = types.ModuleType("posthog")
tracking.Posthog = lambda *arguments, **options: None
sys.modules["posthog"] = tracking
import transformers, yaml
from packtrain.training import PackedGuard
from transformers import TrainerCallback


class Losses(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        losses.append(logs.get("loss"))


losses = []
begin = transformers.Trainer.__init__


@functools.wraps(begin)
def guarded(self, *args, **kwargs):
    begin(self, *args, **kwargs)
    self.add_callback(PackedGuard(data))
    self.add_callback(Losses())


transformers.Trainer.__init__ = guarded
from axolotl.cli.train import do_cli

settings = {
    "base_model": model_folder, "datasets": [{"path": data}], "sequence_len": 128, "max_steps": 1, "optimizer": "sgd",
    "learning_rate": 1e-9, "gradient_accumulation_steps": 1, "output_dir": out, "dataset_prepared_path": out + "-prep",
    "logging_steps": 1, "bf16": False, "fp16": False, "tf32": False, "save_strategy": "no", "val_set_size": 0,
    "curriculum_sampling": True, "attn_implementation": "sdpa", **json.loads(sys.argv[4]),
}
with open(out + ".yaml", "w") as file:
    yaml.safe_dump(settings, file)
try:
    do_cli(config=out + ".yaml")
except RuntimeError as error:
    print(json.dumps({"error": str(error)}))
else:
    network = model()
    finish(float(losses[0]), lambda ids: network(ids, use_cache=False).logits, [0])
"""
BRIDGE = """
import importlib.util, typing, typing_extensions
from pathlib import Path

typing.override = typing_extensions.override  # of Python 3.12


class Anything:
    def __init__(self, *arguments, **options):
        pass


class StandIn(types.ModuleType):  # for what needs CUDA; the reader and its collator do not call it
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (Anything,), {})


sys.modules["megatron.bridge.training.tokenizers.tokenizer"] = StandIn("tokenizer")
places = importlib.util.find_spec("megatron").submodule_search_locations
folder = next(Path(place) / "bridge" for place in places if (Path(place) / "bridge").is_dir())
for name in ("", ".data", ".data.packing", ".data.datasets", ".training", ".training.tokenizers", ".utils"):
    package = types.ModuleType(f"megatron.bridge{name}")  # without its __init__.py, which imports all of it
    package.__path__ = [str(folder.joinpath(*name.split(".")[1:]))]
    sys.modules[package.__name__] = package
while True:
    try:
        from megatron.bridge.data.packing.parquet import GPTSFTPackedParquetDataset
        break
    except ModuleNotFoundError as error:
        assert error.name.split(".")[0] in ("triton", "transformer_engine", "apex"), error
        sys.modules[error.name] = StandIn(error.name)

eos_id = int(sys.argv[5])
tokenizer = types.SimpleNamespace(eos_id=eos_id, bos_id=None, pad_id=0, vocab_size=rows.highest_id + 1)
dataset = GPTSFTPackedParquetDataset(
    file_path=sys.argv[4], tokenizer=tokenizer, max_seq_length=rows.row_length, pad_seq_length_to_mult=16,
    answer_only_loss=True, max_num_samples=None, prompt_template="{input} {output}", label_key="output",
    truncation_field="input",
)
batch = dataset.collate_fn([dataset[number] for number in range(len(dataset))])
found, untrained = [], 0
for tokens, labels, mask, bounds in zip(batch["tokens"], batch["labels"], batch["loss_mask"], batch["cu_seqlens_q"]):
    bounds = bounds.tolist()
    for begin, end in zip(bounds, bounds[1:]):
        if end > begin:
            found.append((tokens[begin:end].tolist(), labels[begin:end].tolist(), mask[begin:end].tolist()))
expected = []
for ids, labels in documents(range(len(rows))):
    if len(ids) < 2:
        continue
    wanted = (labels[1:] != -100).int()
    taken = wanted * (ids[:-1] == eos_id)
    untrained += int(taken.sum())
    expected.append((ids[:-1].tolist(), ids[1:].tolist(), (wanted - taken).tolist()))
found = [document for document in found if any(document[2]) or document in expected]
print(json.dumps({"documents": len(expected), "equal": found == expected, "untrained": untrained}))
"""


UNSLOTH = """
import unsloth  # first, since it changes the others
import datasets
from packtrain.training import PackedGuard, collate
from transformers import TrainerCallback
from trl import SFTConfig, SFTTrainer
from unsloth import FastLanguageModel


class Losses(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        losses.append(logs.get("loss"))


losses = []
settings = json.loads(sys.argv[4])
network, tokenizer = FastLanguageModel.from_pretrained(
    model_folder, max_seq_length=128, dtype=torch.float32, load_in_4bit=False, full_finetuning=True
)
arguments = SFTConfig(
    out, max_length=None, max_steps=1, per_device_train_batch_size=2, report_to=[], save_strategy="no", logging_steps=1,
    learning_rate=1e-9, train_sampling_strategy="sequential", bf16=False, **settings
)
trainer = SFTTrainer(
    network, args=arguments, train_dataset=datasets.load_from_disk(data)["train"], processing_class=tokenizer,
    data_collator=None if arguments.padding_free or "padding_free" in settings else collate,
    callbacks=[PackedGuard(data), Losses()],
)
outcome = {"padding_free": arguments.padding_free}
try:
    trainer.train()
except RuntimeError as error:
    outcome["error"] = str(error)
else:
    outcome |= {"loss": losses[0], "alone": model_alone([0, 1])}
print(json.dumps(outcome))
"""
LIGHTNING = """
import lightning, warnings
from packtrain.training import PackedLoader, guard, use_packed

warnings.simplefilter("ignore")


class Module(lightning.LightningModule):
    def __init__(self, mask):
        super().__init__()
        self.model = model().train()
        self.mask = mask
        use_packed(self.model) if not mask else None

    def training_step(self, batch, number):
        mask = {"attention_mask": torch.ones_like(batch["input_ids"])} if self.mask else {}
        loss = self.model(**batch, **mask).loss
        losses.append(float(loss.detach()))
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-9)

    def train_dataloader(self):
        return PackedLoader(data, rows_per_step=2, order="sequential", tail="pad")


def fit(steps, resumed=None, mask=False):
    losses.clear()
    module = Module(mask)
    guard(module, data)
    trainer = lightning.Trainer(
        accelerator="cpu", max_steps=steps, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        use_distributed_sampler=False, default_root_dir=out,
    )
    trainer.fit(module, ckpt_path=resumed)
    trainer.save_checkpoint(out + f"/{steps}.ckpt")
    return list(losses)


losses = []
outcome = {"alone": model_alone([0, 1]), "later": model_alone([2, 3])}
outcome["loss"], *_ = fit(1)
outcome["resumed"] = fit(2, resumed=out + "/1.ckpt")
try:
    fit(1, mask=True)
except RuntimeError as error:
    outcome["error"] = str(error)
print(json.dumps(outcome))
"""


class Recipe(NamedTuple):
    """How much of a trainer runs."""

    packages: tuple[str, ...]
    script: str


RECIPES = {
    "axolotl": Recipe(
        ("axolotl==0.19.0", "axolotl-contribs-lgpl==0.0.7", "axolotl-contribs-mit==0.0.6", "transformers==5.16.1",
         "trl==1.9.0", "peft==0.20.0", "datasets==4.8.4", "accelerate==1.13.0", "tokenizers==0.23.1",
         "huggingface_hub==1.17.0", "httpx<1", "httpcore<2", "addict", "antlr4-python3-runtime==4.13.2", "art",
         "backoff", "bitsandbytes==0.50.2", "colorama", "einops", "evaluate", "fastcore", "fire", "immutabledict",
         "langdetect", "liger-kernel==0.8.1", "llvmlite", "numba", "optimum==1.16.2", "platformdirs", "python-dotenv",
         "schedulefree==1.4.1", "scipy<1.18", "termcolor", "trackio==0.19.0", "triton==3.6.0", "wandb"),
        AXOLOTL,
    ),
    "megatron-bridge": Recipe(
        ("--ignore-requires-python", "megatron-bridge==0.6.2", "megatron-core==0.19.2"), BRIDGE
    ),
    "torchtune": Recipe(
        ("torchtune==0.6.1", "torchao==0.10.0", "omegaconf", "antlr4-python3-runtime==4.9.3", "blobfile", "lxml",
         "pycryptodomex", "sentencepiece", "tiktoken", "kagglehub"),
        TORCHTUNE,
    ),
    "verl": Recipe(
        ("verl==0.9.1", "tensordict", "pyvers", "cloudpickle", "orjson", "omegaconf", "antlr4-python3-runtime==4.9.3",
         "hydra-core", "codetiming"),
        VERL,
    ),
    "torchtitan": Recipe(
        ("torchtitan==0.3.0", "spmd_types", "tyro", "docstring_parser", "typeguard", "shtab", "einops",
         "torch_checkpointing", "tomli_w"),
        TORCHTITAN,
    ),
    "nemo-automodel": Recipe(("nemo-automodel==0.7.0",), AUTOMODEL),
    "llama-factory": Recipe(
        ("llamafactory==0.9.5", "transformers==5.6.0", "trl==0.24.0", "peft==0.18.1", "accelerate==1.11.0",
         "datasets==4.0.0", "tokenizers==0.22.2", "huggingface_hub<2", "httpx<1", "httpcore<2", "fsspec<=2025.3.0",
         "omegaconf", "antlr4-python3-runtime==4.9.3", "fire", "termcolor", "einops", "sentencepiece", "tiktoken",
         "tyro<0.9.0", "typeguard", "docstring_parser", "shtab", "av", "hf_transfer", "modelscope", "scipy",
         "matplotlib", "pyparsing", "cycler", "kiwisolver", "fonttools", "contourpy", "sse-starlette"),
        LLAMA_FACTORY,
    ),
    "ms-swift": Recipe(
        ("ms-swift==4.6.0", "transformers==5.19.0", "trl==0.29.1", "peft==0.20.0", "datasets==4.8.4", "httpx<1",
         "httpcore<2", "huggingface_hub<2", "addict", "attrdict", "dacite", "einops", "json_repair", "modelscope",
         "modelscope-hub", "oss2", "sentencepiece", "simplejson", "sortedcontainers", "tiktoken", "zstandard",
         "transformers-stream-generator", "rouge", "nltk", "jieba", "scipy", "binpacking", "matplotlib", "pyparsing",
         "cycler", "kiwisolver", "fonttools", "contourpy", "cryptography", "cffi", "pycparser", "aiohttp", "aiosignal",
         "aiohappyeyeballs", "frozenlist", "multidict", "propcache", "yarl"),
        SWIFT,
    ),
    "unsloth": Recipe(
        ("unsloth==2026.10.9", "unsloth_zoo==2026.10.9", "transformers==5.17.0", "trl==1.15.0", "peft==0.20.0",
         "datasets==4.8.4", "accelerate==1.13.0", "tokenizers==0.23.1", "huggingface_hub==1.17.0", "httpx<1",
         "httpcore<2", "einops", "tyro", "docstring_parser", "typeguard", "shtab", "hf_transfer", "sentencepiece",
         "protobuf", "cut_cross_entropy", "torchao", "bitsandbytes==0.50.2"),
        UNSLOTH,
    ),
    "lightning": Recipe(
        ("lightning==2.6.6", "pytorch-lightning==2.6.6", "lightning-utilities", "torchmetrics"), LIGHTNING
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """`installed(name)`: the folder with a trainer's packages. Each is downloaded once."""
    folders: dict[str, Path] = {}

    def install(name: str) -> Path:
        if name not in folders:
            folder = tmp_path_factory.mktemp(name)
            install_packages(folder, RECIPES[name].packages)
            folders[name] = folder
        return folders[name]

    return install


def run(name: str, packages: Path, *arguments: object) -> dict[str, Any]:
    """What a trainer's script prints as JSON."""
    script = BEGIN + RECIPES[name].script
    printed = run_with_packages(packages, script, *arguments, HF_HUB_OFFLINE="1", USE_HF="1")
    outcome = next(line for line in reversed(printed.splitlines()) if line.startswith("{"))
    return {**json.loads(outcome), "said": printed}


@pytest.mark.parametrize("name", ["torchtune", "verl", "torchtitan", "nemo-automodel"])
def test_its_loss_is_that_of_documents_alone(
    name: str, installed: Any, documented: Documented, two_sources: Path, tiny_model: Path, tmp_path: Path
) -> None:
    outcome = run(name, installed(name), two_sources, tiny_model, tmp_path / "out")
    assert outcome["loss"] == pytest.approx(outcome["alone"], rel=1e-5)
    documented(name.replace("-", " "), outcome["loss"], outcome["alone"])


def test_llama_factory(
    installed: Any, documented: Documented, two_sources: Path, tiny_model: Path, tmp_path: Path
) -> None:
    """Its whole training, with the export and with neat_packing, and without, which the guard stops."""
    packages = installed("llama-factory")
    write_export(two_sources, tmp_path / "export", "llama-factory")
    settings = {"tokenized_path": str(tmp_path / "export"), "per_device_train_batch_size": 2}
    neat = json.dumps({**settings, "packing": True, "neat_packing": True})
    outcome = run("llama-factory", packages, two_sources, tiny_model, tmp_path / "neat", neat)
    assert "packed documents are kept apart" in outcome["said"]
    documented("LLaMA-Factory", outcome["loss"], outcome["alone"])
    outcome = run("llama-factory", packages, two_sources, tiny_model, tmp_path / "plain", json.dumps(settings))
    assert "other documents see" in outcome["error"]
    assert "neat_packing: true" in outcome["error"]


def test_ms_swift(installed: Any, documented: Documented, two_sources: Path, tiny_model: Path, tmp_path: Path) -> None:
    """Its collator with padding_free, and its whole training without, which the guard stops."""
    packages = installed("ms-swift")
    write_export(two_sources, tmp_path / "export", "ms-swift")
    outcome = run("ms-swift", packages, two_sources, tiny_model, tmp_path / "out", tmp_path / "export" / "train")
    documented("ms-swift", outcome["loss"], outcome["alone"])
    assert "other documents see" in outcome["error"]
    assert "padding_free: true" in outcome["error"]


def test_axolotl(installed: Any, documented: Documented, two_sources: Path, tiny_model: Path, tmp_path: Path) -> None:
    """Its whole training on the folder as it is, with four settings."""
    packages = installed("axolotl")
    settings = json.dumps({"skip_prepare_dataset": True, "sample_packing": False, "micro_batch_size": 1})
    outcome = run("axolotl", packages, two_sources, tiny_model, tmp_path / "out", settings)
    assert "packed documents are kept apart" in outcome["said"]
    documented("Axolotl", outcome["loss"], outcome["alone"])


def test_megatron_bridge(installed: Any, two_sources: Path, tiny_model: Path, tmp_path: Path) -> None:
    """Its released reader and collator, apart from the package, which does not install without CUDA."""
    packages = installed("megatron-bridge")
    write_export(two_sources, tmp_path / "export", "megatron-bridge")
    eos_id = AutoTokenizer.from_pretrained(tiny_model).eos_token_id
    folder = tmp_path / "export" / "train"
    outcome = run("megatron-bridge", packages, two_sources, tiny_model, tmp_path / "out", folder, eos_id)
    assert outcome["equal"]
    assert outcome["documents"] > 100
    assert outcome["untrained"] > 0  # its collator masks labels behind the token, as the export says


def test_unsloth(installed: Any, documented: Documented, two_sources: Path, tiny_model: Path, tmp_path: Path) -> None:
    """Its whole training on a CPU: with TRL's settings, of which it drops one unsaid, and with `collate`."""
    packages = installed("unsloth")
    arguments = (two_sources, tiny_model, tmp_path / "out")
    outcome = run("unsloth", packages, *arguments, json.dumps({"padding_free": True}))
    assert outcome["padding_free"] is False
    assert "other documents see" in outcome["error"]
    assert "Unsloth drops padding_free" in outcome["error"]
    settings = {"remove_unused_columns": False, "dataset_kwargs": {"skip_prepare_dataset": True}}
    outcome = run("unsloth", packages, *arguments, json.dumps(settings))
    assert "packed documents are kept apart" in outcome["said"]
    documented("Unsloth", outcome["loss"], outcome["alone"])


def test_lightning(installed: Any, documented: Documented, two_sources: Path, tiny_model: Path, tmp_path: Path) -> None:
    """Two steps in two trainings, of which the second continues with the loader's state; and a mask of ones."""
    outcome = run("lightning", installed("lightning"), two_sources, tiny_model, tmp_path / "out")
    assert "packed documents are kept apart" in outcome["said"]
    assert outcome["resumed"] == pytest.approx([outcome["later"]], abs=1e-4)
    assert "other documents see" in outcome["error"]
    documented("Lightning", outcome["loss"], outcome["alone"])
