"""The page's colours by role, in a light and a dark scheme, with dashes, symbols and patterns of the same meaning.

A figure names a colour by its role: `@lost`, or `@lost/40` for 40 % opacity. The page's script inserts the scheme's
colour, so charts change with the scheme.
"""

ROLES: dict[str, tuple[str, str]] = {
    "page": ("#f7f6f3", "#131519"),
    "card": ("#ffffff", "#1b1e24"),
    "sunken": ("#f1f0ec", "#23272e"),
    "ink": ("#1c1f24", "#e9e8e4"),
    "quiet": ("#5b616b", "#a5abb5"),
    "line": ("#deddd7", "#353a43"),
    "accent": ("#0b5cab", "#7cbaf5"),
    "mark": ("#d9f0e4", "#123f31"),
    "hit": ("#ffe08a", "#6b5200"),
    # What happened to tokens.
    "kept": ("#3273b8", "#6ba8e8"),
    "trained": ("#0d7a5f", "#45c49f"),
    "untrained": ("#7d8490", "#8d949f"),
    "lost": ("#c2410c", "#f28b57"),
    "created": ("#7446b3", "#b898ef"),
    # Ways to make batches.
    "padded": ("#b4530f", "#f0a066"),
    "padding_free": ("#7d6600", "#d6bd4c"),
    "wrapped": ("#7446b3", "#b898ef"),
    "bfd": ("#0b5cab", "#7cbaf5"),
    "tight": ("#a8326b", "#ef8fbb"),
    "bfd_split": ("#0d7a5f", "#45c49f"),
    # Series without a fixed colour, such as sources and splits.
    "one": ("#0b5cab", "#7cbaf5"),
    "two": ("#b4530f", "#f0a066"),
    "three": ("#0d7a5f", "#45c49f"),
    "four": ("#7446b3", "#b898ef"),
    "five": ("#7d6600", "#d6bd4c"),
    "six": ("#a8326b", "#ef8fbb"),
}
"""(light, dark) of each role."""

SERIES = ("one", "two", "three", "four", "five", "six")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
PATTERNS = ("", "/", ".", "x", "-", "+")
"""Bar patterns of the series, in order, so that no series depends on colour alone."""

STRATEGY_STYLES = {
    "padded": ("padded", "dot", "square"),
    "padding_free": ("padding_free", "dash", "diamond"),
    "wrapped": ("wrapped", "dashdot", "triangle-up"),
    "bfd": ("bfd", "solid", "circle"),
    "tight": ("tight", "longdashdot", "x"),
    "bfd_split": ("bfd_split", "longdash", "cross"),
}
"""(role, dash, symbol) of each way to batch."""

KINDS = {
    "kept": "kept",
    "trained": "✓ trained",
    "untrained": "not trained",
    "lost": "✕ lost",
    "created": "+ created",
}
"""Name of each kind of flow, with a sign that works without colour."""


def scheme(dark: bool) -> dict[str, str]:
    """The colour of each role."""
    return {role: pair[dark] for role, pair in ROLES.items()}


def variables() -> str:
    """Return the roles as CSS properties, for browsers with and without `light-dark()`."""
    plain = "".join(f"--{role}:{light};" for role, (light, _) in ROLES.items())
    both = "".join(f"--{role}:light-dark({light},{dark});" for role, (light, dark) in ROLES.items())
    return f":root{{{plain}}}\n@supports (color:light-dark(#000,#fff)){{:root{{{both}}}}}\n"
