"""What a dataset was made from and with, and the configuration that reproduces it."""

from pathlib import Path
from typing import Any

import msgspec
import yaml

from ....schemas.config.config import RunConfig
from ....schemas.config.source import PYTHON
from ....schemas.errors import PacktrainError
from ....schemas.ledger import SourceLedger
from ....schemas.manifest import Manifest
from ....schemas.report import Input, Stage, Trust
from ....schemas.units import plural
from ...dataset.run_notes import recall, without_secrets
from ...dataset.timings import NAME as TIMINGS
from ...dataset.timings import Timings
from ...store.open import Store, is_url

_INPUTS = 20


def trust_of(out: Store, manifest: Manifest) -> Trust:
    """The trust section of a finished dataset."""
    plan = manifest.plan
    inputs = plan["inputs"]
    bytes_in_all = sum(one["bytes"] for one in inputs)
    origin = recall(out)
    configuration = configuration_of(origin.config, origin.base) if origin is not None else _identity(plan["config"])
    return Trust(
        sentence=(
            f"Made from {plural(len(inputs), 'file')} by packtrain {plan['versions']['packtrain']}. A run of "
            "the same configuration (which this page and its JSON contain) over the same files gives the same bytes, "
            "with manifest "
            f"{manifest.hash[:16]}."
        ),
        manifest=manifest.hash,
        plan=manifest.plan_hash,
        tokenizer=plan["tokenizer"]["hash"],
        template=plan["tokenizer"]["template"],
        engine=f"{plan['encode']['engine']} {plan['encode']['engine_version']}",
        versions=dict(plan["versions"]),
        stages=stages_of(read_timings(out), manifest.ledger.total(), bytes_in_all),
        inputs=[Input(one["source"], one["file"], one["bytes"], one["hash"]) for one in inputs[:_INPUTS]],
        inputs_in_all=len(inputs),
        bytes_in_all=bytes_in_all,
        configuration=configuration,
    )


def read_timings(out: Store) -> Timings:
    """How long each stage took; empty if that is no longer known."""
    try:
        return Timings.from_json(out.read(TIMINGS) or b"{}")
    except (msgspec.MsgspecError, PacktrainError):
        return Timings()


def stages_of(timings: Timings, total: SourceLedger, bytes_in_all: int) -> list[Stage]:
    """Each stage with its time and the amount of data it worked on, if known.

    Work that an earlier run had already done does not count.
    """
    encoded, packed = (timings.tokens.get(name) or None for name in ("encode", "pack"))
    amounts: dict[str, tuple[int | None, str]] = {
        "scan": (bytes_in_all, "bytes"),
        "encode": (encoded, "tokens"),
        "encode, summed over workers": (encoded, "tokens"),
        "read lengths": (total.examples_made, "examples"),
        "plan and pack": (packed, "tokens"),
        "plan": (sum(total.examples_packed.values()), "examples"),
        "pack, summed over workers": (packed, "tokens"),
    }
    return [Stage(name, taken, *amounts.get(name, (None, ""))) for name, taken in timings.seconds.items()]


def configuration_of(config: RunConfig, base: Path) -> str:
    """YAML that reproduces the dataset from any folder of this machine: full paths, no secrets, no defaults."""
    data = config.model_dump(mode="json", exclude={"run"}, exclude_defaults=True)
    for key in ("out", "cache"):
        if data.get(key) is not None:
            data[key] = _full(data[key], base)
    tokenizer = data["tokenizer"]
    tokenizer["path"] = _full(tokenizer["path"], base)
    template = tokenizer.get("chat_template")
    if template is not None and "{" not in template and (base / template).is_file():
        tokenizer["chat_template"] = _full(template, base)
    for source in data["sources"]:
        paths = [_full(path, base) for path in source["path"]]
        source["path"] = paths[0] if len(paths) == 1 else paths
    if config.decontaminate is not None:
        data["decontaminate"]["against"] = [_full(path, base) for path in config.decontaminate.against]
    own = any(source.format.startswith(PYTHON) for source in config.sources)
    head = f"# Save this file in {base}, so that your own reader functions are found.\n" if own else ""
    return head + _yaml(data)


def _full(path: str, base: Path) -> str:
    if is_url(path):
        return without_secrets(path)
    if path.startswith("hf://./"):
        return f"hf://{base / path.removeprefix('hf://./')}"
    return path if path.startswith("hf://") else str(base / path)


def _identity(config: dict[str, Any]) -> str:
    """YAML with `?` for the paths, which are unknown without the run's notes."""
    data = {"out": "?", **config, "tokenizer": {"path": "?", **config["tokenizer"]}}
    data["sources"] = [{"path": "?", **source} for source in config["sources"]]
    return "# The paths are no longer known; replace every ?.\n" + _yaml(data)


def _yaml(data: dict[str, Any]) -> str:
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=110)
