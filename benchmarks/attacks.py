"""Attacks against defences: the tables of docs/reliability.md.

    python benchmarks/attacks.py                    # all rates, two seeds: ten CPU minutes
    python benchmarks/attacks.py --partition dirichlet --attacks none --defences mean --seeds 1 2 3 4   # false marks
    python benchmarks/attacks.py --rates mixed --method importance   # unequal rates
    python benchmarks/attacks.py --small            # two attacks, three defences, two rounds

Ten devices learn 600 handwritten digits in 12 rounds with a perceptron; some devices attack in every round and know
what all others send. A cell holds the test accuracy and, for the backdoor, the share of the other classes' images that
the trigger turns into the target class; means over the seeds. The last columns count the updates of hostile devices
that were marked as suspicious or refused under the first defence, in percent, and those of honest devices.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import feddrop
from feddrop.errors import FeddropError
from feddrop.learning.local import call_model
from feddrop.subnets.parameters import load_into
from support.hostile import TARGET, Attack, WithHostile, against, backdoor, flipped, ones, triggered

CONFIG = """
rounds = 12
data = { devices = 10, train_limit = 600 }
model = { name = "mlp", layers = 1, width = 0.5 }
train = { lr = 0.1, batch_size = 16 }
"""
ATTACKS: dict[str, tuple[int, Attack]] = {
    "none": (0, Attack()),
    "2 of 10: backdoor × 6.5": (2, Attack(times=6.5, poison=backdoor)),
    "2 of 10: flipped labels × 6.5": (2, Attack(times=6.5, poison=flipped)),
    "3 of 10: inner product × 2": (3, Attack(times=2.0, forge=against)),
    "4 of 10: inner product × 2": (4, Attack(times=2.0, forge=against)),
    "4 of 10: inner product × 6": (4, Attack(times=6.0, forge=against)),
    "1 of 10: 900,000 everywhere": (1, Attack(times=9e5, forge=ones)),
}
DEFENCES: dict[str, list[str]] = {
    "mean": [],
    "clip": ["server.clip=2"],
    "trimmed": ["server.mean=trimmed", "server.trim=0.3"],
    "median": ["server.mean=median"],
    "krum": ["server.krum=3"],
    "geometric": ["server.mean=geometric"],
    "centered": ["server.mean=centered"],
    "fltrust": ["server.mean=fltrust", "data.validation=0.17"],
    "filter": ["server.filter=true"],
}


RATES = {"mixed": [0, 0, 0.5, 0.5, 0.5, 0.75, 0.75, 0.75, 0.9, 0.9]}
"""Unequal rates by name."""
METHODS = {
    "uniform": "feddrop",
    "importance": "{ name = 'feddrop', draw = 'importance' }",
    "importance²": "{ name = 'feddrop', draw = 'importance', exponent = 2.0 }",
    "fiarse": "fiarse",
}


class Outcome(NamedTuple):
    """The result of a run: accuracy, success of the backdoor, and (marked, all) updates of hostile, honest devices."""

    accuracy: float
    success: float
    hostile: tuple[int, int]
    honest: tuple[int, int]


def attacked(attack: str, defence: str, *more: str) -> Outcome:
    """Run one attack against one defence."""
    config = feddrop.RunConfig.from_toml(CONFIG, [*DEFENCES[defence], *more])
    count, how = ATTACKS[attack]
    hostile, devices, failed = range(0, 2 * count, 2), list[Any](), False
    with tempfile.TemporaryDirectory() as folder:
        executor = lambda task: WithHostile(task, how, hostile)  # noqa: E731
        run = feddrop.Run(config, f"{folder}/run", report=False, executor=executor)
        try:
            for record in run:
                devices += record.devices
        except FeddropError:
            failed = True
    marks = {
        who: [bool(d.suspicious) or not d.usable for d in devices if (d.device in hostile) == who]
        for who in (True, False)
    }
    network, data = run.prepared.model, run.prepared.dataset
    load_into(network, run.params)
    with torch.no_grad():
        right = (call_model(network.eval(), data.test_x).argmax(1) == data.test_y).double().mean()
        others = data.test_y != TARGET
        fooled = (call_model(network, triggered(data.test_x[others])).argmax(1) == TARGET).double().mean()
    found = [(sum(marks[who]), len(marks[who])) for who in (True, False)]
    return Outcome(0.0 if failed else float(right), float(fooled), *found)


def main() -> None:
    """Print one Markdown table per rate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", nargs="+", default=["0", "0.3", "0.5"], help="of all devices, or mixed")
    parser.add_argument("--method", choices=METHODS, default="uniform")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--partition", default="iid", help="iid or dirichlet, with alpha 0.1")
    parser.add_argument("--attacks", nargs="+", default=list(ATTACKS), metavar="NAME", help=f"of {list(ATTACKS)}")
    parser.add_argument("--defences", nargs="+", default=list(DEFENCES), metavar="NAME", help=f"of {list(DEFENCES)}")
    parser.add_argument("--small", action="store_true", help="run quickly; the numbers mean nothing")
    given = parser.parse_args()
    attacks, defences = given.attacks, given.defences
    more = [f"data.partition={given.partition}", f"method={METHODS[given.method]}"]
    if given.small:
        attacks, defences, given.rates, given.seeds = attacks[:2], ["mean", "median", "filter"], ["mixed"], [1]
        more += ["rounds=2", "data.train_limit=100"]
    torch.set_num_threads(1)
    for rate in given.rates:
        print(f"\nRate {rate}, {given.method}, {given.partition} data, seeds {given.seeds}:\n", flush=True)
        head = ["attack", *defences, "marked", "honest marked"]
        print(_row(head), _row(["---"] * len(head)), sep="\n")
        for attack in attacks:
            found = [
                [
                    attacked(attack, defence, f"rate={RATES.get(rate, rate)}", f"seed={seed}", *more)
                    for seed in given.seeds
                ]
                for defence in defences
            ]
            hostile, of, honest, all_ = map(sum, zip(*((*run.hostile, *run.honest) for run in found[0]), strict=True))
            marked = f"{100 * hostile / of:.0f} %" if of else "-"
            print(_row([attack, *(_cell(attack, runs) for runs in found), marked, f"{honest} of {all_}"]), flush=True)


def _cell(attack: str, runs: list[Outcome]) -> str:
    cell = f"{mean(run.accuracy for run in runs):.2f}"
    return cell + (f" / {mean(run.success for run in runs):.2f}" if "backdoor" in attack else "")


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
