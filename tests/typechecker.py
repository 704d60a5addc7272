"""beartype, as jaxtyping's import hook takes it, with ``Self`` left unchecked (it knows no class there)."""

from typing import Any, Self

from beartype import BeartypeConf, FrozenDict, beartype

check = beartype(conf=BeartypeConf(hint_overrides=FrozenDict({Self: Any})))
