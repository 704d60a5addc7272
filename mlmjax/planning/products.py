"""Floating-point operations of a traced function: every product, as often as it is run.

XLA's own analysis counts the body of a loop once, however often it is run; here a scan counts for its length.
"""

import math
from collections.abc import Iterator
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr
from jax.interpreters.partial_eval import dce_jaxpr


def product_flops(traced: ClosedJaxpr) -> float:
    """Operations of all matrix products and convolutions, 2 for a multiplication and addition.

    Of branches the most expensive counts. A loop whose number of turns is not known when it is traced counts once.
    What nothing depends on does not count, since no compiler keeps it.
    """
    used, _ = dce_jaxpr(traced.jaxpr, [True] * len(traced.jaxpr.outvars), instantiate=True)
    found = (times * _of_equation(equation) for equation, times in equations(used))
    return sum(found, 0.0)


def stacked_bytes(traced: ClosedJaxpr) -> int:
    """Bytes of what scans stack up as they run, such as what a backward pass keeps of each layer.

    A scan within a scan counts once: each turn takes the place of the one before.
    """
    return sum(
        sum(
            each.aval.size * each.aval.dtype.itemsize
            for each in equation.outvars[equation.params["num_carry"] :]
        )
        for equation, _ in equations(traced.jaxpr)
        if equation.primitive.name == "scan"
    )


def equations(jaxpr: Jaxpr, times: int = 1) -> Iterator[tuple[Any, int]]:
    """Every equation within a traced function, and how often it is run."""
    for equation in jaxpr.eqns:
        yield equation, times
        inner = list(_inner(equation.params))
        if equation.primitive.name == "cond":
            inner = [
                max(inner, key=lambda each: sum(n * _of_equation(e) for e, n in equations(each)))
            ]
        for each in inner:
            yield from equations(each, times * _often(equation))


def _often(equation: Any) -> int:
    """How often what is within an equation is run, all devices together."""
    params = equation.params
    match equation.primitive.name:
        case "scan":
            return params["length"]
        case "shard_map":  # it is written for one device
            return params["mesh"].size
        case "pallas_call":
            return math.prod(params["grid_mapping"].grid)
    return 1


def _inner(params: dict[str, Any]) -> Iterator[Jaxpr]:
    for value in params.values():
        for each in value if isinstance(value, tuple | list) else (value,):
            if isinstance(each, ClosedJaxpr):
                yield each.jaxpr
            elif isinstance(each, Jaxpr):
                yield each


def _of_equation(equation: Any) -> float:
    if equation.primitive.name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        left = equation.invars[0].aval
        summed = math.prod(left.shape[axis] for axis in contracted)
        return 2.0 * equation.outvars[0].aval.size * summed
    if equation.primitive.name == "conv_general_dilated":
        kernel = equation.invars[1].aval
        out_channels = kernel.shape[equation.params["dimension_numbers"].rhs_spec[0]]
        return 2.0 * equation.outvars[0].aval.size * kernel.size / out_channels
    return 0.0
