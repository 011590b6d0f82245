"""The recipe functions of a commit, read from its source text by AST; nothing of it is imported or run.

A commit's table depends on two trees only (`recipes` and, where there is one, `perf_recipes`), so it is kept by their
ids, in memory and on disk.
"""

from __future__ import annotations

import ast
import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from oombisect.recipes.untrusted import UNREADABLE, parse_module
from oombisect.repo.bridge import BridgeRepository
from oombisect.repo.mirror import write_atomically
from oombisect.repo.trees import Entry

RECIPE_DIRS = ("src/megatron/bridge/recipes", "src/megatron/bridge/perf_recipes")
LIBRARY = "megatron.bridge.recipes"
_FORMAT = 2
_HELPER_PARTS = {"utils", "common"}
_GENERIC_NAMES = {"pretrain_config", "finetune_config", "sft_config", "peft_config"}
_CHAIN = 16
_INT_BITS = 64


@dataclass(frozen=True, slots=True)
class RecipeFunction:
    """One function that returns a config.

    Attributes:
        module, function: where it is defined.
        name: how it is known: its own name, or in the oldest layout (`llama/llama3_8b.py: pretrain_config`) the
            module's name and the function's.
        params: the names of its parameters, in order.
        required: those without a default.
        defaults: literal defaults by parameter.
        keywords: what `**kwargs: Unpack[SomeTypedDict]` takes; None where `**kwargs` is untyped; empty without `**`.
        var_keywords: whether it takes `**kwargs` at all.
    """

    module: str
    function: str
    name: str
    params: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    defaults: Mapping[str, object] = field(default_factory=dict)
    keywords: frozenset[str] | None = frozenset()
    var_keywords: bool = False

    @property
    def key(self) -> str:
        return f"{self.module}:{self.function}"

    @property
    def is_library(self) -> bool:
        return self.module.startswith(f"{LIBRARY}.")

    def accepts(self, keyword: str) -> bool:
        return keyword in self.params or (self.var_keywords and (self.keywords is None or keyword in self.keywords))

    def to_json(self) -> dict[str, Any]:
        data = asdict(self)
        data["keywords"] = None if self.keywords is None else sorted(self.keywords)
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RecipeFunction:
        keywords = None if data["keywords"] is None else frozenset(data["keywords"])
        changed = {"params": tuple(data["params"]), "required": tuple(data["required"]), "keywords": keywords}
        return cls(**{**data, **changed})


