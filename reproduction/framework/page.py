"""The page: our numbers beside those of the paper, and the outcome of every claim."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from feddrop.comparison import (
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
            Comparison("two devices whose links differ by the same factor", certain=True),
            Comparison("one device whose links both improve", certain=True),
        ],
        f"{_TESTED}; if only the downlink improves, the share may grow",
    ),
    verdict(
        "share-opposite",
        [
            Comparison("one device with constant costs", certain=True),
            Comparison("two devices that differ in their data", certain=True),
            Comparison("two devices that differ in their channel", certain=False),
        ],
        f"{_TESTED}; a worse channel gets a larger share and a higher rate, as the previous claim says",
    ),
    verdict("cpu-not-monotone", [Comparison("the paper's cell, where energy binds", certain=True)], _TESTED),
    verdict(
        "complexity",
        [
            Comparison("one pass of the loop", certain=True),
            Comparison("the entire loop: the number of passes is unbounded", certain=False),
        ],
        "the exact solver needs a handful of O(K) passes",
    ),
)
"""Claims on the allocator, settled by tests/allocation/test_allocate_claims.py and reproduction/tests."""

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
    "A claim *holds* if every comparison says yes, *does not hold* if at least one says no and none says yes, *holds "
    "in part* if some but not all say yes, and is *undecided* otherwise. The reason is given too: *within the noise* "
    "with three or more seeds, *few seeds* with fewer, *not reached* if fewer than three seeds reached the level that "
    "is compared, *not run*. Comparisons without randomness, such as a count of bytes, say yes or no with certainty; "
    "estimates from many masks have a margin of twice their standard error. There is no correction for the number of "
    "comparisons: "
)
MARKS = {HOLDS: "🟢", PARTLY: "🟡", FAILS: "🔴", UNDECIDED: "⚪"}
_FIGURE = "claims.png"
EVIDENCE = "The evidence, comparison by comparison"


class Judged(NamedTuple):
    """A claim and the answers of its comparisons."""

    claim: Claim
    answers: tuple[Answer, ...]
    note: str
    condition: str = ""

    @property
    def outcome(self) -> str:
        """Holds, holds in part, undecided or does not hold."""
        return outcome(self.answers)

    @property
    def shown(self) -> str:
        """The outcome with its condition, or why it is undecided or holds only in part although no answer is no."""
        why, text = reason(self.answers), self.outcome
        if self.outcome == PARTLY and NO not in [answer.says for answer in self.answers]:
            whys = {answer.why for answer in self.answers}
            text = f"{PARTLY}, the rest {', '.join(word for word in REASONS if word in whys)}"
        if self.condition and self.outcome in (HOLDS, PARTLY):
            text = f"{text}; {self.condition}"
        return f"{text}: {why}" if why else text

    @property
    def tally(self) -> str:
        """How many comparisons give each answer, and the side that too few seeds point to."""
        words = [answer.why or answer.says for answer in self.answers]
        towards = sum(answer.leaning == YES for answer in self.answers)
        more = {FEW_SEEDS: f" (pointing to yes: {towards})"}
        return ", ".join(
            f"{word} {words.count(word)}{more.get(word, '')}" for word in (YES, NO, *REASONS) if word in words
        )


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
        f"*Federated Dropout: Convergence Analysis and Resource Allocation*, at the scale `{scale.name}`, produced by "
        f"`{command} --scale {scale.name}`. {about}\n",
        f"The paper prints numbers only in its table; our figures are compared with what its text says about its own. "
        f"{scale.note}\n",
        *_claims(judged),
        *(f"\n## {experiment.title} ({experiment.where})\n\n{_images(page)}" for experiment, page in pages.items()),
        *([f"\n## The stored runs\n\n{stored}"] if stored else []),
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
    """Collect what these experiments say of the paper's claims; claims on the allocator are added if all are run."""
    verdicts = [*_ALLOCATOR, *(verdict for page in pages.values() for verdict in page.verdicts)]
    names = {experiment.name for experiment in pages}
    everything = all(name in names for claim in CLAIMS for name in claim.by)
    judged = []
    for claim in CLAIMS:
        if names.intersection(claim.by) or (everything and not claim.by):
            mine: list[Verdict] = [verdict for verdict in verdicts if verdict.claim == claim.name]
            notes = "; ".join(dict.fromkeys(v.note for v in mine if v.note))
            condition = "; ".join(dict.fromkeys(v.condition for v in mine if v.condition))
            judged.append(Judged(claim, tuple(answer for v in mine for answer in v.answers), notes, condition))
    return judged


def counts(judged: Sequence[Judged]) -> str:
    """Count the claims by outcome, in a sentence each for those of the paper and for ours."""
    sentences = []
    for whose, ours in (("claims of the paper", False), ("questions of ours", True)):
        outcomes = [one.outcome for one in judged if one.claim.ours is ours]
        if outcomes:
            tally = ", ".join(f"{MARKS[word]} {word} {outcomes.count(word)}" for word in MARKS)
            sentences.append(f"Of {len(outcomes)} {whose}: {tally}.")
    return " ".join(sentences)


def _claims(judged: Sequence[Judged]) -> list[str]:
    if not judged:
        return []
    header = ["claim", "where", "outcome", "comparisons", "note"]
    return [
        "## Its claims\n",
        f"{counts(judged)}\n",
        "Each dot is one comparison: its difference in margins, positive if it supports the claim. Grey dots are "
        "within the noise; squares involve no randomness.\n",
        f"![Every comparison of every claim](img/paper-{_FIGURE})\n",
        markdown_table(header, _rows(judged, ours=False)) + "\n",
        "Not claimed by the paper; asked by us where it leaves a gap:\n",
        markdown_table(header, _rows(judged, ours=True)) + "\n",
        "### How claims are judged\n",
        f"{_RULE}{_by_chance(judged)}\n",
        "### What is not covered\n",
        " ".join(NOT_COVERED) + "\n",
    ]


def _rows(judged: Sequence[Judged], *, ours: bool) -> list[list[str]]:
    return [
        [one.claim.text, one.claim.where, f"{MARKS[one.outcome]} **{one.shown}**", one.tally, one.note]
        for one in judged
        if one.claim.ours is ours
    ]


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
    sure, asked = says.count(YES) + says.count(NO), says.count(YES) + says.count(NO) + says.count(IN_NOISE)
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
    return [f"\n## {EVIDENCE}\n", text, markdown_table(header, rows) + "\n"]


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
