#!/usr/bin/env python3
"""Checks the imports between the files of each crate: none in a cycle, and in the worker none from a room to one in the
same layer or in a higher one.

usage: check-layers.py

Standard library only. Prints what is wrong; ends with 1 if anything is. Tests are left out. A re-export counts as an
import for whoever uses it, of the file that defines the name. What a module takes from a module around it, as in
`super::`, is no import.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# The rooms of the worker from the lowest layer to the highest. A room imports those of lower layers alone.
LAYERS = [
    {"errors", "host", "logs"},
    {"layers", "snapshots"},
    {"criu", "restorer"},
    {"metrics"},
    {"instance"},
    {"calls", "deploy", "idle", "migration"},
    {"config", "reporting"},
    {"worker"},
    {"startup"},
    {"http"},
    {"lib.rs"},
]
TEST_MODULE = re.compile(
    r"#\[cfg\((?:test|all\(test\b[^\]]*|any\(test\b[^\]]*)\)\]\s*(?:#\[[^\]]*\]\s*)*"
    r"(?:pub(?:\([a-z]+\))? )?mod (\w+)(;|\s*\{)"
)
MODULE = re.compile(r"^\s*(?:pub(?:\([^)]*\))?\s+)?mod (\w+);", re.M)
PATH_MODULE = re.compile(r'#\[path = "([^"]+)"\]\s*(?:pub(?:\([^)]*\))?\s+)?mod (\w+);')
USE = re.compile(r"^\s*(pub(?:\([^)]*\))?\s+)?use ([^;]+);", re.M)
INLINE = re.compile(r"\b((?:crate|super|self)(?:::\w+)+)")
COMMENT = re.compile(r"//[^\n]*")


def leaves(tree):
    """The paths of a use tree, as lists of names, each with the name it gets here."""
    tree = tree.strip()
    brace = tree.find("{")
    if brace < 0:
        path, _, alias = tree.partition(" as ")
        names = [n.strip() for n in path.split("::") if n.strip()]
        return [(names, alias.strip() or (names[-1] if names else ""))]
    prefix = [n for n in tree[:brace].split("::") if n.strip()]
    inner, found, depth, part = tree[brace + 1 : tree.rindex("}")], [], 0, ""
    for char in inner + ",":
        if char == "," and depth == 0:
            if part.strip():
                found += [(prefix + names, name) for names, name in leaves(part)]
            part = ""
            continue
        depth += (char == "{") - (char == "}")
        part += char
    return found


class Crate:
    """The files of a crate by module path, with what each imports and re-exports."""

    def __init__(self, root):
        self.files, self.text, self.exports, self.imports = {}, {}, {}, {}
        self._read((), root)
        for module in self.files:
            self._uses(module)

    def _read(self, module, path):
        text = COMMENT.sub("", path.read_text())
        tests = set()
        for found in TEST_MODULE.finditer(text):
            tests.add(found.group(1))
            if found.group(2) != ";":
                text = text[: found.start()]
                break
        self.files[module], self.text[module] = path, text
        own = path.parent if path.name in ("mod.rs", "lib.rs", "main.rs") else path.with_suffix("")
        elsewhere = {name: path.parent / place for place, name in PATH_MODULE.findall(text)}
        for name in MODULE.findall(text):
            places = [elsewhere[name]] if name in elsewhere else [own / f"{name}.rs", own / name / "mod.rs"]
            for place in places:
                if name not in tests and place.exists():
                    self._read((*module, name), place)

    def _absolute(self, module, names):
        if not names:
            return None
        first, rest = names[0], names[1:]
        if first == "crate":
            return tuple(rest)
        if first == "self":
            return (*module, *rest)
        if first == "super":
            at = module
            names = list(names)
            while names and names[0] == "super":
                at, names = at[:-1], names[1:]
            return (*at, *names)
        if (*module, first) in self.files:
            return (*module, *names)
        return None

    def _uses(self, module):
        exports, imports, text = {}, [], self.text[module]
        for public, tree in USE.findall(text):
            for names, name in leaves(re.sub(r"\s+", " ", tree)):
                path = self._absolute(module, names)
                if path is None:
                    continue
                if names[-1] == "self":
                    path, name = path[:-1], names[-2]
                if public:
                    exports[name] = path
                else:
                    imports.append(path)
        rest = USE.sub("", text)
        imports += [p for found in INLINE.findall(rest) if (p := self._absolute(module, found.split("::")))]
        children = "|".join(m[-1] for m in self.files if m and m[:-1] == module)
        if children:
            inline = re.findall(rf"(?<![\w:])((?:{children})(?:::\w+)+)", rest)
            imports += [(*module, *found.split("::")) for found in inline]
        self.exports[module], self.imports[module] = exports, imports

    def defines(self, path, seen=()):
        """The module whose file defines what a path names."""
        upto = max(n for n in range(len(path) + 1) if path[:n] in self.files)
        module, rest = path[:upto], path[upto:]
        if rest and path not in seen:
            exports = self.exports[module]
            if rest[0] in exports:
                return self.defines((*exports[rest[0]], *rest[1:]), (*seen, path))
            for name, to in exports.items():
                if name == "*" and re.search(rf"\b{rest[0]}\b", self.text.get(to[:-1], "")):
                    return to[:-1]
        return module

    def arrows(self):
        """For each module the modules that it imports, with a name for each."""
        found = {}
        for module, imports in self.imports.items():
            for path in imports:
                to = self.defines(path)
                # A module sees what is around it, and those around it use it: the two are one unit.
                if to != module[: len(to)]:
                    found.setdefault(module, {}).setdefault(to, path[-1] if path else "")
        return found


def cycles(arrows):
    """Strongly connected sets of more than one module (Tarjan)."""
    index, low, stack, on, found = {}, {}, [], set(), []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        on.add(node)
        for to in arrows.get(node, {}):
            if to not in index:
                visit(to)
                low[node] = min(low[node], low[to])
            elif to in on:
                low[node] = min(low[node], index[to])
        if low[node] == index[node]:
            part = []
            while True:
                part.append(stack.pop())
                on.discard(part[-1])
                if part[-1] == node:
                    break
            if len(part) > 1:
                found.append(sorted(part))

    for node in sorted(arrows):
        if node not in index:
            visit(node)
    return found


def findings():
    sys.setrecursionlimit(10_000)
    manifests = sorted(p for p in ROOT.rglob("Cargo.toml") if "target" not in p.parts and "fuzz" not in p.parts)
    for manifest in manifests:
        for name in ("lib.rs", "main.rs"):
            root = manifest.parent / "src" / name
            if not root.exists():
                continue
            crate = Crate(root)
            arrows = crate.arrows()
            for part in cycles(arrows):
                yield f"an import cycle of {len(part)} files:"
                for module in part:
                    for to, what in sorted(arrows[module].items()):
                        if to in part:
                            places = [crate.files[m].relative_to(ROOT) for m in (module, to)]
                            yield f"  {places[0]} imports {what} of {places[1]}"
            if manifest.parent.name == "worker":
                yield from upward(crate, arrows)


def upward(crate, arrows):
    """Imports from a room of the worker to one that is not below it."""
    layer = {room: number for number, rooms in enumerate(LAYERS) for room in rooms}
    for room in {(module or ("lib.rs",))[0] for module in crate.files} - layer.keys() - {"testing"}:
        yield f"worker: {room} is in no layer"
    for module, targets in arrows.items():
        for to, what in targets.items():
            room, other = (module or ("lib.rs",))[0], (to or ("lib.rs",))[0]
            if room != other and {room, other} <= layer.keys() and layer[room] <= layer[other]:
                yield f"{crate.files[module].relative_to(ROOT)}: {room} imports {what} of {other}"


if __name__ == "__main__":
    found = list(findings())
    print("\n".join(found), end="\n" if found else "")
    sys.exit(1 if found else 0)
