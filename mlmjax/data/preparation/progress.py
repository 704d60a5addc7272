"""How far a preparation is."""

from collections.abc import Callable

Report = Callable[[str, int, int], None]
"""``report(stage, done, total)``; a total of 0 is not known yet."""
