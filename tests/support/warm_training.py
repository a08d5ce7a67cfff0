"""What trains, imported, for the server `warm.TRAINING`."""

import importlib
import importlib.util

for name in (
    "torch.distributed.run",
    "transformers",
    "accelerate.commands.launch",
    "packtrain.training",
    "packtrain.training.attention",
    "packtrain.training.launch.doctor",
    "packtrain.training.launch.ranks",
    "packtrain.training.probe",
    "packtrain.training.trainer.train",
    "packtrain.training.trainer.trainer",
    "transformers.models.llama.modeling_llama",
    "transformers.models.auto.modeling_auto",
    "transformers.trainer",
    "torch.distributed.fsdp",
    "trl",
    "peft",
):
    if importlib.util.find_spec(name.partition(".")[0]) is not None:
        importlib.import_module(name)
