"""beartype, as jaxtyping's import hook takes it.

Two things are left unchecked: ``Self``, for which it knows no class there, and the construction of values, since
jax also builds our pytrees of shapes and shardings.
"""

from collections.abc import Callable
from typing import Any, Self

from beartype import BeartypeConf, FrozenDict, beartype

_beartype = beartype(conf=BeartypeConf(hint_overrides=FrozenDict({Self: Any})))


def check(function: Callable) -> Callable:
    """The function, its arguments and result checked at every call."""
    return function if function.__name__ == "__init__" else _beartype(function)
