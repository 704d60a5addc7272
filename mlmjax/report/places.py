"""Places of files that are to be written."""

from pathlib import Path

from mlmjax.core.errors import UserError


def check_place(path: Path, *, option: str) -> None:
    """Refuse a place where no file can be written, before any work is done.

    Args:
        path: of the file.
        option: the option that names it, for messages.

    Raises:
        UserError: it cannot be written.
    """
    if not path.parent.is_dir():
        raise UserError(f"{option} {path}: there is no folder {path.parent}; create it first.")
    there = path.exists()
    try:
        with path.open("ab"):
            pass
        if not there:
            path.unlink()
    except OSError as error:
        raise UserError(
            f"{option} {path} cannot be written: {error.strerror or error}. Choose another file."
        ) from error
