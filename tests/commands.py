"""What tests of the command line share."""

import json
from typing import Any

import pytest

from mlmjax.cli import main


def refused(capsys: pytest.CaptureFixture, *arguments: str) -> str:
    """What a command that is refused says."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    said = capsys.readouterr()
    assert caught.value.code == 2
    assert "Traceback" not in said.err + said.out
    return " ".join((said.err + said.out).split())


def printed(capsys: pytest.CaptureFixture, *arguments: str) -> Any:
    """The object that a command prints."""
    capsys.readouterr()
    main(arguments)
    return json.loads(capsys.readouterr().out)
