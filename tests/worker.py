"""One of several processes that train together: ``python -m tests.worker ORDER``, where ORDER is a JSON file.

The order's ``experiments`` are traced; or its ``experiment`` is timed for ``bench`` steps; or it is trained, and
what was read is written down. A ``fault`` strikes one process at a step.
"""

import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

from mlmjax.commands.ending import ending
from mlmjax.distributed import Peers, together
from mlmjax.experiment import Experiment


def main(order: dict[str, Any]) -> None:
    """Carry out an order."""
    number = order["number"]
    if "folder" in order:
        os.chdir(order["folder"])
        os.environ["XDG_CACHE_HOME"] = order["folder"]
    by_launcher = order["coordinator"] is None
    peers = Peers() if by_launcher else Peers(order["coordinator"], order["processes"], number)
    with together(peers, ending, seconds=order.get("seconds", 60)):
        if "experiments" in order:
            from tests.tracing import trace

            found = [trace(Experiment.from_json(each)) for each in order["experiments"]]
            Path(order["out"]).write_text(json.dumps(found))
            return
        experiment = Experiment.from_json(order["experiment"])
        if "bench" in order:
            from mlmjax.benching import bench

            bench(experiment, steps=order["bench"])
            return
        from mlmjax.pretraining import pretrain

        _observe(order, number)
        pretrain(experiment)


def _observe(order: dict[str, Any], number: int) -> None:
    """Write down which examples go to the devices, and strike."""
    from mlmjax.training.step import Program

    place, fault, count = Program.place, order.get("fault"), 0

    def observed(program: Program, batch: dict[str, Any]) -> Any:
        nonlocal count
        full = fault and fault["how"] == "full" and fault["process"] == number
        if "epoch" in batch and not (full and count >= fault["step"]):
            record = {"places": program.places.tolist(), "ids": batch["id"][:, 1].tolist()}
            with Path(order["out"]).open("a") as seen:
                seen.write(json.dumps({**record, "epochs": batch["epoch"].tolist()}) + "\n")
        count += 1
        if fault and fault["process"] == number and fault["step"] == count:
            if fault["how"] == "raise":
                raise RuntimeError("the disk of this host is gone")
            if fault["how"] == "full":
                resource.setrlimit(resource.RLIMIT_FSIZE, (2**10, resource.RLIM_INFINITY))
                return place(program, batch)
            os.kill(os.getpid(), getattr(signal, fault["how"]))
        return place(program, batch)

    Program.place = observed


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
