"""Imports go downward only, and the command line starts without torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import feddrop

ROOT = Path(feddrop.__file__).parent
# Room -> what it must never import. A room is a file or a folder right below feddrop/.
FORBIDDEN = {
    "errors": {"torch", "numpy", "feddrop"},
    "seeds": {"torch", "feddrop"},
    "radio": {"torch", "feddrop.subnets", "feddrop.methods", "feddrop.rounds", "feddrop.runs", "feddrop.report"},
    "allocation": {"torch", "feddrop.radio", "feddrop.subnets", "feddrop.methods", "feddrop.runs", "feddrop.report"},
    "subnets": {"feddrop.method", "feddrop.methods", "feddrop.rounds", "feddrop.executors", "feddrop.runs"},
    "models": {"feddrop.subnets", "feddrop.method", "feddrop.rounds", "feddrop.runs"},
    "data": {"feddrop.subnets", "feddrop.method", "feddrop.rounds", "feddrop.runs"},
    "params": {"feddrop.subnets", "feddrop.method", "feddrop.rounds", "feddrop.runs"},
    "aggregation": {"feddrop.method", "feddrop.methods", "feddrop.rounds", "feddrop.executors", "feddrop.runs"},
    "method": {"feddrop.methods", "feddrop.rounds", "feddrop.executors", "feddrop.runs"},
    "training": {"feddrop.methods", "feddrop.rounds", "feddrop.executors", "feddrop.runs"},
    "methods": {"feddrop.methods", "feddrop.rounds", "feddrop.executors", "feddrop.runs", "feddrop.report"},
    "config": {"feddrop.rounds", "feddrop.executors", "feddrop.control", "feddrop.runs", "feddrop.report"},
    "theory": {"feddrop.methods", "feddrop.rounds", "feddrop.executors", "feddrop.control", "feddrop.runs"},
    "control": {"feddrop.methods", "feddrop.executors", "feddrop.runs", "feddrop.report"},
    "runs": {"feddrop.theory", "feddrop.terminal"},
    "rounds": {"feddrop.methods", "feddrop.executors", "feddrop.runs", "feddrop.report"},
    "executors": {"feddrop.methods", "feddrop.runs", "feddrop.report"},
    "report": {"torch", "feddrop.rounds", "feddrop.executors", "feddrop.runs", "feddrop.methods"},
}
# Package -> the only rooms that may import it.
ONLY = {
    "cyclopts": {"terminal"},
    "flwr": {"flower"},
    "matplotlib": {"report", "paper", "theory"},
    "feddrop.terminal": {"terminal", "__main__"},
    "feddrop.paper": {"terminal", "paper"},
}


def modules() -> list[tuple[str, str, set[str]]]:
    """Every module of the package: its room, its name, and what it imports anywhere (type checking aside)."""
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        tree = ast.parse(path.read_text())
        skipped = {
            id(inner)
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
            for inner in ast.walk(node)
        }
        names: set[str] = set()
        for node in ast.walk(tree):
            if id(node) in skipped:
                continue
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                assert node.level == 0, f"{path}: write imports from the top"
                names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        found.append((parts[0], ".".join(parts), names))
    return found


def under(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


@pytest.mark.parametrize(
    ("room", "module", "names"), modules(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_imports_go_downward(room, module, names):
    for name in names:
        for package in FORBIDDEN.get(room, ()):
            own = package == f"feddrop.{room}" and module.endswith("__init__")
            allowed = package == "feddrop" and (under(name, f"feddrop.{room}") or under(name, "feddrop.errors"))
            assert own or allowed or not under(name, package), f"{module} must not import {name}"
        for package, owners in ONLY.items():
            if under(name, package):
                assert room in owners, f"only {owners} may import {package}, not {module}"


def test_every_room_with_a_rule_exists():
    rooms = {room for room, _, _ in modules()}
    assert set(FORBIDDEN) <= rooms


def loaded_after(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint('\\n'.join(sys.modules))"
    return set(
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    )


def test_import_and_command_line_load_no_torch():
    assert not {"torch", "numpy", "matplotlib"} & loaded_after("import feddrop, feddrop.terminal")


def test_radio_and_allocation_load_no_torch():
    assert "torch" not in loaded_after("import feddrop.radio, feddrop.allocation, feddrop.seeds")


def test_public_names():
    assert feddrop.__all__ == sorted(feddrop.__all__)
    assert set(feddrop.__all__) == set(feddrop._HOMES)
    for name in feddrop.__all__:
        assert getattr(feddrop, name).__name__ == name
    with pytest.raises(AttributeError, match="nothing"):
        feddrop.nothing  # noqa: B018
