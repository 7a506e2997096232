"""Everything on one page: what was run, ours beside the paper's, and what became of each claim."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from feddrop.files import write_atomically
from feddrop.paper.experiment import HOLDS, OPEN, PARTLY, Experiment, Page, Verdict, markdown_table
from feddrop.paper.published import CLAIMS, Claim
from feddrop.paper.scales import Scale

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Claims about the allocator are settled by tests/test_allocate_claims.py, not by training.
_TESTED = "property tests, see [the allocator](allocate.md)"
_ALLOCATOR = (
    Verdict("channel-rate", f"{_TESTED}: not if only one link improves", PARTLY),
    Verdict("share-opposite", f"{_TESTED}: a worse channel gets a larger share and a higher rate", PARTLY),
    Verdict("cpu-not-monotone", f"{_TESTED}: when energy binds", HOLDS),
    Verdict(
        "complexity", "a pass is O(K), their number not bounded; the exact solver: a handful of O(K) passes", PARTLY
    ),
)


class Judged(NamedTuple):
    """A claim, what we measured, and what became of it."""

    claim: Claim
    measured: str
    outcome: str


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
            mine = [verdict for verdict in verdicts if verdict.claim == claim.name]
            measured = "; ".join(v.measured for v in mine if v.measured and v.outcome != OPEN)
            judged.append(Judged(claim, measured, "; ".join(dict.fromkeys(v.outcome for v in mine)) or OPEN))
    return judged


def _claims(judged: Sequence[Judged]) -> list[str]:
    rows = [[one.claim.text, one.claim.where, one.measured, one.outcome] for one in judged]
    table = markdown_table(["claim", "where", "what we measured", "outcome"], rows)
    return ["## What became of its claims\n", table + "\n"] if judged else []


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
