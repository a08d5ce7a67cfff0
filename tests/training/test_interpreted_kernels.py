"""Kernels of GPUs on a CPU, by Triton's interpreter: flash-attn's own, through transformers, and Liger's loss.

They are written for GPUs, and some lines around them ask for one: `PRETEND` answers. What computes is theirs.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.installed import install_packages, run_with_packages

pytestmark = [pytest.mark.slow, pytest.mark.installs, pytest.mark.xdist_group("interpreted kernels")]
INTERPRET = {"TRITON_INTERPRET": "1", "FLASH_ATTENTION_TRITON_AMD_ENABLE": "TRUE"}
BUILD = {  # of flash-attn: its Triton kernels alone, without a compiler of CUDA
    "BUILD_TARGET": "rocm",
    "FLASH_ATTENTION_FORCE_BUILD": "TRUE",
    "FLASH_ATTENTION_SKIP_CUDA_BUILD": "TRUE",
    "FLASH_ATTENTION_TRITON_AMD_ENABLE": "TRUE",
}
# The interpreter of this Triton needs a NumPy that turns arrays of one element into numbers.
PACKAGES = ("triton==3.6.0", "numpy==2.3.5", "einops==0.8.2", "liger-kernel==0.8.5")
BEGIN = """
import json, sys
sys.path.insert(0, ".")
import torch
from packtrain.training.attention.packed_attention import use_packed
from packtrain.training.targets import find_targets
from packtrain.training.trainer.heads import fuse_loss
from packtrain.training.trainer.loss import Forward
from tests.training.probe.architectures import batch, build

def relative_error(actual, expected):
    return float((actual.float() - expected.float()).norm() / expected.float().norm())

def gradients(model):
    return {name: weight.grad.clone() for name, weight in model.named_parameters()}

"""
LIGER = """
packed = batch(17, 9, 30)
wanted = find_targets(packed)
found = {}
for kernel in ("none", "liger"):
    model = build("llama").train()
    use_packed(model)
    forward = Forward(model, fused=fuse_loss(model, kernel, cuda=True))
    loss = forward.loss(model, packed, wanted, torch.tensor(wanted.units), share=1.0)
    loss.backward()
    found[kernel] = (float(loss), gradients(model))
worst = max(relative_error(found["liger"][1][name], gradient) for name, gradient in found["none"][1].items())
print(json.dumps({"plain": found["none"][0], "liger": found["liger"][0], "worst": worst}))
"""
PRETEND = """
import contextlib
import transformers.modeling_flash_attention_utils as flash_utils
import transformers.modeling_utils, transformers.utils, transformers.utils.import_utils

register = torch.library.custom_op  # flash-attn registers its operators for CUDA alone
torch.library.custom_op = lambda name, function=None, /, *, device_types=None, **options: register(
    name, function, **options
)
torch.cuda.device = lambda *arguments, **options: contextlib.nullcontext()
yes = lambda *arguments, **options: True
for module in (transformers.utils.import_utils, transformers.utils, flash_utils, transformers.modeling_utils):
    for name in ("is_flash_attn_2_available", "is_torch_cuda_available"):
        if hasattr(module, name):
            setattr(module, name, yes)
for entry in flash_utils.FLASH_ATTENTION_COMPATIBILITY_MATRIX.values():
    if entry["flash_attn_version"] == 2:
        entry["general_availability_check"] = yes
    entry["supported_devices"] = ((yes, "cuda"),)
"""
FLASH = """
from packtrain.training.attention.isolation_probe import probe

packed = batch(17, 40, 9)
model = build("llama", dtype=torch.float16).train()
use_packed(model, "flash_attention_2")
kernel = flash_utils._flash_varlen_fn.__module__
outputs = model(**packed)
outputs.loss.backward()
half = gradients(model)
model.zero_grad()
exact = build("llama").train()
exact.load_state_dict({name: weight.float() for name, weight in model.state_dict().items()})
use_packed(exact, "packed_varlen")
expected = exact(**packed)
expected.loss.backward()
report = probe(model, batch=packed)
print(json.dumps({
    "kernel": kernel,
    "logits": relative_error(outputs.logits, expected.logits),
    "gradients": max(
        relative_error(half[name], gradient) for name, gradient in gradients(exact).items() if gradient.norm() > 1e-3
    ),
    "isolated": report.isolated,
    "checks": {check.name: check.value for check in report.checks},
}))
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the kernels."""
    folder = tmp_path_factory.mktemp("kernels")
    install_packages(folder, PACKAGES)
    return folder


def result(printed: str) -> dict[str, Any]:
    outcome: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return outcome


def test_liger_s_loss_and_gradients_are_the_plain_ones(packages: Path) -> None:
    outcome = result(run_with_packages(packages, BEGIN + LIGER, **INTERPRET))
    assert outcome["liger"] == pytest.approx(outcome["plain"], rel=1e-6)
    assert outcome["worst"] < 1e-5


def test_flash_attn_s_kernels_keep_documents_apart(packages: Path) -> None:
    """In fp16, against the loop over documents in float32; and by the probe."""
    install_packages(packages, ("--no-build-isolation", "flash-attn==2.8.3"), **BUILD)
    outcome = result(run_with_packages(packages, BEGIN + PRETEND + FLASH, **INTERPRET))
    assert outcome["kernel"].startswith("flash_attn.")
    assert outcome["logits"] < 5e-3
    assert outcome["gradients"] < 2e-2
    assert outcome["isolated"]
    assert outcome["checks"]["isolation"] == "0"
