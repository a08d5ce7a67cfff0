"""`packtrain doctor`: what there is to train with, what is wrong with it, and how to mend it.

It runs without torch as well, and then says that torch is missing.
"""

import json
import os
from collections.abc import Callable, Mapping

from ...schemas.units import duration, rate
from .devices import devices
from .findings import Examination, Finding, as_table, broken
from .machine import machine_findings
from .software import software
from .variables import variables

Check = Callable[[], list[Finding]]


def examine(environ: Mapping[str, str] | None = None) -> Examination:
    """Look at everything. A check that fails is a finding itself, so that the others are still made."""
    environ = os.environ if environ is None else environ
    checks: list[tuple[str, Check]] = [
        ("software", software),
        ("devices", lambda: devices(environ)),
        ("variables", lambda: variables(environ)),
        ("machine", lambda: machine_findings(environ)),
    ]
    findings: list[Finding] = []
    for name, check in checks:
        try:
            findings.extend(check())
        except Exception as error:  # examining a broken machine is the point
            said = f"could not be examined: {error.__class__.__name__}: {error}"
            findings.append(broken(name, said, "that is likely part of what is wrong"))
    return Examination(tuple(findings))


def report(*, as_json: bool, width: int, say: Callable[[str], None]) -> bool:
    """Examine and print. Whether all is well enough to train."""
    examination = examine()
    if as_json:
        say(json.dumps(examination.to_json(), indent=2))
    else:
        for line in as_table(examination, width):
            say(line)
        say("")
        say(examination.verdict())
    return not examination.broken


def report_ranks(*, timeout: float, as_json: bool, say: Callable[[str], None]) -> None:
    """Check the wires between the ranks of a launcher; rank 0 prints.

    Raises:
        ConfigError, LaunchError: see `wires.check_wires`.
    """
    from .wires import check_wires

    wired = check_wires(timeout)
    if int(os.environ.get("RANK", "0")) != 0:
        return
    if as_json:
        ranks = [
            {"rank": w.rank, "host": w.host, "interface": w.interface, "address": w.address, "device": w.device}
            for w in wired.wires
        ]
        numbers = {"seconds": wired.seconds, "bytes_per_second": wired.bytes_per_second}
        say(json.dumps({"backend": wired.backend, **numbers, "ranks": ranks}, indent=2))
        return
    for wire in wired.wires:
        say(f"rank {wire.rank:>4}  {wire.host}  {wire.interface or '?'} ({wire.address})  {wire.device}")
    say(
        f"All {len(wired.wires)} ranks answered over {wired.backend}: {duration(wired.seconds)} for one number, "
        f"{rate(wired.bytes_per_second, 'bytes')} for 4 MiB"
    )
