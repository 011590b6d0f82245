"""Write `signatures.json`: names and signatures of the recipe functions of some Megatron Bridge releases.

    python tests/recipes/make_signatures.py BRIDGE_CLONE [--head REVISION]

Facts about the public interface, no code: modules, function names, parameter names, literal defaults, the keys that
typed `**kwargs` take, and which names stand for which function.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from oombisect.recipes.scan import RecipeFunction, RecipeScanner, RecipeTable
from oombisect.repo.bridge import open_repository

RELEASES = ("v0.1.0a0", "v0.2.0", "v0.3.0", "v0.3.1", "v0.4.0", "v0.5.0", "v0.6.0")
FILE = Path(__file__).with_name("signatures.json")


def pack(table: RecipeTable, keyword_sets: list[list[str]]) -> dict[str, object]:
    """A table with modules and keyword sets written once."""
    modules: dict[str, list[list[object]]] = {}
    for f in table.functions.values():
        keywords: object = None
        if f.keywords is not None:
            names = sorted(f.keywords)
            if names not in keyword_sets:
                keyword_sets.append(names)
            keywords = keyword_sets.index(names)
        row = [f.function, f.name, list(f.params), list(f.required), dict(f.defaults), keywords, f.var_keywords]
        plain = [f.function, f.name, [], [], {}, keywords, False]
        modules.setdefault(f.module, []).append([f.function] if row == plain and f.name == f.function else row)
    own = {name for f in table.functions.values() for name in (f.name,)}
    aliases = {name: list(keys) for name, keys in table.names.items() if name not in own or len(keys) > 1}
    return {"modules": modules, "aliases": aliases}


def unpack(packed: dict[str, object], keyword_sets: list[list[str]]) -> RecipeTable:
    """What `pack` packed."""
    functions: dict[str, RecipeFunction] = {}
    for module, rows in packed["modules"].items():  # type: ignore[attr-defined]
        for row in rows:
            name = row[0]
            row = row if len(row) > 1 else [name, name, [], [], {}, keyword_sets.index([]), False]
            keywords = None if row[5] is None else frozenset(keyword_sets[row[5]])
            found = RecipeFunction(module, name, row[1], tuple(row[2]), tuple(row[3]), row[4], keywords, row[6])
            functions[found.key] = found
    names = {f.name: (f.key,) for f in functions.values()}
    names |= {name: tuple(keys) for name, keys in packed["aliases"].items()}  # type: ignore[attr-defined]
    return RecipeTable(functions, dict(sorted(names.items())))


def load() -> dict[str, RecipeTable]:
    """The tables by release; the last one, "head", is no release."""
    data = json.loads(FILE.read_text())
    return {name: unpack(packed, data["keyword_sets"]) for name, packed in data["releases"].items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clone", type=Path)
    parser.add_argument("--head", default="HEAD")
    options = parser.parse_args()
    keyword_sets: list[list[str]] = [[]]
    releases, commits = {}, {}
    with tempfile.TemporaryDirectory() as cache:
        repository = open_repository(options.clone, options.clone, Path(cache))
        scanner = RecipeScanner(repository)
        for name, revision in [*((r, r) for r in RELEASES), ("head", options.head)]:
            commits[name] = repository.resolve(revision)
            table = scanner.table(commits[name])
            releases[name] = pack(table, keyword_sets)
            assert unpack(releases[name], keyword_sets) == table
            print(f"{name}: {len(table.functions)} functions, {len(table.names)} names")
    text = json.dumps({"commits": commits, "keyword_sets": keyword_sets, "releases": releases}, separators=(",", ":"))
    FILE.write_text(text.replace('],"', '],\n"') + "\n")


if __name__ == "__main__":
    main()
