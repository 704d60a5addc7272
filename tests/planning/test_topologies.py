"""Names of topologies, and what is told of those that are none."""

import pytest

from mlmjax.core.errors import UserError
from mlmjax.planning.chips import CHIPS, Topology


@pytest.mark.parametrize(
    ("text", "devices"), [("v5e:16x16", 256), ("v5p:4x4x4", 64), ("h100:8", 8), ("V6E:2x4", 8)]
)
def test_a_topology_is_its_chips(text: str, devices: int) -> None:
    topology = Topology.parse(text)
    assert topology.devices == devices
    assert str(topology) == text.lower()
    assert Topology.parse(str(topology)) == topology


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("v9:2x2", "v4, v5e, v5p, v6e, a100, h100, h200"),
        ("v5e", "laid out as v5e:4x4"),
        ("v5e:", "laid out as v5e:4x4"),
        ("v5e:16", "laid out as v5e:4x4"),
        ("v5e:0x4", "laid out as v5e:4x4"),
        ("v5e:-2x4", "laid out as v5e:4x4"),
        ("v5e:32x32", "1024 chips.*at most 256"),
        ("v4:4x4", "v4:2x2x1"),
        ("h100:2x4", "h100:8"),
        ("", "v4, v5e"),
    ],
)
def test_what_is_none_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(UserError, match=f"--topology {text}.*{sentence}"):
        Topology.parse(text)


def test_every_chip_has_a_source_and_figures_in_range() -> None:
    for chip in CHIPS.values():
        assert chip.source
        assert 1e10 < chip.memory < 1e12
        assert 1e14 < chip.flops < 1e16
        assert chip.interconnect < chip.bandwidth < 1e13
