"""Folders that are written whole or not at all."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from mlmjax.core.errors import UserError

_PARTIAL = ".unfinished"


def refuse_existing(out: Path) -> None:
    """See that nothing is there yet.

    Raises:
        UserError: something is.
    """
    if out.exists():
        raise UserError(f"--out {out} exists: choose another, or remove it.")


@contextmanager
def written_whole(out: Path) -> Iterator[Path]:
    """A folder beside it to write into, which becomes ``out`` at the end; it is removed if that fails.

    Raises:
        UserError: it cannot be written.
    """
    partial = out.with_name(out.name + _PARTIAL)
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
        partial.rename(out)
    except (OSError, SafetensorError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"--out {out} cannot be written: {why}.") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
