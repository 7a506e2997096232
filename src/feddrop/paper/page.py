"""Everything on one page: what was run, ours beside the paper's, and what became of each claim."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from feddrop.files import write_atomically
from feddrop.paper.experiment import Experiment, Page, markdown_table
from feddrop.paper.published import CLAIMS, NOT_COVERED, Claim
from feddrop.paper.scales import Scale
from feddrop.paper.verdicts import NO, UNDECIDED, YES, Answer, Point, Verdict, sum_up, verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TESTED = "property tests, see [the allocator](allocate.md)"
_ALLOCATOR = (
    verdict("convex", [Point(at="midpoints of random pairs of feasible points", certain=True)], _TESTED),
    verdict(
        "channel-rate",
        [
            Point(at="two devices that differ in both links alike", certain=True),
            Point(at="a device whose links both improve", certain=True),
        ],
        f"{_TESTED}; if the downlink alone improves, the share may grow",
    ),
    verdict(
        "share-opposite",
        [
            Point(at="a device whose costs stay the same", certain=True),
            Point(at="two devices that differ in their data", certain=True),
            Point(at="two devices that differ in their channel", certain=False),
        ],
        f"{_TESTED}; a worse channel gets a larger share and a higher rate, as the claim before this one says",
    ),
    verdict("cpu-not-monotone", [Point(at="the paper's cell, where energy binds", certain=True)], _TESTED),
    verdict(
        "complexity",
        [
            Point(at="a pass of the loop", certain=True),
            Point(at="the whole loop: nothing bounds the number of passes", certain=False),
        ],
        "the exact solver needs a handful of O(K) passes",
    ),
)
"""Claims about the allocator are settled by tests/test_allocate_claims.py and tests/test_paper.py, not by training."""

_RULE = (
    "**How claims are judged.** Runs that are compared share a seed; every seed gives one difference, positive as the "
    "claim says. With mean d and standard error e over the seeds (spread pooled over the points of a claim that are of "
    "one kind), the margin is m = t·e, t the two-sided 95 % point of Student's distribution. A point says *yes* if d > "
    "m, *no* if d < -m, and is *undecided* otherwise, and always with fewer than three seeds. Where two things are to "
    "be alike, yes means |d| + m within the stated tolerance. A claim *holds* if every point says yes, *does not hold* "
    "if a point says no and none yes, *holds in part* if some but not all say yes, and is *undecided* otherwise. The "
    "number of points is not corrected for. What has no chance in it, such as a count of bytes, says yes or no for "
    "certain.\n"
)


class Judged(NamedTuple):
    """A claim, and what its points say."""

    claim: Claim
    answers: tuple[Answer, ...]
    note: str

    @property
    def outcome(self) -> str:
        """Holds, holds in part, undecided or does not hold."""
        return sum_up([answer.says for answer in self.answers])

    @property
    def tally(self) -> str:
        """How many points say what, and where too few seeds point to."""
        says = [answer.says for answer in self.answers]
        leaning = [answer.leaning for answer in self.answers if answer.leaning]
        towards = sum(text.endswith(YES) for text in leaning)
        counts = [f"{word} {says.count(word)}" for word in (YES, NO, UNDECIDED) if word in says]
        text = f"{', '.join(counts)} of {len(says)}"
        return text + f"; fewer than three seeds at {len(leaning)}, pointing to yes at {towards}" * bool(leaning)


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
        "The paper prints numbers in its table alone; our figures are held to what its text says of its own.\n",
        f"{scale.note}\n",
        *_claims(judged),
        *(f"\n## {experiment.title} ({experiment.where})\n\n{_images(page)}" for experiment, page in pages.items()),
    ]
    for page in pages.values():
        for name, figure in _drawn(page).items():
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


def _claims(judged: Sequence[Judged]) -> list[str]:
    if not judged:
        return []
    rows = [[one.claim.text, one.claim.where, f"**{one.outcome}**", one.tally, one.note] for one in judged]
    seen: set[Point] = set()
    evidence = []
    for one in judged:
        for answer in one.answers:
            if answer.point.certain is None and answer.point not in seen:  # a claim may be another in other words
                seen.add(answer.point)
                evidence.append([one.claim.name, answer.point.at, *_numbers(answer), answer.leaning or answer.says])
    parts = [
        "## What became of its claims\n",
        _RULE,
        markdown_table(["claim", "where", "outcome", "points", "note"], rows) + "\n",
    ]
    if evidence:
        header = ["claim", "point", "difference", "error", "margin", "seeds", "says"]
        parts += ["### The evidence, point by point\n", markdown_table(header, evidence) + "\n"]
    return [*parts, "**Not covered.** " + " ".join(NOT_COVERED) + "\n"]


def _numbers(answer: Answer) -> list[str]:
    unit = {"points": "", "s": " s", "MB": " MB"}.get(answer.point.unit, f" {answer.point.unit}")
    shown = [f"{value:{sign}.2f}" for value, sign in ((answer.mean, "+"), (answer.error, ""), (answer.margin, ""))]
    known = [
        "" if math.isnan(v) else text for v, text in zip((answer.mean, answer.error, answer.margin), shown, strict=True)
    ]
    return [known[0] + unit * bool(known[0]), *known[1:], str(answer.seeds)]


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
