"""`packtrain doctor`: what there is to train with, what is wrong with it, and how to fix it.

It runs without torch as well, and then says that torch is missing.
"""

import json
import os
from collections.abc import Callable

from ...schemas.units import duration, rate
from .devices import devices
from .findings import BROKEN, Finding, as_table, subjects, to_json, verdict
from .machine import machine_findings
from .software import software
from .variables import variables


def examine() -> list[Finding]:
    """Look at everything. A check that fails is a finding itself, so that the others are still made."""
    checks: dict[str, Callable[[], list[Finding]]] = {
        "software": software,
        "devices": lambda: devices(os.environ),
        "variables": lambda: variables(os.environ),
        "machine": lambda: machine_findings(os.environ),
    }
    findings: list[Finding] = []
    for name, check in checks.items():
        try:
            findings.extend(check())
        except Exception as error:  # examining a broken machine is the point
            said = f"could not be examined: {error.__class__.__name__}: {error}"
            findings.append(Finding(name, BROKEN, said, "that is likely part of what is wrong"))
    return findings


def report(*, as_json: bool, width: int, say: Callable[[str], None]) -> bool:
    """Examine and print. Whether all is well enough to train."""
    findings = examine()
    if as_json:
        say(json.dumps(to_json(findings), indent=2))
    else:
        say("\n".join(as_table(findings, width)))
        say("")
        say(verdict(findings))
    return not subjects(findings, BROKEN)


def report_ranks(*, timeout: float, as_json: bool, say: Callable[[str], None]) -> None:
    """Check the links between the ranks of a launcher; rank 0 prints.

    Raises:
        ConfigError, LaunchError: see `links.check_links`.
    """
    from .links import check_links

    found = check_links(timeout)
    if int(os.environ.get("RANK", "0")) != 0:
        return
    if as_json:
        keys = ("rank", "host", "interface", "address")
        ranks = [
            {**{key: getattr(one, key) for key in keys}, "device": one.device.partition(" ")[0]} for one in found.ranks
        ]
        numbers = {"seconds": found.seconds, "bytes_per_second": found.bytes_per_second}
        say(json.dumps({"backend": found.backend, **numbers, "ranks": ranks}, indent=2))
        return
    for one in found.ranks:
        say(str(one))
    say(
        f"All {len(found.ranks)} ranks answered over {found.backend}: {duration(found.seconds)} for one number, "
        f"{rate(found.bytes_per_second, 'bytes')} for 4 MiB"
    )
