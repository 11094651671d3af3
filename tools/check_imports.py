"""Keep imports pointing one way: cli -> verbs -> nouns, and among verbs only downwards. Run by `make test`.

A file may import its own folder, a folder further down the list, and the files beside the folders (errors, units,
checks, files, heap, malformed, pytorch).
Seen are `import` and `from` wherever they stand, lazy ones too; `importlib.import_module` and `__import__`; and names
that are reached through the package, as in `choreo.simulate(...)`.

An import under TYPE_CHECKING follows the same rule between folders: a reader must follow it too. Within a folder it may
point anywhere. Within a folder no modules import each other in a cycle, and the parts of `run` have an order of their
own.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "src" / "choreo"

# From the bottom up; folders of one row may not import each other.
LEVELS = (
    ("errors",),
    ("checks",),
    ("units", "malformed", "results", "compiled", "_lazy"),
    ("files", "heap", "pytorch"),
    ("collectives",),
    ("schedule", "topology", "hardware"),
    ("algorithms", "workload"),
    ("prove", "price", "bound", "nccl"),
    ("simulate", "run"),
    ("bench", "plan", "synthesize", "tune"),
    ("calibrate", "torch_backend"),
    ("train", "validate", "trace"),
    ("record",),
    ("sweep",),  # which keeps every case in the store
    ("show",),
    ("explore",),
    ("cli",),
)
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}

# The same within a folder. Files and folders that are not named stand above those that are.
INSIDE = {
    "run": (
        ("transport",),
        ("rendezvous",),
        ("execute", "work"),
        ("stats",),
        ("consensus",),
        ("connection",),
        ("connect", "engine"),
        ("blobs",),
        ("call_base", "groups", "rows"),
        ("messages", "recover", "collective_calls"),
        ("object_calls", "recover_calls"),
        ("communicator",),
        ("init", "join"),
    ),
}
# Parts that nobody else in their folder may import: they stand beside the rest.
BESIDE = {"run": ("launch",)}

SEEN = (ast.ImportFrom, ast.Import, ast.Attribute, ast.Call)
HEAVY = {"torch", "ray", "duckdb", "pyarrow", "mpi4py"}
# Folders whose modules are imported only once torch is; not what `import choreo.torch_backend` itself runs.
ON_TORCH = ("torch_backend", "train")

# (file, imported folder, or part of its own folder, or module of a circle): why it may.
ALLOWED = {
    ("results.py", "show"): "a notebook asks the object itself to draw; imported when it does",
    ("algorithms/_registry.py", "algorithms"): "it looks for the files of the library when one is first asked for",
    ("workload/model.py", "workload.flops"): "a model answers how many operations it takes; imported when it does",
}


@dataclass(frozen=True, order=True)
class Import:
    """A line of a file, and the module of choreo that it imports or reaches."""

    line: int
    module: str  # "choreo.run.launch"
    for_types: bool = False

    @property
    def folder(self) -> str:
        """The part of choreo that the module is in."""
        return self.module.split(".")[1]


def imports_of(tree: ast.Module, home: tuple[str, ...], surface: dict[str, str]) -> set[Import]:
    """Every import of a part of choreo in a file of the package `home`; `surface` says where public names live."""
    found: set[Import] = set()
    nodes = [(node, for_types) for node, for_types in _walk(tree) if isinstance(node, SEEN)]
    names: set[str] = set()  # what choreo is called in the file: `import choreo.x` binds it too
    for alias in (alias for node, _ in nodes if isinstance(node, ast.Import) for alias in node.names):
        if alias.name.split(".")[0] == "choreo" and not alias.asname:
            names.add("choreo")
        elif alias.name == "choreo" and alias.asname:
            names.add(alias.asname)
    for node, for_types in nodes:
        for module in _modules(node, home, names):
            parts = module.split(".")
            if parts[0] != "choreo" or len(parts) == 1:
                continue
            # `choreo.simulate` is a folder and a function, which lives in that folder.
            lives = module if parts[1] in LEVEL else surface.get(parts[1])
            if lives is not None:
                found.add(Import(node.lineno, lives, for_types))
    return found


def _modules(node: ast.AST, home: tuple[str, ...], names: set[str]) -> Iterator[str]:
    """The modules, or names in modules, that one node imports or reaches."""
    match node:
        case ast.ImportFrom():
            above = home[: len(home) - node.level + 1] if node.level else ()
            module = ".".join((*above, *((node.module,) if node.module else ())))
            yield from (f"{module}.{alias.name}" for alias in node.names)
        case ast.Import():
            yield from (alias.name for alias in node.names)
        case ast.Attribute():
            root, _, rest = _dotted(node).partition(".")
            if root in names:
                yield f"choreo.{rest}"
        case ast.Call(func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__")):
            yield _imported_text(node, home)


def _dotted(node: ast.expr) -> str:
    """`a.b.c` as it is written; nothing for what is not only names."""
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return node.id if isinstance(node, ast.Name) else ""


def _imported_text(call: ast.Call, home: tuple[str, ...]) -> str:
    """What `import_module` is told to import, as far as the text says it."""
    given = call.args[0] if call.args else None
    if isinstance(given, ast.JoinedStr) and given.values:
        given = given.values[0]  # the rest of f"choreo.cli.commands.{name}" is known only when it runs
    text = given.value if isinstance(given, ast.Constant) and isinstance(given.value, str) else ""
    level = len(text) - len(text.lstrip("."))
    return ".".join((*home[: len(home) - level + 1], text.lstrip("."))) if level else text.rstrip(".")


def _walk(tree: ast.AST) -> Iterator[tuple[ast.AST, bool]]:
    """Every node, and whether it is there for types only."""
    waiting = [(tree, False)]
    while waiting:
        node, for_types = waiting.pop()
        yield node, for_types
        if _for_types_only(node):
            assert isinstance(node, ast.If)
            waiting += [(child, True) for child in node.body] + [(child, for_types) for child in node.orelse]
        else:
            waiting += [(child, for_types) for child in ast.iter_child_nodes(node)]


def _for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def public_names(package: Path) -> dict[str, str]:
    """The public names of choreo and the module of each, as `__init__.pyi` has them."""
    stub = package / "__init__.pyi"
    tree = ast.parse(stub.read_text(encoding="utf-8")) if stub.exists() else ast.Module([], [])
    froms = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module]
    return {alias.asname or alias.name: str(node.module) for node in froms for alias in node.names}


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


@dataclass(frozen=True)
class Source:
    """A file of the package, and what it imports."""

    name: str  # "run/launch/launch.py"
    heavy: list[tuple[int, str]]
    imports: list[Import]


def read(package: Path) -> dict[str, Source]:
    """Every module of the package, parsed once."""
    surface = public_names(package)
    found = {}
    for file in sorted(package.rglob("*.py")):
        name = file.relative_to(package).as_posix()
        tree = ast.parse(file.read_text(encoding="utf-8"))
        imports = imports_of(tree, ("choreo", *Path(name).parts[:-1]), surface)
        found[_module_name(file, package)] = Source(name, sorted(heavy_at_top(tree)), sorted(imports))
    return found


def violations(sources: dict[str, Source]) -> list[str]:
    """A sentence for every import that points the wrong way."""
    told: list[str] = []
    graph: dict[str, dict[str, int]] = {}  # module -> the modules of its own folder that it imports, and where
    for module, source in sources.items():
        name = source.name
        if name in ("__init__.py", "__main__.py"):
            continue  # the public surface reaches everything, lazily
        home = name.split("/")[0].removesuffix(".py")
        if home not in LEVEL:
            told.append(f"src/choreo/{name}: {home!r} has no place in tools/check_imports.py; give it one")
            continue
        told += [
            f"src/choreo/{name}:{line}: imports {what} at the top; import it where it is used"
            for line, what in source.heavy
            if not (what.split(".")[0] == "torch" and home in ON_TORCH and not name.endswith("__init__.py"))
        ]
        for one in source.imports:
            if one.folder == home and not one.for_types:
                target = _in_files(one.module, sources)
                if target is not None and target != module:
                    told += _wrong_inside(name, one.line, home, module, target)
                    if (name, target.removeprefix("choreo.")) not in ALLOWED:
                        graph.setdefault(module, {}).setdefault(target, one.line)
            elif one.folder != home and (name, one.folder) not in ALLOWED and LEVEL[one.folder] >= LEVEL[home]:
                told.append(f"src/choreo/{name}:{one.line}: {home} must not import {one.folder}, which is not below it")
    told += [
        f"src/choreo/{sources[circle[0]].name}:{graph[circle[0]][circle[1]]}: "
        f"these import each other in a cycle: {' -> '.join(one.removeprefix('choreo.') for one in circle)}"
        for circle in circles(graph)
    ]
    return list(dict.fromkeys(told))


def _module_name(file: Path, package: Path) -> str:
    parts = file.relative_to(package).with_suffix("").parts
    return ".".join(("choreo", *(parts[:-1] if parts[-1] == "__init__" else parts)))


def _in_files(module: str, files: dict[str, Source]) -> str | None:
    """The module, where the last parts may be names in it."""
    while module and module not in files:
        module = module.rpartition(".")[0]
    return module or None


def _wrong_inside(name: str, line: int, folder: str, module: str, target: str) -> list[str]:
    """Whether an import within a folder goes against the order of its parts."""
    if folder not in INSIDE or "." not in module.partition(".")[2] or "." not in target.partition(".")[2]:
        return []
    mine, other = module.split(".")[2], target.split(".")[2]
    if mine == other or (name, f"{folder}.{other}") in ALLOWED:
        return []
    order = _order(folder)
    top = len(INSIDE[folder])
    wrong = other in BESIDE.get(folder, ()) or (order.get(other, top) >= order.get(mine, top) and other in order)
    wrong = wrong or (mine in order and other not in order)
    sentence = f"src/choreo/{name}:{line}: within {folder}, {mine} must not import {other}, which is not below it"
    return [sentence] if wrong else []


@cache
def _order(folder: str) -> dict[str, int]:
    return {part: level for level, parts in enumerate(INSIDE[folder]) for part in parts}


def circles(graph: dict[str, dict[str, int]]) -> list[list[str]]:
    """For every group of modules that import each other, a shortest circle among them."""
    found: list[list[str]] = []
    done: set[str] = set()
    for start in sorted(graph):
        paths, waiting = {start: [start]}, [start]
        while waiting and start not in done:
            at = waiting.pop(0)
            for after in sorted(graph.get(at, {})):
                if after == start:
                    found.append([*paths[at], start])
                    done |= set(paths[at])
                    waiting = []
                    break
                if after not in paths:
                    paths[after] = [*paths[at], after]
                    waiting.append(after)
    return found


def main() -> int:
    """Print what points the wrong way and fail if anything does."""
    found = violations(read(PACKAGE))
    print("\n".join(found) or "imports point one way")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
