"""FIARSE's comparison by size: the page is what the stored runs say."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from feddrop.config import to_table
from reproduction import fiarse
from reproduction.framework.store import Store, key_of

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "reproduction" / "results" / "fiarse"


def put(store: Store, method: str, *accuracies: float) -> None:
    config = fiarse.run_of(method)
    names = ["test_accuracy", *(f"accuracy_at_{rate:g}" for rate in config.eval_rates)]
    series = {name: [None] * (config.rounds - 1) + [value] for name, value in zip(names, accuracies, strict=True)}
    series |= {name: [1e6] * config.rounds for name in ("push_bytes", "pull_bytes")}
    text = json.dumps({"config": to_table(config), "version": "0.3.0", "series": series, "wall_s": 60.0})
    (store.results / f"{key_of(config)}.json").write_text(text)


def test_a_quarter_of_the_devices_has_each_size():
    rates = Counter(fiarse.run_of("FIARSE").rate)
    assert rates == dict.fromkeys((1.0 - size for size in fiarse.SIZES.values()), 25)


def test_methods_are_ranked_by_size_beside_the_published_ranking(tmp_path):
    store = Store(tmp_path, tmp_path / "work")
    put(store, "FIARSE", 0.1, 0.2, 0.3, 0.05)
    put(store, "FedRolex", 0.2, 0.1, 0.25, 0.04)
    text = fiarse.page(store)
    assert "| FIARSE | 10.00 | **20.00** | **30.00** | **5.00** | **16.25** |" in text
    assert "| HeteroFL | not run | not run | not run | not run | not run |" in text
    assert "| 1 | FedRolex > FIARSE | FIARSE > FedRolex > HeteroFL |" in text
    assert "| 1/64 | FIARSE > FedRolex | FIARSE > HeteroFL > FedRolex |" in text
    assert f"| FIARSE | {2 * fiarse.ROUNDS} |" in text


def test_the_committed_page_is_what_the_results_say():
    text = fiarse.page(Store(RESULTS, Path("nowhere")))
    assert text == (ROOT / "docs" / "sizes.md").read_text(encoding="utf-8")
    assert "not run" not in text
