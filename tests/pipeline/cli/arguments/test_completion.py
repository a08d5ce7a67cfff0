"""Shell completion: its answers, its speed, and that real shells accept it."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args, get_origin

import yaml
from packtrain.pipeline.cli.arguments import config_keys
from packtrain.schemas.config.config import RunConfig
from packtrain.schemas.config.section import parse_size
from packtrain.schemas.config.source import FORMAT_KEYS
from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

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
    from packtrain.training.order import Order
    from packtrain.training.steps import Tail

    assert set(config_keys.TRAIN["loader.order"]) == {str(one) for one in Order}
    assert set(config_keys.TRAIN["loader.tail"]) == {str(one) for one in Tail}
