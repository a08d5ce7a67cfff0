"""How the command line presents itself: commands in the order in which a person meets them, examples below each."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_type_hints

from typer.core import TyperGroup

from .cli_examples import epilog

GROUPS: dict[str, tuple[str, ...]] = {
    "Make a dataset": ("plan", "run", "wait", "prep"),
    "Look at it": ("report", "diff", "inspect", "loader"),
    "Look after it": ("verify", "repair", "clean"),
    "Train on it": ("train", "probe", "doctor", "launch"),
}
"""Heading → commands. Those that are in none of them stand last."""
OTHERS = "For editors"
WIDTH = 120
"""Columns of a help at most, where the terminal is wider."""
_VALUES: dict[type, str] = {int: "N", float: "X", Path: "PATH", str: "NAME"}
"""How values are called where an option says nothing else."""


class Commands(TyperGroup):
    """Lists its commands in groups."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """One of them, with its examples below its help."""
        command = self.commands.get(cmd_name)
        if command is not None and command.epilog is None:
            command.epilog = epilog(cmd_name)
            _name_values(command)
        return command

    def list_commands(self, ctx: Any) -> list[str]:
        """All of them, in the order of the groups."""
        known = [name for names in GROUPS.values() for name in names]
        return sorted(self.commands, key=lambda name: known.index(name) if name in known else len(known))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """A section a group."""
        grouped = {name: title for title, names in GROUPS.items() for name in names}
        lines: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = self.commands[name]
            if not command.hidden:
                # The first sentence whole, on two lines if it must be.
                lines.setdefault(grouped.get(name, OTHERS), []).append((name, command.get_short_help_str(200)))
        for title, rows in lines.items():
            with formatter.section(title):
                formatter.write_dl(rows)


def _name_values(command: Any) -> None:
    """Call values by what they are to a person, and not by their type in Python."""
    callback: Callable[..., Any] = getattr(command.callback, "__wrapped__", command.callback)
    hints = get_type_hints(callback)
    for parameter in command.params:
        hint = hints.get(parameter.name)
        kinds = {hint, *get_args(hint), *(inner for one in get_args(hint) for inner in get_args(one))}
        word = next((word for kind, word in _VALUES.items() if kind in kinds), None)
        if word is not None and parameter.metavar is None and not getattr(parameter, "is_flag", False):
            parameter.metavar = word
