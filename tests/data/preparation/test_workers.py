"""Work in several processes: the same results, and an end that leaves nothing behind."""

import os
import signal
import subprocess
import sys
import time

import pytest

from mlmjax.core.errors import UserError
from mlmjax.data.preparation.workers import EndedError, processes, spread


def slowly_squared(number):
    time.sleep(0.05)
    print("what a task prints is not its result")
    return number * number, os.getpid()


def killed(number):
    if os.getpid() != number:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.2)


def failing(number):
    if os.getpid() != number:
        raise UserError("line 7 is no number")
    time.sleep(0.2)


class UnreadableError(Exception):
    """One that cannot be built again from what was pickled."""

    def __init__(self, one, two):
        super().__init__(one + two)


def failing_oddly(number):
    if os.getpid() != number:
        raise UnreadableError("a", "b")
    time.sleep(0.2)


def of_another_process(number):
    time.sleep(0.05)
    return os.getpid()


def is_running(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("workers", [1, 2, 3, 20])
def test_every_task_is_done_once(workers):
    found = dict(spread(slowly_squared, range(12), workers=workers))
    assert {task: value for task, (value, _) in found.items()} == {n: n * n for n in range(12)}
    assert len({process for _, process in found.values()}) <= min(workers, 12)
    assert (len({process for _, process in found.values()}) > 1) == (workers > 1)


def test_no_task_gives_nothing():
    assert not list(spread(slowly_squared, [], workers=4))


def test_zero_processes_are_one_a_core():
    assert processes(0) >= 1
    assert processes(3) == 3


def test_a_process_that_is_killed_is_told():
    with pytest.raises(EndedError, match="was killed"):
        list(spread(killed, [os.getpid()] * 10, workers=2))


def test_an_error_of_another_process_is_raised_here():
    with pytest.raises(UserError, match="line 7 is no number"):
        list(spread(failing, [os.getpid()] * 10, workers=2))


def test_an_error_that_cannot_be_pickled_is_raised_as_text():
    with pytest.raises(RuntimeError, match="UnreadableError: ab"):
        list(spread(failing_oddly, [os.getpid()] * 10, workers=2))


def test_who_stops_early_leaves_no_process():
    others = set()
    found = spread(of_another_process, range(40), workers=3)
    for _, process in found:
        others.add(process)
        if len(others) == 3:
            break
    found.close()
    others -= {os.getpid()}
    assert len(others) == 2
    assert not any(map(is_running, others))


SCRIPT = """
import sys
from mlmjax.data.preparation.workers import spread

print("the script starts")
def twice(number):
    return 2 * number
print(sorted(spread(twice, range(5), workers=2)))
"""


def test_a_script_needs_no_guard_and_is_not_run_again():
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    pairs = [(number, 2 * number) for number in range(5)]
    assert ran.stdout == f"the script starts\n{pairs}\n"
    assert not ran.stderr


ENDLESS = """
import os, signal, time
from mlmjax.data.preparation.workers import spread

# Where the tests themselves run in the background, a shell has them ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)

def work(number):
    print(os.getpid(), flush=True)
    time.sleep(0.1)
    return os.getpid()
for _, process in spread(work, range(10**4), workers=2):
    print(process, flush=True)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_processes_end_with_the_one_that_started_them(how):
    script = subprocess.Popen(
        [sys.executable, "-c", ENDLESS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    seen = {script.pid}
    assert script.stdout is not None
    while len(seen) < 2:
        seen.add(int(script.stdout.readline()))
    script.send_signal(how)
    script.communicate()
    (other,) = seen - {script.pid}
    until = time.monotonic() + 20
    while is_running(other) and time.monotonic() < until:
        time.sleep(0.05)
    assert not is_running(other)
