"""Rooms import only those that come before them in one list, and the command line starts without torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import feddrop

ROOT = Path(feddrop.__file__).parent
# The rooms in their order: a file or a folder right below feddrop/. A room imports itself and those above it, no other.
ORDER = (
    *("errors", "texts", "seeds", "files", "allocation", "radio"),
    *("params", "subnets", "flops", "sections", "wire", "data", "models"),
    *("learning", "methods", "trials", "device", "rounds", "participation", "rates", "executors"),
    *("callbacks", "config", "checkpoints", "memories", "records", "report", "preparation", "runs", "sweeps", "flower"),
    *("plain", "theory", "paper", "terminal", "__main__"),
)
NO_TORCH = ("errors", "texts", "seeds", "files", "allocation", "radio", "report")
# Package -> the only rooms that may import it.
ONLY = {
    "cyclopts": {"terminal"},
    "flwr": {"flower"},
    "ray": {"executors"},
    "matplotlib": {"report", "paper", "theory"},
    "feddrop.cli": {"terminal", "__main__"},
    "reproduction.experiments": {"terminal", "paper"},
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
                full = [f"{node.module}.{alias.name}" for alias in node.names]
                names |= {name if is_module(name) else node.module for name in full}
        found.append((parts[0], ".".join(parts), names))
    return found


def is_module(name: str) -> bool:
    path = ROOT.parent / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()


def under(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def room_of(name: str) -> str | None:
    """The room that an imported name lives in; None for other packages and for the package's own public names."""
    parts = name.split(".")
    return parts[1] if parts[0] == "feddrop" and len(parts) > 1 and parts[1] in ORDER else None


@pytest.mark.parametrize(
    ("room", "module", "names"), modules(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_imports_go_upward_in_the_list(room, module, names):
    if room == "__init__":
        return  # the table of public names, loaded when used
    place = ORDER.index(room)
    for name in names:
        other = room_of(name)
        assert other is None or ORDER.index(other) <= place, f"{module} must not import {name}: {other} comes later"
        assert not (under(name, "torch") and room in NO_TORCH), f"{module} must do without torch"
        for package, owners in ONLY.items():
            if under(name, package):
                assert room in owners, f"only {owners} may import {package}, not {module}"


def test_every_room_has_its_place():
    rooms = {room for room, _, _ in modules()} - {"__init__"}
    assert rooms == set(ORDER)
    assert len(set(ORDER)) == len(ORDER)


def test_no_module_imports_itself_on_a_way_around():
    """Modules, too, have an order, also with those imports that wait inside a function."""
    paths = {"feddrop." + name.removesuffix(".__init__"): names for _, name, names in modules() if name != "__init__"}
    below = {name: {other for other in names if other in paths and other != name} for name, names in paths.items()}
    while below:
        free = [name for name, needed in below.items() if not needed & below.keys()]
        assert free, f"a cycle among {sorted(below)}"
        for name in free:
            del below[name]


def loaded_after(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint('\\n'.join(sys.modules))"
    return set(
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    )


def test_import_and_command_line_load_no_torch():
    assert not {"torch", "numpy", "matplotlib"} & loaded_after("import feddrop, feddrop.cli")


def test_radio_and_allocation_load_no_torch():
    assert "torch" not in loaded_after("import feddrop.radio, feddrop.allocation, feddrop.seeds")


def test_public_names():
    assert feddrop.__all__ == sorted(feddrop.__all__)
    assert set(feddrop.__all__) == set(feddrop._HOMES)
    for name in feddrop.__all__:
        assert getattr(feddrop, name).__name__ == name
    with pytest.raises(AttributeError, match="nothing"):
        feddrop.nothing  # noqa: B018
