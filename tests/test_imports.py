"""Folders import only those before them in one list, and the command line starts without torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import feddrop

ROOT = Path(feddrop.__file__).parent
TESTS = Path(__file__).parent
# Folders and files right below feddrop/, in import order: each imports itself and those before it.
ORDER = (
    *("errors", "seeds", "config", "allocation", "radio", "schemes", "subnets", "wire", "models", "data", "learning"),
    *("methods", "storage", "comparison", "report", "executors", "simulation", "flower", "explore", "sweeps", "theory"),
    *("cli", "__main__"),
)
# Folders that import neither package, directly or through others.
WITHOUT = {
    "errors": {"numpy", "torch"},
    "seeds": {"torch"},
    "config": {"numpy", "torch"},
    "allocation": {"torch"},
    "radio": {"torch"},
    "schemes": {"torch"},
    "report": {"torch"},
    "explore": {"torch"},
}
# Package -> the only folders that may import it.
ONLY = {
    "cyclopts": {"cli"},
    "flwr": {"flower"},
    "ray": {"executors"},
    "matplotlib": {"report", "theory"},
    "reproduction": set(),
}


def modules() -> list[tuple[str, str, set[str]]]:
    """Every module of the package: its folder, its name, and all its imports but those for type checking."""
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found.append((parts[0], ".".join(parts), imports_of(path)))
    return found


def imports_of(path: Path) -> set[str]:
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
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: use absolute imports"
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            names |= {name if is_module(name) else str(node.module) for name in full}
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "import_module":
            names |= {str(given.value) for given in node.args[:1] if isinstance(given, ast.Constant)}
    return names


def is_module(name: str) -> bool:
    path = ROOT.parent / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()


def under(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def folder_of(name: str) -> str | None:
    """The folder of an imported module; None for other packages and for the package's public names."""
    parts = name.split(".")
    return parts[1] if parts[0] == "feddrop" and len(parts) > 1 and parts[1] in ORDER else None


MODULES = [one for one in modules() if one[0] != "__init__"]  # which is the table of public names


@pytest.mark.parametrize(("folder", "module", "names"), MODULES, ids=[module for _, module, _ in MODULES])
def test_imports_follow_the_order(folder, module, names):
    place = ORDER.index(folder)
    for name in names:
        other = folder_of(name)
        assert other is None or ORDER.index(other) <= place, f"{module} must not import {name}: {other} comes later"
        for package in WITHOUT.get(folder, ()):
            assert not under(name, package), f"{module} must not import {package}"
        for package, owners in ONLY.items():
            assert folder in owners or not under(name, package), f"{module} must not import {package}"


def test_every_folder_has_its_place():
    folders = {folder for folder, _, _ in MODULES}
    assert folders == set(ORDER)
    assert len(set(ORDER)) == len(ORDER)
    files = {path.stem for path in ROOT.glob("*.py")}
    assert files == {"__init__", "__main__", "errors", "seeds"}
    deep = [path for path in ROOT.rglob("*.py") if len(path.relative_to(ROOT).parts) > 2]
    assert not deep, "at most one level of folders"


def test_modules_have_no_cycles():
    """Imports inside functions count, too."""
    paths = {"feddrop." + name.removesuffix(".__init__"): names for _, name, names in MODULES}
    below = {name: {other for other in names if other in paths and other != name} for name, names in paths.items()}
    while below:
        free = [name for name, needed in below.items() if not needed & below.keys()]
        assert free, f"a cycle among {sorted(below)}"
        for name in free:
            del below[name]


def test_tests_import_no_tests():
    """Helpers are in tests/support/."""
    paths = sorted(path for path in TESTS.rglob("*.py") if "support" not in path.relative_to(TESTS).parts)
    for path in paths:
        for name in imports_of(path):
            last = name.rpartition(".")[2]
            helper = not last.startswith("test_") and last != "conftest" and not under(name, "tests")
            assert helper, f"{path.name} imports {name}"


def test_tests_mirror_the_package():
    folders = {path.name for path in TESTS.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert folders <= {*ORDER, "support"}


def loaded_after(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint('\\n'.join(sys.modules))"
    return set(
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    )


def test_import_and_command_line_load_no_torch():
    assert not {"torch", "numpy", "matplotlib"} & loaded_after("import feddrop, feddrop.cli")


@pytest.mark.parametrize("folder", WITHOUT)
def test_folders_load_nothing_heavy(folder):
    assert not WITHOUT[folder] & loaded_after(f"import feddrop.{folder}")
