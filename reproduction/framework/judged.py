"""The claims with their answers: outcome, counts, condition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from feddrop.comparison import (
    FAILS,
    FEW_SEEDS,
    HOLDS,
    NO,
    NOT_RUN,
    PARTLY,
    REASONS,
    UNDECIDED,
    YES,
    Answer,
    outcome,
)
from reproduction.framework.experiment import Experiment, Page
from reproduction.framework.published import CLAIMS, Claim
from reproduction.framework.verdicts import Verdict

MIXED = "holds in part, fails in part"
MARKS = {HOLDS: "✓", PARTLY: "◐", MIXED: "±", FAILS: "✗", UNDECIDED: "○"}
"""Characters of ordinary fonts: many machines lack coloured ones."""


class Judged(NamedTuple):
    """A claim and the answers of its comparisons."""

    claim: Claim
    answers: tuple[Answer, ...]
    note: str
    condition: str = ""

    @property
    def outcome(self) -> str:
        """Holds, holds in part, undecided or does not hold; what is said to be possible holds if one answer is yes."""
        shown = self.claim.possible and any(answer.says == YES for answer in self.answers)
        return HOLDS if shown else outcome(self.answers)

    @property
    def word(self) -> str:
        """The outcome; of those that hold in part, those with a counterexample are told apart."""
        refuted = self.outcome == PARTLY and any(answer.says == NO for answer in self.answers)
        return MIXED if refuted else self.outcome

    @property
    def shown(self) -> str:
        """The outcome, the answers behind it unless all are the same, and its condition."""
        alike = len({answer.says for answer in self.answers}) == 1 and self.outcome != UNDECIDED
        text = self.word if alike else f"{self.word} ({self.tally or NOT_RUN})"
        return f"{text}; {self.condition}" if self.condition and self.outcome in (HOLDS, PARTLY) else text

    @property
    def tally(self) -> str:
        """How many comparisons give each answer, and the side that too few seeds point to."""
        words = [answer.why or answer.says for answer in self.answers]
        towards = sum(answer.leaning == YES for answer in self.answers)
        more = {FEW_SEEDS: f" (pointing to yes: {towards})"}
        return ", ".join(
            f"{word} {words.count(word)}{more.get(word, '')}" for word in (YES, NO, *REASONS) if word in words
        )


def judge(pages: dict[Experiment, Page]) -> list[Judged]:
    """Collect what these experiments say of the paper's claims."""
    verdicts = [verdict for page in pages.values() for verdict in page.verdicts]
    names = {experiment.name for experiment in pages}
    judged = []
    for claim in CLAIMS:
        if names.intersection(claim.by):
            mine: list[Verdict] = [verdict for verdict in verdicts if verdict.claim == claim.name]
            notes = "; ".join(dict.fromkeys(v.note for v in mine if v.note))
            condition = "; ".join(dict.fromkeys(v.condition for v in mine if v.condition))
            judged.append(Judged(claim, tuple(answer for v in mine for answer in v.answers), notes, condition))
    return judged


def counts(judged: Sequence[Judged]) -> str:
    """Count the claims by outcome, in a sentence each for those of the paper and for ours."""
    sentences = []
    for whose, ours in (("claims of the paper", False), ("questions of ours", True)):
        outcomes = [one.word for one in judged if one.claim.ours is ours]
        if outcomes:
            tally = [_counted(word, outcomes.count(word)) for word in MARKS if word in outcomes]
            sentences.append(f"Of {len(outcomes)} {whose}: {'; '.join(tally)}.")
    return " ".join(sentences)


def _counted(word: str, count: int) -> str:
    """Return how many claims have an outcome, with the verb in the plural where it must be."""
    shown = word if count == 1 else word.replace("holds", "hold").replace("fails", "fail").replace("does not", "do not")
    return f"{MARKS[word]} {count} {shown}"
