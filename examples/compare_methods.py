"""All methods of the package on the digits, on equal terms: the table of docs/methods.md.

    python examples/compare_methods.py [FOLDER] [--rounds 20] [--seeds 2]

Runs are kept in FOLDER (runs/methods); one that is finished is not run again, one that was stopped goes on.
"""

import argparse
from pathlib import Path
from statistics import mean

import feddrop

MIXED = [0.0, 0.0, 0.5, 0.5, 0.5, 0.75, 0.75, 0.75, 0.9, 0.9]
ROWS = {  # what is shown: the method, whether its rate may be 0.5 for all, and whether rates may be mixed
    "FedAvg": ('"fedavg"', None, False),
    "federated dropout, weights": ('"feddrop"', 0.5, True),
    "federated dropout, holders": ('{ name = "feddrop", rule = "holders" }', 0.5, True),
    "federated dropout, units": ('{ name = "feddrop", level = "unit" }', 0.5, True),
    "HeteroFL": ('"heterofl"', 0.5, True),
    "FedRolex": ('"fedrolex"', 0.5, True),
    "FIARSE": ('"fiarse"', 0.5, True),
    "FIARSE, by layer": ('{ name = "fiarse", threshold = "layer" }', 0.5, True),
    "FedDST": ('{ name = "feddst", alpha = 0.1, readjust_every = 5 }', 0.5, False),
    "PruneFL": ('{ name = "prunefl", first_rounds = 5, adjust_every = 5, max_density = 0.5 }', None, False),
    "FjORD": ('"fjord"', False, True),
    "FjORD, distilled": ('{ name = "fjord", distill = true }', False, True),
}


def outcome(method: str, rate: float | list[float] | None, seed: int, rounds: int, folder: Path) -> tuple[float, float]:
    """Return the mean test accuracy of the last five rounds in %, and the traffic of the run in MB."""
    given = "" if rate is None else f"rate = {rate}\n"
    config = feddrop.RunConfig.from_toml(
        f"seed = {seed}\nrounds = {rounds}\n{given}method = {method}\n"
        'data = { name = "digits", devices = 10, partition = "dirichlet", alpha = 0.5 }\nmodel = { name = "mlp" }'
    )
    done = (folder / "run.json").exists()
    records = feddrop.resume(folder) if done else feddrop.run(config, folder)
    accuracy = 100.0 * mean(record.test_accuracy or 0.0 for record in records[-5:])
    return accuracy, sum(record.push_bytes + record.pull_bytes for record in records) / 1e6


def main() -> None:
    """Run what has not been run yet, and print the table."""
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
            found = [outcome(method, rate, s, args.rounds, Path(f"{place}-{s}")) for s in range(args.seeds)]
            cells += [", ".join(f"{accuracy:.1f}" for accuracy, _ in found), f"{mean(mb for _, mb in found):.1f}"]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
