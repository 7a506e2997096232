"""Compare all methods on the digits under equal conditions: the table of docs/methods.md.

    python examples/compare_methods.py [FOLDER] [--rounds 20] [--seeds 2]

Runs are kept in FOLDER (runs/methods): finished ones are reused, stopped ones are resumed.
"""

import argparse
from pathlib import Path
from statistics import mean
from typing import Any

import feddrop

MIXED = (0.0, 0.0, 0.5, 0.5, 0.5, 0.75, 0.75, 0.75, 0.9, 0.9)
ROWS = {  # name: the method, the common rate (None: the method has none; False: skip), whether rates may be mixed
    "FedAvg": (feddrop.FedAvg(), None, False),
    "federated dropout, weights": (feddrop.FedDrop(), 0.5, True),
    "federated dropout, holders": (feddrop.FedDrop(rule="holders"), 0.5, True),
    "federated dropout, units": (feddrop.FedDrop(level="unit"), 0.5, True),
    "HeteroFL": (feddrop.HeteroFL(), 0.5, True),
    "FedRolex": (feddrop.FedRolex(), 0.5, True),
    "FIARSE": (feddrop.FIARSE(), 0.5, True),
    "FIARSE, by layer": (feddrop.FIARSE(threshold="layer"), 0.5, True),
    "FedDST": (feddrop.FedDST(alpha=0.1, readjust_every=5), 0.5, False),
    "PruneFL": (feddrop.PruneFL(first_rounds=5, adjust_every=5, max_density=0.5), None, False),
    "FedDD": (feddrop.FedDD(), 0.5, True),
    "magnitude pruning": (feddrop.Pruning(), 0.5, True),
    "Caldas": (feddrop.Caldas(), 0.5, True),
    "Wen": (feddrop.Wen(), 0.5, True),
    "PerFedMask": (feddrop.PerFedMask(), 0.5, True),
    "FedRTS": (feddrop.FedRTS(adjust_every=5), 0.5, False),
    "FjORD": (feddrop.FjORD(), False, True),
    "FjORD, distilled": (feddrop.FjORD(distill=True), False, True),
}


def outcome(folder: Path, **settings: Any) -> tuple[float, float]:
    """Return the mean test accuracy of the last five rounds in %, and the traffic of the run in MB."""
    data = feddrop.Data("digits", devices=10, partition="dirichlet", alpha=0.5)
    config = feddrop.RunConfig(data=data, model=feddrop.Model("mlp"), **settings)
    done = (folder / "run.json").exists()
    records = feddrop.resume(folder) if done else feddrop.run(config, folder)
    accuracy = 100.0 * mean(record.test_accuracy or 0.0 for record in records[-5:])
    return accuracy, sum(record.push_bytes + record.pull_bytes for record in records) / 1e6


def main() -> None:
    """Run everything that is not finished yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", default="runs/methods", type=Path)
    parser.add_argument("--rounds", default=20, type=int)
    parser.add_argument("--seeds", default=2, type=int)
    args = parser.parse_args()
    print("| method | all devices at 0.5 | MB | mixed rates | MB |\n|---|---|---|---|---|")
    for name, (method, one, mixes) in ROWS.items():
        cells = []
        for label, rate in (("one", one), ("mixed", MIXED if mixes else False)):
            if rate is False:
                cells += ["—", "—"]
                continue
            place = args.folder / f"{name.replace(', ', '-').replace(' ', '-')}-{label}"
            found = [
                outcome(Path(f"{place}-{seed}"), method=method, rate=rate, rounds=args.rounds, seed=seed)
                for seed in range(args.seeds)
            ]
            cells += [", ".join(f"{accuracy:.1f}" for accuracy, _ in found), f"{mean(mb for _, mb in found):.1f}"]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
