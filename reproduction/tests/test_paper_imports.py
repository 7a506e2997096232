"""The framework does not know the experiments, nothing imports in a circle, and the library does not know either."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): imports(path)
    for path in (ROOT / "reproduction").rglob("*.py")
    if "tests" not in path.parts
}


def test_the_framework_imports_no_experiment():
    for name, names in MODULES.items():
        if name.startswith("reproduction.framework"):
            assert not [one for one in names if one.startswith("reproduction.experiments")], name


def test_no_cycles():
    packages = {name for name in MODULES if any(other.startswith(f"{name}.") for other in MODULES)}
    left = {name: (names & MODULES.keys()) - packages - {name} for name, names in MODULES.items()}
    while left:
        free = [name for name, needed in left.items() if not needed & left.keys()]
        assert free, f"a cycle among {sorted(left)}"
        for name in free:
            del left[name]


def test_the_library_and_its_tests_do_without_the_reproduction():
    for folder in ("src", "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            assert not [name for name in imports(path) if name.split(".")[0] == "reproduction"], path
