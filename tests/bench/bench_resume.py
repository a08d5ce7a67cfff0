"""How long a run takes that was killed when nine tenths were done, against an undisturbed one.

    PACKTRAIN_REALDATA=folder python tests/bench/bench_resume.py [--megabytes 128] [--repeats 3] [--share 0.9]

An undisturbed run tells how long it takes, the second time with the tokenizer engine chosen already. Then the whole
process group is killed (SIGKILL) after that share of the time, and the same command runs again to its end. The output
must be the same to the byte. Limit: 15 % of the undisturbed run.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.bench.bench_size import configure, write_text
    from tests.bench.corpus import make_parser, median, print_header, print_table, read_manifest, spread, work_folder
else:
    from bench_size import configure, write_text
    from corpus import make_parser, median, print_header, print_table, read_manifest, spread, work_folder

LIMIT = 0.15


def run(config: Path, kill_after: float | None = None) -> tuple[float, bool]:
    """Seconds of a run, and whether it came to its end."""
    command = [str(Path(sys.executable).with_name("packtrain")), "run", str(config), "--workers", "2"]
    began = time.perf_counter()
    with config.with_name("log.txt").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            process.wait(kill_after)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode not in (0, -signal.SIGKILL):
        raise SystemExit(config.with_name("log.txt").read_text())
    return time.perf_counter() - began, process.returncode == 0


def main() -> None:
    """Runs the benchmark."""
    parser = make_parser(__doc__)
    parser.add_argument("--megabytes", type=float, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--share", type=float, default=0.9)
    options = parser.parse_args()
    full: list[float] = []
    again: list[float] = []
    hashes = set()
    with work_folder(options.work) as work:
        data = work / "texts.jsonl"
        write_text(data, int(options.megabytes * 1e6), 0)

        def fresh() -> Path:
            config = configure(work / "resume", [str(data)], output={"shard_bytes": 16 << 20})
            subprocess.run([Path(sys.executable).with_name("packtrain"), "run", config, "--dry-run"], check=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
            return config

        for _ in range(options.repeats):
            config = fresh()
            full.append(run(config)[0])
            hashes.add(read_manifest(config.parent / "out").hash)
            config = fresh()
            if run(config, options.share * full[-1])[1]:
                print("a run ended before it was killed; it does not count", file=sys.stderr)
                continue
            again.append(run(config)[0])
            hashes.add(read_manifest(config.parent / "out").hash)
        idle = fresh()
        run(idle)
        nothing = run(idle)[0]  # a run that is finished: what starting costs
        shutil.rmtree(work / "resume")
    print_header(f"Killed at {options.share:.0%}, {options.megabytes:.0f} MB of text", ("packtrain",))
    share = median(again) / median(full)
    row = [spread(full), spread(again), f"{share:.1%}", "yes" if share <= LIMIT else "NO", f"{nothing:.2f}"]
    header = ["undisturbed s", "resumed s", "share", f"<= {LIMIT:.0%}", "finished run again s"]
    print_table(header, [row], left=0)
    print(f"Manifests are {'equal' if len(hashes) == 1 else 'NOT EQUAL'}.")


if __name__ == "__main__":
    main()
