"""The training loop: it feeds the step, logs, calls for evaluation, and saves. It knows no objective."""

import math
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax

from mlmjax.data.base import Batches
from mlmjax.distributed import Vote
from mlmjax.training.checkpoint import Checkpoints
from mlmjax.training.metrics import Clock, Log, Record, Sink
from mlmjax.training.state import Parameters, TrainState
from mlmjax.training.step import Program, Report

Feed = Callable[[int], Batches]
"""Batches from a given step on."""

Evaluate = Callable[[int, Parameters], Record]
"""Figures of the parameters after a step, by flat name, such as ``heldout/mask_loss``."""

IN_FLIGHT = 2
"""Steps that are handed to the device before the first of them must have ended."""


class DivergedError(Exception):
    """The gradient, or what is measured on held-out data, stayed not finite."""


@dataclass(frozen=True)
class Outcome:
    """How training ended: with all its steps, or by a signal after some of them."""

    state: TrainState
    step: int
    ended: Literal["finished", "interrupted"]


def train(
    program: Program,
    feed: Feed,
    *,
    checkpoints: Checkpoints,
    sinks: Sequence[Sink],
    initial: Callable[[], TrainState] | None = None,
    evaluate: Evaluate | None = None,
    on_step: Callable[[int], None] = lambda step: None,
) -> Outcome:
    """Train to the last step, from the newest checkpoint or from the start.

    The state after a step is a pure function of the experiment, so a run that was cut off anywhere goes
    on as if it had not been. SIGTERM and SIGINT save and return: of several processes all do so, at the same step,
    whichever was told.

    Args:
        program: what is trained.
        feed: the batches from a step on.
        checkpoints: where the state is kept.
        sinks: where the records go.
        initial: makes the state of the start; by default the program's.
        evaluate: called every ``run.evaluate_every`` steps and after the last.
        on_step: told of every step that was handed to the device, and first of the one resumed at.

    Raises:
        DivergedError: too many steps in a row were skipped, or a held-out figure is not finite; it names
            the last good checkpoint.
    """
    run = program.experiment.run
    state, step = start(program, checkpoints, initial or program.initial_state)
    compiled = program.step().lower(program.state, program.batch).compile()
    on_step(step)
    saved = step
    log, clock, running = Log(sinks), Clock(program.work), deque[tuple[int, Report]]()
    limit = run.stop_after_skipped
    stops = Vote(program.mesh)
    with interruption() as interrupted, closing(feed(step)) as batches:
        while step < run.steps and not stops(interrupted.is_set()):
            checkpoints.check()
            state, report = advance(program, compiled, state, batches, clock)
            step += 1
            running.append((step, report))
            evaluates = evaluate is not None and _due(step, run.evaluate_every, run.steps)
            saves = _due(step, run.checkpoint_every, run.steps)
            # Before a pause all steps are waited for: their time is not the pause's.
            while len(running) > (0 if evaluates or saves else IN_FLIGHT):
                stop_if_diverged(*running.popleft(), limit=limit, checkpoints=checkpoints)
                clock.step()
            on_step(step)

            if step % run.log_every == 0:
                log.add(step, {**report, **clock.lap()}, prefix="train/")
            log.write(upto=step - IN_FLIGHT)
            if evaluate is not None and evaluates:
                with clock.paused():
                    figures = evaluate(step, state.parameters)
                    if not all(map(math.isfinite, figures.values())):
                        log.write(upto=step)
                        raise _diverged(f"A held-out figure of step {step}", step, checkpoints)
                    log.add(step, figures)
            if saves:
                with clock.paused():
                    log.write(upto=step)
                    # While steps are being skipped, the checkpoints of before are kept.
                    if int(jax.device_get(state.skipped_in_a_row)) == 0:
                        checkpoints.save(saved := step, state)
    for each in running:
        stop_if_diverged(*each, limit=limit, checkpoints=checkpoints)
    log.write(upto=step)
    if saved != step:
        checkpoints.save(step, state)
    checkpoints.wait()
    return Outcome(state, step, "finished" if step >= run.steps else "interrupted")


def start(
    program: Program, checkpoints: Checkpoints, initial: Callable[[], TrainState]
) -> tuple[TrainState, int]:
    """The state to go on from, and its step: that of the newest checkpoint, or the initial one.

    A checkpoint of step 0 holds parameters alone, which were imported.
    """
    latest = checkpoints.latest
    if latest is None:
        return initial(), 0
    if latest == 0:
        parameters = checkpoints.restore_parameters(program.state.parameters, 0)
        return replace(program.initial_state(), parameters=parameters), 0
    return checkpoints.restore(program.state, latest), latest


def advance(
    program: Program, compiled: Any, state: TrainState, batches: Batches, clock: Clock
) -> tuple[TrainState, Report]:
    """Wait for the next batch and hand a step to the device, which makes it while the next is prepared."""
    with clock.waiting():
        batch = next(batches)
    return compiled(state, program.place(batch))


def stop_if_diverged(step: int, report: Report, *, limit: int, checkpoints: Checkpoints) -> None:
    """Wait for a step's report; raise if too many steps in a row up to it were skipped."""
    if int(jax.device_get(report["skipped_in_a_row"])) >= limit:
        what = f"The gradient of {limit} steps in a row"
        raise _diverged(what, step - limit, checkpoints)


def _diverged(what: str, step: int, checkpoints: Checkpoints) -> DivergedError:
    """The error that names the last good checkpoint: one from which a step was made, before the first bad one."""
    checkpoints.wait()
    last = checkpoints.latest_before(step)
    good = (
        "There is no good checkpoint"
        if last is None
        else f"The last good checkpoint is {checkpoints.folder / str(last)}; later ones are not to be trusted"
    )
    return DivergedError(
        f"{what} was not finite. {good}. Lower --optimizer.learning-rate.peak or look at the data."
    )


@contextmanager
def interruption() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set; a second SIGINT interrupts at once."""
    event = threading.Event()

    def handle(number: int, frame: object) -> None:
        if number == signal.SIGINT and event.is_set():
            raise KeyboardInterrupt
        event.set()

    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = {each: signal.signal(each, handle) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _due(step: int, every: int | None, last: int) -> bool:
    return step == last or (every is not None and step % every == 0)