@dataclass(frozen=True, slots=True)
class RecipeTable:
    """The recipes of a commit: functions by `module:function`, and the keys each public name leads to."""

    functions: Mapping[str, RecipeFunction]
    names: Mapping[str, tuple[str, ...]]

    def named(self, name: str) -> tuple[RecipeFunction, ...]:
        """The functions a name leads to, library recipes before benchmark ones."""
        found = [self.functions[key] for key in self.names.get(name, ())]
        return tuple(sorted(found, key=lambda f: (not f.is_library, f.key)))

    def to_json(self) -> dict[str, Any]:
        functions = [f.to_json() for f in self.functions.values()]
        return {"format": _FORMAT, "functions": functions, "names": {n: list(k) for n, k in self.names.items()}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RecipeTable:
        if data.get("format") != _FORMAT:
            raise ValueError("another format")
        functions = [RecipeFunction.from_json(f) for f in data["functions"]]
        names = {n: tuple(k) for n, k in data["names"].items()}
        return cls({f.key: f for f in functions}, names)


class RecipeScanner:
    """Reads recipe tables of a repository's commits."""

    def __init__(self, repository: BridgeRepository, cache: Path | None = None) -> None:
        self._repository = repository
        self._cache = cache / "recipes" if cache else None
        self._tables: dict[str, RecipeTable] = {}
        self._modules: dict[tuple[str, str], _Module | None] = {}  # by path and blob: commits share nearly all of them

    def table(self, sha: str) -> RecipeTable:
        """The recipes at a commit; an empty table where it has none."""
        roots = {path: entry for path in RECIPE_DIRS if (entry := self._repository.entry(sha, path)) and entry.is_tree}
        key = "-".join(entry.sha for entry in roots.values())
        if key not in self._tables:
            self._tables[key] = self._load(key) or self._scan(key, roots)
        return self._tables[key]

    def _load(self, key: str) -> RecipeTable | None:
        if self._cache is None or not key:
            return None
        try:
            return RecipeTable.from_json(json.loads((self._cache / f"{key}.json").read_text()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None  # not there, or not as we write it: scanned again

    def _scan(self, key: str, roots: Mapping[str, Entry]) -> RecipeTable:
        files = list(self._files(roots))
        fresh = [file for file in files if file not in self._modules]
        contents = self._repository.mirror.contents([blob for _, blob in fresh])
        self._modules.update((file, _Module.parse(file[0], data)) for file, data in zip(fresh, contents))
        table = _table(module for file in files if (module := self._modules[file]))
        if self._cache is not None and key:
            with contextlib.suppress(OSError):  # kept for speed only
                write_atomically(self._cache / f"{key}.json", json.dumps(table.to_json(), sort_keys=True))
        return table

    def _files(self, roots: Mapping[str, Entry]) -> Iterator[tuple[str, str]]:
        for path, root in roots.items():
            yield from self._walk(path, root)

    def _walk(self, path: str, root: Entry) -> Iterator[tuple[str, str]]:
        for name, entry in self._repository.reader.tree(root.sha).items():
            if entry.is_tree:
                yield from self._walk(f"{path}/{name}", entry)
            elif name.endswith(".py") and entry.mode.startswith("100"):
                yield f"{path}/{name}", entry.sha


def scan_sources(files: Mapping[str, bytes]) -> RecipeTable:
    """The table of some source files by path (`src/megatron/bridge/recipes/qwen/qwen3.py`)."""
    return _table(module for path, data in files.items() if (module := _Module.parse(path, data)))


def _table(found_modules: Iterable[_Module]) -> RecipeTable:
    modules = {module.name: module for module in found_modules}
    functions: dict[str, RecipeFunction] = {}
    for module in modules.values():
        for node in module.functions.values():
            with contextlib.suppress(*UNREADABLE):  # an annotation nested too deep to be read says nothing
                if _is_recipe(module, node):
                    found = _describe(module, node, modules)
                    functions[found.key] = found
    names: dict[str, list[str]] = {}
    for found in functions.values():
        names.setdefault(found.name, []).append(found.key)
    for module in modules.values():
        for alias in module.exported():
            target = _chase(modules, module.name, alias)
            if target in functions and alias not in (functions[target].function, functions[target].name):
                keys = names.setdefault(alias, [])
                if target not in keys:
                    keys.append(target)
    return RecipeTable(functions, {name: tuple(keys) for name, keys in sorted(names.items())})


@dataclass(slots=True)
class _Module:
    name: str
    functions: dict[str, ast.FunctionDef]
    classes: dict[str, ast.ClassDef]
    bindings: dict[str, tuple[str, str]]  # name -> (module, name) it stands for
    public: frozenset[str] | None = None  # what `__all__` lists, where there is one

    @classmethod
    def parse(cls, path: str, data: bytes) -> _Module | None:
        parts = path.removeprefix("src/").removesuffix(".py").split("/")
        package = parts[:-1]
        name = ".".join(package if parts[-1] == "__init__" else parts)
        module = cls(name, {}, {}, {})
        try:
            for node in parse_module(data).body:
                module._take(node, package)
        except UNREADABLE:
            return None  # a commit may hold a broken file; its other recipes still have names
        return module

    @property
    def is_helper(self) -> bool:
        """Whether it serves other recipe modules: what it imports under another name is no name of a recipe."""
        return bool(_HELPER_PARTS & set(self.name.split(".")[3:]))

    def exported(self) -> list[str]:
        """Public names that stand for something else: those of `__all__`, or without one all but what is only used.

        Library modules exist to be imported from; a benchmark module imports library recipes to build on them.
        """
        if self.is_helper:
            return []
        names = [name for name in self.bindings if not name.startswith("_")]
        if self.public is not None:
            return [name for name in names if name in self.public]
        return names if self.name.startswith(LIBRARY) else [n for n in names if self.bindings[n][0] == self.name]

    def _take(self, node: ast.stmt, package: Sequence[str]) -> None:
        if isinstance(node, ast.FunctionDef):
            node.body = []  # the signature is all that is kept
            self.functions[node.name] = node
        elif isinstance(node, ast.ClassDef):
            self.classes[node.name] = node
        elif isinstance(node, ast.ImportFrom):
            base = [*package[: len(package) - node.level + 1]] if node.level else []
            source = ".".join([*base, *(node.module.split(".") if node.module else [])])
            for alias in node.names:
                if alias.name != "*":
                    self.bindings[alias.asname or alias.name] = (source, alias.name)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    self.bindings[target.id] = (self.name, node.value.id)
        elif isinstance(node, ast.Assign) and [ast.unparse(t) for t in node.targets] == ["__all__"]:
            with contextlib.suppress(ValueError, TypeError):
                self.public = frozenset(ast.literal_eval(node.value))


def _chase(modules: Mapping[str, _Module], module: str, name: str) -> str:
    """`module:function` that a name in a module finally stands for (it may lead nowhere known)."""
    for _ in range(_CHAIN):
        holder = modules.get(module)
        if holder is None or name in holder.functions or name not in holder.bindings:
            break
        module, name = holder.bindings[name]
    return f"{module}:{name}"


def _is_recipe(module: _Module, node: ast.FunctionDef) -> bool:
    if node.name.startswith("_") or module.is_helper:
        return False
    returns = ast.unparse(node.returns) if node.returns else ""
    arguments = [*node.args.posonlyargs, *node.args.args]
    takes_config = any(a.annotation and "ConfigContainer" in ast.unparse(a.annotation) for a in arguments)
    by_name = node.name.endswith("_config") and any(m in node.name for m in ("pretrain", "finetune", "sft", "peft"))
    return not takes_config and ("ConfigContainer" in returns or (not returns and by_name))


def _describe(module: _Module, node: ast.FunctionDef, modules: Mapping[str, _Module]) -> RecipeFunction:
    positional = [*node.args.posonlyargs, *node.args.args]
    filled: list[ast.expr | None] = [None] * (len(positional) - len(node.args.defaults))
    pairs = [*zip(positional, [*filled, *node.args.defaults]), *zip(node.args.kwonlyargs, node.args.kw_defaults)]
    stem = module.name.rsplit(".", 1)[-1]
    generic = node.name in _GENERIC_NAMES
    rest = node.args.kwarg
    return RecipeFunction(
        module=module.name,
        function=node.name,
        name=f"{stem}_{node.name}" if generic else node.name,
        params=tuple(a.arg for a, _ in pairs),
        required=tuple(a.arg for a, default in pairs if default is None),
        defaults={a.arg: value for a, default in pairs if (value := _literal(default)) is not _NOTHING},
        keywords=_typed_keywords(module, rest.annotation, modules) if rest else frozenset(),
        var_keywords=rest is not None,
    )


_NOTHING = object()


def _literal(node: ast.expr | None) -> object:
    """A default that JSON can hold; `_NOTHING` for any other."""
    if not isinstance(node, ast.Constant) or not isinstance(node.value, (str, int, float, bool, type(None))):
        return _NOTHING
    if isinstance(node.value, int) and node.value.bit_length() > _INT_BITS:
        return _NOTHING  # Python does not write thousands of digits out
    return node.value


def _typed_keywords(
    module: _Module, annotation: ast.expr | None, modules: Mapping[str, _Module]
) -> frozenset[str] | None:
    """The keys of `Unpack[SomeTypedDict]`, base classes included; None when the annotation does not say."""
    if not isinstance(annotation, ast.Subscript) or not ast.unparse(annotation.value).endswith("Unpack"):
        return None
    return _fields_of(module, ast.unparse(annotation.slice), modules, _CHAIN)


def _fields_of(module: _Module, name: str, modules: Mapping[str, _Module], left: int) -> frozenset[str] | None:
    for _ in range(_CHAIN):
        if name in module.classes or name not in module.bindings or module.bindings[name][0] not in modules:
            break
        source, name = module.bindings[name]
        module = modules[source]
    found = module.classes.get(name)
    if found is None or not left:
        return None
    keys = {n.target.id for n in found.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
    for base in found.bases:
        if ast.unparse(base).rsplit(".", 1)[-1] != "TypedDict":
            inherited = _fields_of(module, ast.unparse(base), modules, left - 1)
            if inherited is None:
                return None
            keys |= inherited
    return frozenset(keys)
