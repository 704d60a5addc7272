"""What the tables and pictures of audits of tokens and of patches share."""

from mlmjax.evaluation.audit.figures import Figures, Findings
from mlmjax.evaluation.audit.patch_figures import PatchFigures
from mlmjax.evaluation.audit.repeats import FALSE_ALARM
from mlmjax.report.terminal import Terminal


def summary(figures: Findings) -> str:
    """What was audited, in a line."""
    examples, epochs = (
        f"{count} {what}" if count == 1 else f"{count} {what}s"
        for count, what in ((figures.examples, "example"), (figures.epochs, "epoch"))
    )
    size = ""
    if isinstance(figures, Figures):
        size = f" of {figures.length} tokens"
    elif isinstance(figures, PatchFigures):
        size = f" of {figures.grid[0]} by {figures.grid[1]} patches"
    return f"masks of {examples}{size} in {epochs}; seed {figures.seed}, step {figures.step}"


def percent(share: float | None) -> str:
    """A share in percent; a dash where there is none."""
    return "-" if share is None else f"{100 * share:.2f} %"


def show_musts(figures: Findings, terminal: Terminal) -> None:
    """Print what has to hold, and whether it does."""

    def number(value: int | float | None) -> str:
        return "" if value is None else f"{value:,.0f}"

    rows = []
    for must in figures.musts:
        p = "" if must.p is None or not must.compared else f"{must.p:.2g}"
        chance = "few" if must.compared is not None and must.chance is None else number(must.chance)
        verdict = "holds" if must.kept else "BROKEN"
        rows.append((must.name, str(must.found), number(must.compared), chance, p, verdict))
    terminal.table("Must be 0, or chance", ("", "found", "of pairs", "by chance", "p", ""), rows)
    chosen = figures.by_choice
    if chosen and chosen.compared:
        terminal.say(
            f"{chosen.identical} of {chosen.compared} masks are those of an earlier epoch, by choice "
            f"(objective.static_masks {figures.static_masks})."
        )
    terminal.say(f"A must is broken where p is below {FALSE_ALARM:g}.")
