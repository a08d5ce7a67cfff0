"""The help texts: commands in groups, in the order of use, with examples below each."""

import inspect
import re
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup

COMMANDS: dict[str, dict[str, tuple[str, ...]]] = {
    "Make a dataset": {
        "plan": ("packtrain plan mix.yaml",),
        "run": (
            "packtrain run --demo",
            "packtrain run mix.yaml --out packed-2k --max-length 2048",
            "packtrain run --input chats.jsonl --tokenizer tokenizer --out packed-chats --mask assistant",
        ),
        "wait": ("packtrain wait packed --timeout 7200",),
        "prep": ("packtrain prep mix.yaml --source pairs -o pairs-prepared.jsonl",),
    },
    "Look at it": {
        "report": ("packtrain report packed",),
        "diff": ("packtrain diff packed packed-2k",),
        "inspect": ("packtrain inspect packed --row 3", "packtrain inspect packed --id chats/chats:17"),
        "contamination": ("packtrain contamination mix.yaml --against test.jsonl --out hits.jsonl",),
        "loader": ("packtrain loader packed --rows-per-step 16 --rank 3/8 --steps 1",),
    },
    "Look after it": {
        "verify": ("packtrain verify packed --deep", "packtrain verify packed --repair mix.yaml"),
        "clean": ("packtrain clean .packtrain-cache --older-than 30 --yes",),
    },
    "Give it away": {
        "export": (
            "packtrain export packed --to megatron-bridge --out packed-bridge",
            "packtrain export packed --to hf://me/packed --private",
            "packtrain export trained/checkpoint-2 --to model --out gathered",
        ),
    },
    "Train on it": {
        "train": (
            "packtrain train --demo",
            "packtrain train train.yaml --set trainer.max_steps=4",
            "packtrain train --recipe fsdp2 > fsdp2.yaml",
            "torchrun --nproc-per-node 8 -m packtrain.pipeline.cli train train.yaml",
        ),
        "explain-loss": ("packtrain explain-loss train.yaml --step 2",),
        "probe": ("packtrain probe path/to/model",),
        "doctor": ("packtrain doctor",),
    },
    "Sample and judge": {
        "sample": ("packtrain sample trained/model --data prompts.jsonl -n 4 --max-new-tokens 64 --out samples.jsonl",),
        "eval-apps": (
            "packtrain eval-apps samples.jsonl --data test.jsonl --out results",
            "packtrain eval-apps --references --data train.jsonl --out calibrated",
        ),
    },
    "For editors": {"schema": ("packtrain schema > packtrain.schema.json",)},
}
"""Heading → commands, in the order of use → the command lines below their help. A test runs these as they are."""
WIDTH = 120
"""Maximum number of columns of a help text, however wide the terminal."""
_ARGUMENT = re.compile(r"    (\w+)(?: \((.+?)\))?: (.+)", re.DOTALL)
"""`name: help` or `name (PLACEHOLDER): help`, in a docstring."""


class Commands(TyperGroup):
    """A click group that lists its commands under headings. What a command's docstring says of its arguments is the
    help of its options.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments as click does. Only for `--help` and `COMMAND --help`, the help is printed right here:
        reading any values, typer would import pydantic, which takes 0.1 s.
        """
        help_context = None
        if args == ["--help"]:
            help_context = ctx
        elif args[1:] == ["--help"] and (command := self.get_command(ctx, args[0])) is not None:
            # The context that the command would run in.
            help_context = command.context_class(command, info_name=args[0], parent=ctx)
        if help_context is not None:
            typer.echo(help_context.get_help())
            ctx.exit()
        return list(super().parse_args(ctx, args))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command, with its help and examples."""
        command = self.commands.get(cmd_name)
        # Filled in when a command is first asked for: most calls ask for one of nineteen.
        if command is not None and command.epilog is None:
            _explain(command)
            lines = next((group[cmd_name] for group in COMMANDS.values() if cmd_name in group), ())
            title = "Examples:" if len(lines) > 1 else "Example:"
            # \b keeps click from wrapping the paragraph.
            command.epilog = "\n".join(["\b", title, *(f"  {line}" for line in lines)])
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """One section per group."""
        for title, names in COMMANDS.items():
            with formatter.section(title):
                # The whole first sentence, on two lines if needed.
                formatter.write_dl([(name, self.commands[name].get_short_help_str(200)) for name in names])


def _explain(command: Any) -> None:
    """Take the help and the placeholders of options from the command's docstring, and remove the `--no-` forms of
    flags.
    """
    # typer wraps the functions, and the docstrings are those of the functions.
    callback: Callable[..., Any] = getattr(command.callback, "__wrapped__", command.callback)
    command.help, _, listed = (inspect.getdoc(callback) or "").partition("\n\nArgs:\n")
    # Each argument is `name (PLACEHOLDER): sentence`, over one or several lines.
    matches = (_ARGUMENT.fullmatch(entry) for entry in re.split(r"\n(?=    \w)", listed))
    entries = {match[1]: match for match in matches if match is not None}
    for parameter in command.params:
        entry = entries.get(parameter.name)
        if entry is not None:
            text = " ".join(entry[3].split())
            # A help is a sentence, so a plain first word gets a capital. A name such as `hf://` or `olmo-core` does
            # not.
            if re.match("[a-z]+ ", text):
                text = text[0].upper() + text[1:]
            parameter.help = text
            parameter.metavar = entry[2] or parameter.metavar
        # Without typer's `--no-` twins: every flag is off by default.
        if getattr(parameter, "is_flag", False):
            parameter.secondary_opts = []
