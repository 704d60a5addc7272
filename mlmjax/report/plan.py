"""A plan as tables."""

from collections.abc import Sequence

from mlmjax.planning.chips import GIB
from mlmjax.planning.plan import Plan
from mlmjax.planning.search import Layout
from mlmjax.report.terminal import Terminal


def show(plan: Plan, terminal: Terminal) -> None:
    """Print what a step needs and what bounds it."""
    memory = plan.memory
    kept = "activations (kept for the backward pass)" if memory.at_least else "activations, program"
    rows = [
        ("parameters", _gib(memory.parameters)),
        ("optimizer", _gib(memory.optimizer)),
        ("batch", _gib(memory.batch)),
        (kept, _gib(memory.activations)),
        ("all" if not memory.at_least else "all, at least", _gib(memory.total)),
        ("there are", _gib(memory.limit)),
    ]
    mesh = " x ".join(f"{name} {size}" for name, size in plan.mesh.items())
    terminal.say(f"{plan.topology}: {plan.topology.devices} devices, {mesh}.")
    terminal.table("Memory of each device", ("", "GiB"), rows)
    if plan.collectives:
        moved = [
            (each.kind, f"{each.count:,}", f"{each.bytes / 1e6:,.1f}", f"{each.sent / 1e6:,.1f}")
            for each in plan.collectives
        ]
        terminal.table("Between devices, a step", ("", "times", "MB", "MB to send"), moved)
    amounts = {
        "compute": f"{plan.flops / 1e12:,.3f} TFLOP",
        "memory": "" if plan.traffic is None else f"{plan.traffic / 1e9:,.2f} GB",
        "interconnect": ""
        if plan.collectives is None
        else f"{sum(each.sent for each in plan.collectives) / 1e9:,.3f} GB",
    }
    times = [
        (name, amounts[name], f"{1e3 * seconds:,.3f}", "binds" if name == plan.bound else "")
        for name, seconds in plan.seconds.items()
    ]
    terminal.table(
        f"A step at the published rates of {plan.topology.chip.name}",
        ("", "each device", "ms at least", ""),
        times,
    )
    if plan.fits:
        hours = 24 * plan.days * plan.topology.devices
        terminal.say(
            f"At best {plan.mfu_bound:.0%} of the chips' peak are used by the model's own operations; "
            f"{plan.steps:,} steps take at least {_time(plan.days)}, {hours:,.0f} chip-hours."
        )


def show_ranked(found: Sequence[tuple[Layout, Plan]], terminal: Terminal) -> None:
    """Print the layouts that fit, the fastest first."""
    rows = [
        (
            layout.options.replace("--", ""),
            _gib(plan.memory.total),
            f"{1e3 * plan.step_seconds:,.2f}",
            plan.bound,
            f"{plan.mfu_bound:.0%}",
            _time(plan.days),
        )
        for layout, plan in found
    ]
    columns = ("layout", "GiB", "ms a step", "bound by", "MFU below", "at least")
    terminal.table("Layouts that fit, the fastest first", columns, rows)


def _gib(size: int) -> str:
    return f"{size / GIB:,.2f}"


def _time(days: float) -> str:
    return f"{days:,.1f} days" if days >= 1 else f"{24 * days:,.1f} hours"
