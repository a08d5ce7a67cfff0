"""Unknown roles are counted, by conversation."""

import pytest
from packtrain.stages.tokenize.encode_counts import EncodeCounts
from packtrain.stages.tokenize.unknown_roles import MOST, OTHERS, ROLES, count_roles, known_roles

TEMPLATE = """{% for m in messages %}{% if m.role == "observation" or m.role in ['ipython', 'x'] %}{{ 1 }}{% endif %}
{% set role = 'model' if m.role != 'tool' else m.role %}{{ m.role }}{% endfor %}"""


@pytest.mark.parametrize(
    ("role", "known"),
    [("developer", True), ("observation", True), ("x", True), ("model", False), ("User", False)],
)
def test_roles_that_the_template_compares_with_are_known(role: str, known: bool) -> None:
    counts = EncodeCounts()
    for line in (3, 4):
        count_roles(line, [{"role": role}, {"role": role}], known_roles(TEMPLATE), counts)
    assert counts.found.get(ROLES, {}) == ({} if known else {role: 2})
    assert all(place.line == 3 for place in counts.places), "the first"


def test_few_names_are_kept_and_none_can_write_to_a_terminal() -> None:
    counts = EncodeCounts()
    for number in range(2 * MOST):
        count_roles(number, [{"role": f"{number:02}\x1b" + "x" * 100}], known_roles(""), counts)
    roles = counts.found[ROLES]
    assert len(roles) == MOST + 1
    assert roles[OTHERS] == MOST
    assert all(len(name) < 50 and name.isprintable() for name in roles)
