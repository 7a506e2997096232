"""The page: our numbers beside those of the paper, and the outcome of every claim."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from feddrop.comparison import FAILS, NO, WITHIN_MARGIN, YES, Answer
from feddrop.storage.files import write_atomically
from reproduction.framework import claims_figure
from reproduction.framework.experiment import Experiment, Page, markdown_table
from reproduction.framework.judged import MARKS, Judged, counts
from reproduction.framework.published import NOT_COVERED, Claim
from reproduction.framework.scales import Scale

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_RULE = (
    "Each claim is tested by one or more comparisons. Runs that are compared share a seed, so every seed gives one "
    "difference, positive if it supports the claim. Let d be the mean over the seeds and e its standard error. The "
    "margin is m = t·e, where t is the two-sided 95 % point of Student's distribution. A comparison says *yes* if d > "
    "m, *no* if d < -m, and is *undecided* otherwise, and always with fewer than three seeds. If the claim is that two "
    "things are alike, yes means that |d| + m is within the tolerance given in the note, no that |d| - m is beyond it. "
    "Spread is pooled only between the rates of one row of a table, and between opponents in the same cell; never over "
    "deadlines or bandwidths, since accuracy varies far more between seeds in a tight cell. For counts of rounds it is "
    "at least that of rounding. If one side never reached the level, the difference is a bound: it counts as at most "
    "the mean of the measured differences, so a more favourable bound cannot turn *yes* into *undecided*.\n\n"
    "A claim *holds* if every comparison says yes, and *holds in part* if some do and none says no. It *holds in part, "
    "fails in part* if some say yes and some no, and *does not hold* if some say no and none says yes. Otherwise it is "
    "*undecided*. That something *can* be so *holds* if one comparison says yes. The brackets count the answers. Why a "
    "comparison is undecided: *within the margin* with three or more seeds, however large the difference; *few seeds* "
    "with fewer; *not reached* if fewer than three seeds reached the level that is compared; *not run*. What follows a "
    "semicolon is a condition. Comparisons without randomness, "
    "such as a count of bytes, say yes or no with certainty; "
    "estimates from many masks have a margin of twice their standard error. There is no correction for the number of "
    "comparisons: "
)
_FIGURE = "img/paper-claims.png"
EVIDENCE = "The evidence, comparison by comparison"


def write_pages(
    pages: dict[Experiment, Page],
    judged: Sequence[Judged],
    scale: Scale,
    out: Path,
    *,
    command: str,
    about: str,
    stored: str,
) -> Path:
    """Write ``paper.md`` and its pictures.

    Args:
        pages: the page of each experiment.
        judged: the claims.
        scale: the scale.
        out: output folder; pictures go to its ``img/``.
        command: the command that makes this page.
        about: how many runs are finished, and how long they took.
        stored: all stored runs and the versions that trained them.
    """
    parts = [
        "# The paper, reproduced\n",
        f"*Federated Dropout: Convergence Analysis and Resource Allocation*, repeated at the scale `{scale.name}` by "
        f"`{command} --scale {scale.name}`. {about} {scale.note}\n",
        *_summary(judged),
        *_claims(judged),
        *(_section(experiment, page, judged) for experiment, page in pages.items()),
        *(
            [f"\n## The stored runs\n\n{folded('Versions, and runs that no experiment lists', stored)}"]
            if stored
            else []
        ),
        *_evidence(judged),
    ]
    figures = {name: figure for page in pages.values() for name, figure in _drawn(page).items()}
    if judged:
        figures["claims.png"] = claims_figure.draw([(one.claim.text, one.answers) for one in judged])
    for name, figure in figures.items():
        (out / "img").mkdir(parents=True, exist_ok=True)
        figure.savefig(out / "img" / f"paper-{name}", metadata={"Software": None})
    target = out / "paper.md"
    write_atomically(target, ("\n".join(parts).rstrip() + "\n").encode())
    return target


def folded(title: str, text: str) -> str:
    """Return Markdown behind a title that unfolds it, on GitHub and on the site."""
    return f'<details markdown="1"><summary>{title}</summary>\n\n{text.strip()}\n\n</details>\n'


def _summary(judged: Sequence[Judged]) -> list[str]:
    """Sum up in a few lines: how many claims hold, and which do not."""
    if not judged:
        return []
    refuted = [one.claim.text.rstrip(".") for one in judged if one.outcome == FAILS and not one.claim.ours]
    return [
        f"{counts(judged)}\n",
        *([f"**Does not hold:** {'; '.join(refuted)}.\n"] if refuted else []),
        "Each section shows the claims of a table or figure and our picture of it; its numbers and settings unfold. "
        "The paper prints numbers only in its Table II; our figures are therefore compared with what its text says "
        "about its figures. [Findings](findings.md) summarises the results in words and says how far each verdict "
        "reaches.\n",
    ]


def _claims(judged: Sequence[Judged]) -> list[str]:
    if not judged:
        return []
    header = ["claim", "where", "outcome", "note"]
    ours = _rows(judged, ours=True)
    return [
        "## Its claims\n",
        folded("The claims of the paper", markdown_table(header, _rows(judged, ours=False))),
        *([folded("Questions of ours, where the paper leaves a gap", markdown_table(header, ours))] if ours else []),
        folded(
            "Every comparison in one picture",
            "Each dot is one comparison: its difference in margins, positive if it supports the claim. Grey dots are "
            "within the margin; squares involve no randomness.\n\n"
            f"[![Every comparison of every claim]({_FIGURE})]({_FIGURE})",
        ),
        "### How claims are judged\n",
        folded("Comparisons, margins, outcomes", f"{_RULE}{_by_chance(judged)}"),
        "### What is not covered\n",
        " ".join(NOT_COVERED) + "\n",
    ]


def _rows(judged: Sequence[Judged], *, ours: bool) -> list[list[str]]:
    return [
        [one.claim.text, one.claim.where, f"{MARKS[one.word]} **{one.shown}**", one.note]
        for one in judged
        if one.claim.ours is ours
    ]


def _section(experiment: Experiment, page: Page, judged: Sequence[Judged]) -> str:
    """Return the section of an experiment: its claims and pictures, and the rest folded."""
    text = _images(page)
    pictures = re.findall(r"^!\[.*$", text, flags=re.MULTILINE)
    rest = re.sub(r"\n{3,}", "\n\n", re.sub(r"^!\[.*$", "", text, flags=re.MULTILINE))
    claims = [
        f"- {MARKS[one.word]} {one.claim.text} **{one.shown}**" for one in judged if experiment.name in one.claim.by
    ]
    shown = ["\n".join(claims)] * bool(claims) + pictures + [folded("Numbers and settings", rest)]
    return f"\n## {experiment.title} ({experiment.where})\n\n" + "\n\n".join(shown)


def _with_chance(judged: Sequence[Judged]) -> list[tuple[Claim, Answer]]:
    """Return every comparison that involves chance, once: two claims may share comparisons."""
    found: dict[int, tuple[Claim, Answer]] = {}
    for one in judged:
        for answer in one.answers:
            if answer.comparison.certain is None:
                found.setdefault(id(answer.comparison), (one.claim, answer))
    return list(found.values())


def _by_chance(judged: Sequence[Judged]) -> str:
    """Say how many comparisons would say yes or no by chance alone."""
    says = [answer.why or answer.says for _, answer in _with_chance(judged)]
    sure, asked = says.count(YES) + says.count(NO), says.count(YES) + says.count(NO) + says.count(WITHIN_MARGIN)
    return f"of {asked} comparisons judged so, {sure} say yes or no; about {asked / 20:.0f} would by chance alone."


def _evidence(judged: Sequence[Judged]) -> list[str]:
    rows = []
    for claim, answer in _with_chance(judged):
        says = f"{answer.why}, points to {answer.leaning}" if answer.leaning else answer.why or answer.says
        rows.append([claim.name, answer.comparison.label, *_numbers(answer), says])
    if not rows:
        return []
    text = (
        "Differences are in percentage points of test accuracy unless a unit is given, and positive if they support "
        "the claim. ≥ and ≤ mark bounds: one side did not reach the level within its rounds, so the true difference is "
        "further from 0. Rows without seeds are estimates from many masks.\n"
    )
    header = ["claim", "comparison", "difference", "error", "margin", "seeds", "says"]
    table = folded(f"All {len(rows)} comparisons that involve chance", markdown_table(header, rows))
    return [f"\n## {EVIDENCE}\n", text, table]


def _numbers(answer: Answer) -> list[str]:
    """Format difference, error, margin and number of seeds; empty if unknown."""
    unit, digits = answer.comparison.unit, answer.comparison.digits
    mean, *others = (
        "" if math.isnan(value) else f"{value:{sign}.{digits}f}"
        for value, sign in ((answer.mean, "+"), (answer.error, ""), (answer.margin, ""))
    )
    mean = f"{answer.comparison.sign} {mean}".strip()
    return [f"{mean} {unit}" if mean and unit != "points" else mean, *others, str(answer.seeds or "")]


def _images(page: Page) -> str:
    text = page.text
    for name in page.figures:
        if name in _drawn(page):
            text = text.replace(f"]({name})", f"](img/paper-{name})")
        else:
            text = re.sub(rf"!\[[^]]*\]\({re.escape(name)}\)", "*No picture: none of its runs are finished.*", text)
    return text


def _drawn(page: Page) -> dict[str, Figure]:
    """Return the figures that are not empty."""
    return {name: figure for name, figure in page.figures.items() if any(axes.has_data() for axes in figure.axes)}
