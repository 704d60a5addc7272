"""Figures of a training step's speed as tables."""

from mlmjax.report.terminal import Terminal
from mlmjax.training.speed import Speed


def show(speed: Speed, terminal: Terminal) -> None:
    """Print how fast an experiment trains, what it waits for, and what it takes."""
    mesh = " x ".join(f"{name} {size}" for name, size in speed.mesh.items())
    terminal.say(
        f"{speed.devices} x {speed.device}, {mesh}; batch {speed.batch}, {speed.dtype}, "
        f"{speed.steps} steps after a warm-up."
    )
    rows_a_second, unit = speed.batch / speed.step_seconds, speed.work.unit
    rows = [
        ("steps a second", f"{1 / speed.step_seconds:,.2f}"),
        (f"{unit} a second", f"{speed.per_second(rows_a_second):,.0f}"),
        ("a step, ms", f"{1e3 * speed.step_seconds:,.1f}"),
        (
            "of which waiting for data",
            f"{1e3 * speed.wait_seconds:,.2f} ({speed.wait_share:.1%})",
        ),
        (f"{unit} a second of the data alone", f"{speed.per_second(speed.pipeline):,.0f}"),
        ("tracing, s", f"{speed.trace_seconds:,.1f}"),
        ("compiling, s", f"{speed.compile_seconds:,.1f}"),
    ]
    terminal.table("Speed", ("", ""), rows)
    products = [
        ("a step of the model", f"{speed.work.flops / 1e12:,.4f}", ""),
        ("the model, a second", f"{speed.flops / 1e12:,.4f}", f"{speed.utilisation:.1%}"),
        ("a product on all devices, a second", f"{speed.ceiling / 1e12:,.4f}", "100%"),
    ]
    terminal.table("Operations", ("", "TFLOP", "share"), products)
    most = "most in use" if speed.peak_of == "device" else "most in use, the whole process"
    taken = [(most, _mib(speed.peak))]
    if speed.allotted is not None:
        one = speed.allotted
        taken = [
            ("state and batch", _mib(one.arguments)),
            ("results beside them", _mib(one.results)),
            ("in between", _mib(one.temporaries)),
            ("program", _mib(one.code)),
            ("all that the step takes", _mib(one.total)),
            *taken,
        ]
    terminal.table("Memory of each device", ("", "MiB"), taken)
    if speed.cache is not None:
        terminal.say(
            f"Compiled programs are kept in {speed.cache}: compiling may have been reading one."
        )
    if speed.skipped:
        terminal.say(
            f"The gradient of {speed.skipped} steps was not finite: they were not made whole, and took less time."
        )


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f}"
