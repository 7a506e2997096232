"""The published numbers and claims of the paper."""

from __future__ import annotations

from typing import NamedTuple

RATES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4)

# Table "Accuracy of FedDrop and other methods given the same sparsity": test accuracy in %, by rate.
TABLE: dict[tuple[str, str, str], tuple[float | None, ...]] = {
    ("lenet", "iid", "feddrop"): (26.17, 25.70, 24.83, 24.69, 24.33, 22.32, 20.94, 20.52, 19.80),
    ("lenet", "dirichlet", "feddst"): (None, 10.70, 14.32, 13.09, 11.66, 13.85, 13.39, 11.60, 14.20),
    ("lenet", "dirichlet", "feddrop"): (25.19, 25.10, 24.03, 23.40, 22.57, 21.76, 20.62, 19.29, 19.09),
    ("alexnet", "iid", "feddrop"): (26.03, 30.87, 32.59, 33.42, 32.88, 32.86, 31.62, 30.97, 30.41),
    ("alexnet", "dirichlet", "feddst"): (None, 32.60, 29.74, 32.68, 31.69, 30.72, 32.24, 31.10, 31.72),
    ("alexnet", "dirichlet", "feddrop"): (25.91, 29.11, 32.16, 32.77, 32.15, 31.88, 31.50, 30.66, 30.20),
}


class Claim(NamedTuple):
    """A claim that can be measured: the paper's, or ours.

    Attributes:
        name: short name.
        text: the claim.
        where: place in the paper.
        by: the experiments that judge it.
        ours: whether it is our own question, which the paper does not claim; counted separately.
        possible: whether it says that something can be so, which one yes shows.
    """

    name: str
    text: str
    where: str
    by: tuple[str, ...]
    ours: bool = False
    possible: bool = False


