"""Everything on one page: what was run, ours beside the paper's, and what became of each claim."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from feddrop.compare import (
    FAILS,
    FEW_SEEDS,
    HOLDS,
    IN_NOISE,
    NO,
    PARTLY,
    REASONS,
    UNDECIDED,
    YES,
    Answer,
    Comparison,
    outcome,
    reason,
)
from feddrop.storage.files import write_atomically
from reproduction.framework import claims_figure
from reproduction.framework.experiment import Experiment, Page, markdown_table
from reproduction.framework.published import CLAIMS, NOT_COVERED, Claim
from reproduction.framework.scales import Scale
from reproduction.framework.verdicts import Verdict, verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TESTED = "property tests, see [the allocator](allocate.md)"
_ALLOCATOR = (
    verdict("convex", [Comparison("midpoints of random pairs of feasible points", certain=True)], _TESTED),
    verdict(
        "channel-rate",
        [
            Comparison("two devices that differ in both links alike", certain=True),
            Comparison("a device whose links both improve", certain=True),
        ],
        f"{_TESTED}; if the downlink alone improves, the share may grow",
    ),
    verdict(
        "share-opposite",
        [
            Comparison("a device whose costs stay the same", certain=True),
            Comparison("two devices that differ in their data", certain=True),
            Comparison("two devices that differ in their channel", certain=False),
        ],
        f"{_TESTED}; a worse channel gets a larger share and a higher rate, as the claim before this one says",
    ),
    verdict("cpu-not-monotone", [Comparison("the paper's cell, where energy binds", certain=True)], _TESTED),
    verdict(
        "complexity",
        [
            Comparison("a pass of the loop", certain=True),
            Comparison("the whole loop: nothing bounds the number of passes", certain=False),
        ],
        "the exact solver needs a handful of O(K) passes",
    ),
)
"""Claims about the allocator are settled by tests/test_allocate_claims.py and tests/test_paper.py, not by training."""

_RULE = (
    "Runs that are compared share a seed; every seed gives one difference, positive as the claim says. With mean d "
    "and standard error e over the seeds (spread pooled over the points of a claim that are of one kind; at least "
    "that of rounding, where whole rounds are counted), the margin is m = t·e, t the two-sided 95 % point of "
    "Student's distribution with the degrees of freedom of the pooled spread. A point says *yes* if d > m, *no* if d "
    "< -m, and is *undecided* otherwise, and always with fewer than three seeds. Where two things are to be alike, "
    "yes means |d| + m within the tolerance in the note, no |d| - m beyond it. A claim *holds* if every point says "
    "yes, *does not hold* if a point says no and none yes, *holds in part* if some but not all say yes, and is "
    "*undecided* otherwise. Why it is undecided stands beside it, and where nothing says no, why it holds in part "
    "only: *within the noise* with three seeds or more, *few seeds* with fewer, *not reached* if fewer than three "
    "seeds came to what is compared, *not run*. What has no chance in it, such as a count of bytes, says yes or no for "
    "certain; what is estimated from many masks has twice its standard error for a margin. The number of points is not "
    "corrected for: "
)
MARKS = {HOLDS: "🟢", PARTLY: "🟡", FAILS: "🔴", UNDECIDED: "⚪"}
_FIGURE = "claims.png"
EVIDENCE = "The evidence, point by point"


class Judged(NamedTuple):
    """A claim, and what its points say."""

    claim: Claim
    answers: tuple[Answer, ...]
    note: str

    @property
    def outcome(self) -> str:
        """Holds, holds in part, undecided or does not hold."""
        return outcome(self.answers)

    @property
    def shown(self) -> str:
        """The outcome, and why where it is undecided; where nothing says no, why it holds in part only."""
        why = reason(self.answers)
        if self.outcome == PARTLY and NO not in [answer.says for answer in self.answers]:
            whys = {answer.why for answer in self.answers}
            return f"{PARTLY}, the rest {', '.join(word for word in REASONS if word in whys)}"
        return f"{self.outcome}: {why}" if why else self.outcome

    @property
    def tally(self) -> str:
        """How many points say what, and where too few seeds point to."""
        words = [answer.why or answer.says for answer in self.answers]
        towards = sum(answer.leaning == YES for answer in self.answers)
        more = {FEW_SEEDS: f" (pointing to yes: {towards})"}
        return ", ".join(
            f"{word} {words.count(word)}{more.get(word, '')}" for word in (YES, NO, *REASONS) if word in words
        )


def write_pages(
    pages: dict[Experiment, Page], judged: Sequence[Judged], scale: Scale, out: Path, *, command: str, about: str
) -> Path:
    """Write ``paper.md`` and its pictures.

    Args:
        pages: what each experiment shows.
        judged: the claims.
        scale: at which scale.
        out: folder; pictures go to its ``img/``.
        command: what makes this page.
        about: how much of it was run, and how long it took.
    """
    parts = [
        "# The paper, repeated\n",
        f"*Federated Dropout: Convergence Analysis and Resource Allocation*, at the scale `{scale.name}`, made by "
        f"`{command} --scale {scale.name}`. {about}\n",
        f"The paper prints numbers in its table alone; our figures are held to what its text says of its own. "
        f"{scale.note}\n",
        *_claims(judged),
        *(f"\n## {experiment.title} ({experiment.where})\n\n{_images(page)}" for experiment, page in pages.items()),
        *_evidence(judged),
    ]
    figures = {name: figure for page in pages.values() for name, figure in _drawn(page).items()}
    if judged:
        figures[_FIGURE] = claims_figure.draw([(one.claim.text, one.answers) for one in judged])
    for name, figure in figures.items():
        (out / "img").mkdir(parents=True, exist_ok=True)
        figure.savefig(out / "img" / f"paper-{name}", metadata={"Software": None})
    target = out / "paper.md"
    write_atomically(target, ("\n".join(parts).rstrip() + "\n").encode())
    return target


def judge(pages: dict[Experiment, Page]) -> list[Judged]:
    """Sum up what these experiments say of the paper's claims; what is only tested stands with all of them alone."""
    verdicts = [*_ALLOCATOR, *(verdict for page in pages.values() for verdict in page.verdicts)]
    names = {experiment.name for experiment in pages}
    everything = all(name in names for claim in CLAIMS for name in claim.by)
    judged = []
    for claim in CLAIMS:
        if names.intersection(claim.by) or (everything and not claim.by):
            mine: list[Verdict] = [verdict for verdict in verdicts if verdict.claim == claim.name]
            notes = "; ".join(dict.fromkeys(v.note for v in mine if v.note))
            judged.append(Judged(claim, tuple(answer for v in mine for answer in v.answers), notes))
    return judged


