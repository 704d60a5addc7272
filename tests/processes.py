"""Several processes on this machine that are one run."""

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Ended:
    """How the processes ended, in their order."""

    status: list[int]
    said: list[str]
    out: list[Path]
    seconds: float


def start(folder: Path, count: int, *, devices: int = 8, **order: Any) -> list[subprocess.Popen]:
    """Start processes that carry out an order; ``own`` holds what is different for each.

    Args:
        folder: for their files.
        count: processes.
        devices: of all together.
        order: see ``tests.worker``; with ``only``, one of the processes alone is started; with ``slurm`` they are
            told of each other as ``srun`` does.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    flags = [each for each in os.environ["XLA_FLAGS"].split() if "device_count" not in each]
    flags.append(f"--xla_force_host_platform_device_count={devices // count}")
    own = order.pop("own", [{}] * count)
    only, slurm = order.pop("only", None), order.pop("slurm", False)
    started = []
    for number in range(count) if only is None else [only]:
        text = {"coordinator": f"localhost:{port}", "processes": count, "number": number}
        told = {}
        if slurm:
            text |= {"coordinator": None, "processes": None}
            told = {
                "SLURM_JOB_ID": str(port),
                "SLURM_STEP_NODELIST": "localhost",
                "SLURM_STEP_NUM_NODES": "1",
                "SLURM_NTASKS": str(count),
                "SLURM_PROCID": str(number),
                "SLURM_LOCALID": str(number),
            }
        path = folder / f"{number}.json"
        out = folder / f"{number}.out"
        out.unlink(missing_ok=True)
        path.write_text(json.dumps({**text, "out": str(out), **order, **own[number]}))
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "tests.worker", str(path)],
                env={**os.environ, **told, "XLA_FLAGS": " ".join(flags)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    return started


def ended(folder: Path, started: list[subprocess.Popen], *, within: float = 300) -> Ended:
    """Wait for processes."""
    begin = time.monotonic()
    try:
        said = [each.communicate(timeout=within)[1] for each in started]
    finally:
        for each in started:
            each.kill()
    out = [folder / f"{number}.out" for number in range(len(started))]
    return Ended([each.returncode for each in started], said, out, seconds=time.monotonic() - begin)


def together(folder: Path, count: int, **order: Any) -> Ended:
    """Start processes and wait for them."""
    return ended(folder, start(folder, count, **order))
