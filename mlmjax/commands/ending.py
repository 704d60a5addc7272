"""How a command ends that did not do what was asked: exit status and sentence."""

import signal
import sys
import traceback

from pydantic import ValidationError

from mlmjax.core.errors import UserError
from mlmjax.experiment import validation_message
from mlmjax.training.loop import DivergedError


def ending(error: BaseException) -> tuple[int, str]:
    """Exit status and sentence of what ends a command; 2 for bad input.

    What nobody foresaw is a fault of the program: its traceback is printed.
    """
    if isinstance(error, ValidationError):
        return 2, validation_message(error)
    if isinstance(error, UserError):
        return 2, str(error)
    if isinstance(error, DivergedError):
        return 1, str(error)
    if isinstance(error, KeyboardInterrupt):
        return 130, "interrupted."
    if isinstance(error, SystemExit):
        how = (
            "terminated."
            if error.code == 128 + signal.SIGTERM
            else "stopped, as its own output says."
        )
        return (error.code, how) if isinstance(error.code, int) else (1, str(error.code))
    traceback.print_exception(error, file=sys.stderr)
    return 1, f"{type(error).__name__}: {error}"