CLAIMS = (
    Claim(
        "underfit-falls",
        "Underfitting: accuracy falls with the rate, for IID and non-IID data.",
        "Table II",
        ("accuracy",),
    ),
    Claim(
        "overfit-peaks", "Overfitting: accuracy at rate 0.15 is higher than at 0 and at 0.4.", "Table II", ("accuracy",)
    ),
    Claim(
        "overfit-all",
        "Overfitting, all layers dropped as in the paper: accuracy is higher at rate 0.2 than at 0.",
        "Table II",
        ("explain",),
    ),
    Claim(
        "beats-feddst", "LeNet, non-IID: FedDrop is more accurate than FedDST at every rate.", "Table II", ("accuracy",)
    ),
    Claim(
        "feddst-alexnet",
        "AlexNet, non-IID: FedDrop is more accurate than FedDST at rates 0.1 to 0.25, and less from 0.3 on.",
        "Table II",
        ("accuracy",),
    ),
    Claim("rounds-latency", "Fewer rounds to converge as the per-round latency grows.", "Fig. 3", ("rounds-latency",)),
    Claim("rounds-bandwidth", "Fewer rounds to converge as the bandwidth grows.", "Fig. 4", ("rounds-bandwidth",)),
    Claim(
        "fewer-rounds",
        "The proposed scheme converges in fewer rounds than the bandwidth-aware one.",
        "Figs. 3, 4",
        ("rounds-latency", "rounds-bandwidth"),
    ),
    Claim(
        "gap-narrows",
        "The gap to the scheme without dropout narrows with more resources.",
        "Figs. 3, 4",
        ("rounds-latency", "rounds-bandwidth"),
    ),
    Claim(
        "two-phases",
        "Overfitting: two phases as the latency grows: rounds fall steeply at first, then the network overfits.",
        "Fig. 3b",
        ("rounds-latency",),
    ),
    Claim(
        "less-time",
        "More dropout can shorten the time to converge: shorter rounds outweigh their larger number.",
        "Sec. III",
        ("rounds-latency",),
        possible=True,
    ),
    Claim(
        "less-overhead",
        "The proposed scheme has a lower communication overhead than the bandwidth-aware one and than no dropout.",
        "Sec. VI",
        ("rounds-latency",),
    ),
    Claim(
        "less-compute",
        "The proposed scheme has a lower computational overhead than the bandwidth-aware one and than no dropout.",
        "Sec. VI",
        ("rounds-latency",),
    ),
    Claim(
        "accuracy-scheme",
        "The proposed scheme is more accurate than the bandwidth-aware one.",
        "Fig. 5",
        ("accuracy-latency",),
    ),
    Claim(
        "accuracy-overfit",
        "Overfitting: the proposed scheme is more accurate than the one without dropout.",
        "Fig. 5b",
        ("accuracy-latency",),
    ),
    Claim(
        "accuracy-whole",
        "The proposed scheme is more accurate than the one without dropout in both scenarios.",
        "Sec. VI",
        ("accuracy-latency",),
    ),
    Claim("accuracy-grows", "Accuracy grows with the per-round latency.", "Fig. 5", ("accuracy-latency",)),
    Claim("accuracy-bandwidth", "Accuracy grows with the bandwidth.", "Sec. I", ("accuracy-latency",)),
    Claim(
        "gain-grows",
        "The gain over the bandwidth-aware scheme grows with the latency.",
        "Fig. 5",
        ("accuracy-latency",),
    ),
    Claim(
        "loose-equal",
        "Under a loose deadline both schemes are almost equally accurate, since both drop almost nothing.",
        "Fig. 5",
        ("accuracy-latency",),
    ),
    Claim("iid-above", "Dynamic cell: accuracy is higher with IID than with non-IID data.", "Fig. 6", ("dynamic",)),
    Claim("iid-faster", "Dynamic cell: non-IID data need more rounds for the same accuracy.", "Fig. 6", ("dynamic",)),
    Claim("iid-gap", "Dynamic cell: the gap between IID and non-IID grows with resources.", "Fig. 6", ("dynamic",)),
    Claim(
        "dynamic-grows",
        "Dynamic cell: accuracy grows with the per-round latency, for IID and non-IID data.",
        "Sec. I, Fig. 6",
        ("dynamic",),
    ),
    Claim("algorithm-optimal", "Algorithm 1 finds the optimum, even if energy binds.", "Sec. IV", ("energy",)),
    Claim(
        "weak-take-part",
        "Devices too weak to take part otherwise can take part thanks to dropout.",
        "Sec. III",
        ("weak-devices",),
    ),
    Claim("overhead", "At equal sparsity FedDrop sends less than PruneFL and FedDST.", "Remark 1", ("overhead",)),
    Claim("unbiased", "A subnet's gradient is approximately unbiased.", "Lemma 1", ("unbiased",)),
    Claim("variance-bound", "The variance of that gradient is below (AG)² γ/(1-γ).", "Lemma 1", ("theory",)),
    Claim("variance-law", "The variance of that gradient is proportional to γ/(1-γ).", "Sec. I, Lemma 1", ("theory",)),
    Claim("bound-holds", "The loss changes by at most the one-round bound.", "Lemma 2", ("theory",)),
    Claim("slower-with-rate", "A larger rate means slower convergence.", "Sec. I, Theorem 1", ("theory",)),
    Claim(
        "theorem-bound",
        "With η = 1/(3·√T·L), the mean of ‖g‖² over T rounds is at most the bound.",
        "Theorem 1",
        ("theorem",),
    ),
    Claim(
        "theorem-rounds",
        "With η = 1/(3·√T·L), the mean of ‖g‖² over T rounds falls as T grows.",
        "Theorem 1",
        ("theorem",),
    ),
    Claim(
        "theorem-rate",
        "With η = 1/(3·√T·L), the mean of ‖g‖² over T rounds grows with the rate.",
        "Theorem 1",
        ("theorem",),
    ),
    Claim("large-rates", "Networks still converge at large rates.", "Footnote 1", ("large-rates",)),
    Claim("convex", "P2 is convex in x = √(1-γ) and ρ.", "Lemma 3", ("allocator",)),
    Claim("not-convex", "P1 is not convex in γ and ρ.", "Sec. IV", ("allocator",)),
    Claim(
        "channel-rate",
        "A better channel, uplink and downlink, means a lower rate and a smaller share.",
        "Sec. IV",
        ("allocator",),
    ),
    Claim("share-opposite", "Share and rate move in opposite directions.", "Sec. IV", ("allocator",)),
    Claim(
        "resources-rate", "A longer latency or a wider band lowers the rates of all devices.", "Sec. I", ("allocator",)
    ),
    Claim("cpu-not-monotone", "The rate is not monotone in the CPU speed.", "Sec. IV", ("allocator",)),
    Claim("complexity", "Algorithm 1 costs O(K²).", "Sec. IV", ("allocator",)),
    Claim(
        "overfit-all-layers",
        "Overfitting, all layers dropped as in the paper, but ten local epochs: accuracy is higher at 0.2 than at 0.",
        "Table II",
        ("explain",),
        ours=True,
    ),
    Claim(
        "smaller-theta",
        "The proposed scheme is also more accurate if random shares have a largest rate θ of 0.5 or 0.7, not 0.9.",
        "C4, Fig. 5",
        ("accuracy-latency",),
        ours=True,
    ),
    Claim(
        "equal-split",
        "The proposed scheme is more accurate than an equal split of the band.",
        "Fig. 5",
        ("accuracy-latency",),
        ours=True,
    ),
    Claim(
        "energy-scheme",
        "If energy binds too, the proposed scheme is more accurate than random and equal shares.",
        "C2, Sec. III",
        ("energy",),
        ours=True,
    ),
    Claim(
        "weak-devices",
        "Weak devices that take part contribute: accuracy is higher than if they are left out.",
        "Sec. III",
        ("weak-devices",),
        ours=True,
    ),
    Claim(
        "norm-falls",
        "At a constant learning rate, ‖g‖² falls during a run, with dropout too.",
        "Theorem 1",
        ("gradient-norm",),
        ours=True,
    ),
    Claim(
        "norm-rate",
        "At a constant learning rate, ‖g‖² is larger at a larger rate.",
        "Theorem 1",
        ("gradient-norm",),
        ours=True,
    ),
    Claim(
        "theta",
        "The allocator can use θ, the largest rate at which the one-round bound guarantees a lower loss.",
        "C4, Lemma 2",
        ("theory",),
        ours=True,
    ),
    Claim(
        "objective",
        "The mean of Σ w/(1-γ), which the allocator minimises, determines the cost of dropout, not the mean rate.",
        "Theorem 1, Sec. IV",
        ("objective",),
        ours=True,
    ),
)

NOT_COVERED = (
    "AlexNet at full size on all images, as in the paper, needs the scale `paper`. PruneFL is not trained; only its "
    "traffic is counted. AlexNet is charged for its measured frames, not for Q = 256 bits per parameter. No run takes "
    "the noise literally, as a variance. The literal aggregation, rule `model`, is shown but decides no claim. "
    "FedDST is trained with the learning rate that was chosen without dropout; runs with others, one seed each, are in "
    "the last section, as far as they were made.",
)
