"""Keep imports pointing one way: cli -> verbs -> nouns, and among verbs only downwards. Run by `make test`.

A file may import its own folder, a folder further down the list, and the files beside the folders (errors, units).
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "src" / "choreo"

# From the bottom up; folders of one row may not import each other.
LEVELS = (
    ("errors",),
    ("units", "results", "_lazy"),
    ("collectives",),
    ("schedule", "topology", "hardware"),
    ("algorithms", "workload"),
    ("prove", "price", "bound", "nccl"),
    ("simulate", "run"),
    ("bench", "plan", "synthesize"),
    ("calibrate",),
    ("train", "validate", "trace", "sweep", "record"),
    ("show", "explore"),
    ("cli",),
)
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}
HEAVY = {"torch", "ray", "duckdb", "mpi4py"}

# (file, imported folder): why it may.
ALLOWED = {
    ("results.py", "show"): "a notebook asks the object itself to draw; imported when it does",
}


def imported_folders(tree: ast.AST, home: tuple[str, ...]) -> set[tuple[int, str]]:
    """Line and folder of every import of a part of choreo; `home` is the package that the file stands in."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            above = home[: len(home) - node.level + 1] if node.level else ()
            module = ".".join((*above, *((node.module,) if node.module else ())))
            modules = [f"choreo.{alias.name}" for alias in node.names] if module == "choreo" else [module]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        else:
            continue
        found |= {(node.lineno, module.split(".")[1]) for module in modules if module.startswith("choreo.")}
    return found


def heavy_at_top(tree: ast.Module) -> set[tuple[int, str]]:
    """Line and name of heavy packages imported when the module is: anywhere but inside a function, or for types."""
    found = set()
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or _for_types_only(node):
            continue
        waiting.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.Import):
            found |= {(node.lineno, alias.name) for alias in node.names if alias.name.split(".")[0] in HEAVY}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in HEAVY:
            found.add((node.lineno, node.module or ""))
    return found


def _for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def violations(package: Path) -> list[str]:
    """A sentence for every import that points the wrong way."""
    told = []
    for file in sorted(package.rglob("*.py")):
        name = file.relative_to(package).as_posix()
        if name in ("__init__.py", "__main__.py"):
            continue  # the public surface reaches everything, lazily
        home = name.split("/")[0].removesuffix(".py")
        if home not in LEVEL:
            told.append(f"src/choreo/{name}: {home!r} has no place in tools/check_imports.py; give it one")
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        told += [
            f"src/choreo/{name}:{line}: imports {what} at the top; import it where it is used"
            for line, what in heavy_at_top(tree)
        ]
        for line, folder in sorted(imported_folders(tree, ("choreo", *Path(name).parts[:-1]))):
            if folder == home or (name, folder) in ALLOWED or folder not in LEVEL:
                continue
            if LEVEL[folder] >= LEVEL[home]:
                told.append(f"src/choreo/{name}:{line}: {home} must not import {folder}, which is not below it")
    return told


def main() -> int:
    """Print what points the wrong way and fail if anything does."""
    found = violations(PACKAGE)
    print("\n".join(found) or "imports point one way")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
