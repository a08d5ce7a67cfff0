"""Options that several commands take."""

from typing import Annotated

import typer

Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Overrule a key, e.g. truncate.max_length=4096."),
]
