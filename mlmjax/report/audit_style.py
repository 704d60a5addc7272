"""The look of the pictures of audits."""

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FOUND, OTHER, ASKED, ALARM = "#3b6fb6", "#a9c3e6", "#d9622b", "#b3261e"
INK, GREY, FAINT = "#2b313a", "#697079", "#e3e6ea"


def dress(axes: "Axes") -> None:
    """Give a panel the look that all share."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=INK, labelsize=9, length=0)
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)


def heading(axes: "Axes", title: str, remark: str = "") -> None:
    """Write a panel's title and, below it, a remark."""
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK, pad=20)
    axes.text(0, 1.02, remark, transform=axes.transAxes, fontsize=9, color=GREY, va="bottom")


def legend(axes: "Axes", place: Literal["best", "upper right"] = "upper right") -> None:
    """Name what a panel shows."""
    axes.legend(loc=place, fontsize=8.5, frameon=False, labelcolor=INK)
