"""Unknown roles are counted by name."""

import pytest
from packtrain.stages.tokenize.encode_counts import MOST_ROLES, OTHERS, ROLES, EncodeCounts, known_roles

TEMPLATE = """{% for m in messages %}{% if m.role == "observation" or m.role in ['ipython', 'x'] %}{{ 1 }}{% endif %}
{% set role = 'model' if m.role != 'tool' else m.role %}{{ m.role }}{% endfor %}"""


@pytest.mark.parametrize(
    ("role", "is_known"),
    [("developer", True), ("observation", True), ("x", True), ("model", False), ("User", False)],
)
def test_roles_that_the_template_compares_with_are_known(role: str, is_known: bool) -> None:
    assert (role in known_roles(TEMPLATE)) == is_known


def test_few_names_are_kept_and_none_can_write_to_a_terminal() -> None:
    counts = EncodeCounts()
    for number in range(2 * MOST_ROLES):
        counts.add_roles([f"{number:02}\x1b" + "x" * 100], number)
    roles = counts.by_kind[ROLES]
    assert len(roles) == MOST_ROLES + 1
    assert roles[OTHERS] == MOST_ROLES
    assert all(len(name) < 50 and name.isprintable() for name in roles)
