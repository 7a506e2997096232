# Two commands do everything: `make run` and `make test`. The rest is for those who work on the package.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: help run test check paper bench soak flower ray docs clean
help:  ## Show this list.
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt "torch==2.13.0"
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	@touch $@

run: $(READY)  ## Train on the built-in digits by federated dropout over a cell; open the report it names.
	$(BIN)/feddrop run examples/digits.toml

check: $(READY)  ## Lint, types, import rules.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest tests/test_imports.py

test: check  ## Everything CI runs: check, then all tests.
	$(BIN)/pytest --numprocesses 3 --dist worksteal

paper: $(READY)  ## Reproduce the paper: train the missing runs (hours), rewrite docs/paper.md and docs/findings.md.
	$(BIN)/python -m reproduction all --out docs

bench: $(READY)  ## Speed, as ratios to a peer or a physical limit measured in the same run.
	$(BIN)/python benchmarks/run_all.py

soak: $(READY)  ## Kills, damaged frames and many rounds, for an hour or more; prints the table of docs/reliability.md.
	$(BIN)/python benchmarks/soak.py

flower: $(READY)  ## Train over real Flower nodes on this machine, with TLS and keys; compare with one process.
	$(BIN)/python examples/flower/federation.py --out runs/flower-$$(date +%s)

ray: $(READY)  ## Train over a Ray cluster of two nodes on loopback; say whether the parameters equal those of serial.
	$(BIN)/python examples/two_nodes.py

docs: $(READY)  ## Build the documentation into site/.
	$(BIN)/mkdocs build --strict

clean:  ## Remove what the other targets made.
	rm -rf $(VENV) site build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