def counts(judged: Sequence[Judged]) -> str:
    """Say how many claims came to which outcome."""
    outcomes = [one.outcome for one in judged]
    return f"Of {len(judged)} claims: {', '.join(f'{MARKS[word]} {word} {outcomes.count(word)}' for word in MARKS)}."


def _claims(judged: Sequence[Judged]) -> list[str]:
    if not judged:
        return []
    rows = [
        [one.claim.text, one.claim.where, f"{MARKS[one.outcome]} **{one.shown}**", one.tally, one.note]
        for one in judged
    ]
    return [
        "## What became of its claims\n",
        f"{counts(judged)}\n",
        "A dot is a point at which a claim was asked: how many margins its difference is beyond 0, to the right as the "
        "claim says. What is grey is within the noise; a square has no chance in it.\n",
        f"![Every point of every claim](img/paper-{_FIGURE})\n",
        markdown_table(["claim", "where", "outcome", "points", "note"], rows) + "\n",
        "### How claims are judged\n",
        f"{_RULE}{_by_chance(judged)}\n",
        "### What is not covered\n",
        " ".join(NOT_COVERED) + "\n",
    ]


def _with_chance(judged: Sequence[Judged]) -> list[tuple[Claim, Answer]]:
    """Return every point that has chance in it, once: a claim may be another in other words."""
    found: dict[int, tuple[Claim, Answer]] = {}
    for one in judged:
        for answer in one.answers:
            if answer.comparison.certain is None:
                found.setdefault(id(answer.comparison), (one.claim, answer))
    return list(found.values())


def _by_chance(judged: Sequence[Judged]) -> str:
    """Say how many of the points could say yes or no by chance alone."""
    says = [answer.why or answer.says for _, answer in _with_chance(judged)]
    sure, asked = says.count(YES) + says.count(NO), says.count(YES) + says.count(NO) + says.count(IN_NOISE)
    return f"of {asked} points that were judged so, {sure} say yes or no; {asked / 20:.0f} would without any effect."


def _evidence(judged: Sequence[Judged]) -> list[str]:
    rows = []
    for claim, answer in _with_chance(judged):
        says = f"{answer.why}, points to {answer.leaning}" if answer.leaning else answer.why or answer.says
        rows.append([claim.name, answer.comparison.label, *_numbers(answer), says])
    if not rows:
        return []
    text = (
        "Differences are in points of test accuracy where no unit is given, and positive as the claim says. ≥, ≤: one "
        "side was not reached within the rounds, so that the truth lies further from 0. Without seeds: an estimate "
        "from many masks.\n"
    )
    header = ["claim", "point", "difference", "error", "margin", "seeds", "says"]
    return [f"\n## {EVIDENCE}\n", text, markdown_table(header, rows) + "\n"]


def _numbers(answer: Answer) -> list[str]:
    """Write difference, error and margin, and the number of seeds; nothing where there is none."""
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
            text = re.sub(rf"!\[[^]]*\]\({re.escape(name)}\)", "*No picture yet: nothing of it was run.*", text)
    return text


def _drawn(page: Page) -> dict[str, Figure]:
    """Return the figures that show anything."""
    return {name: figure for name, figure in page.figures.items() if any(axes.has_data() for axes in figure.axes)}
