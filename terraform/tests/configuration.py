"""The Terraform configuration as plain data: files parsed by python-hcl2, strings without their quotes, blocks by type
and name."""

import pathlib
import re

import hcl2

ROOT = pathlib.Path(__file__).resolve().parents[1]
REPOSITORY = ROOT.parent


def plain(value):
    """Takes off the quotes that python-hcl2 leaves on strings and labels, and its own marks."""
    if isinstance(value, dict):
        return {plain(k): plain(v) for k, v in value.items() if not k.startswith("__")}
    if isinstance(value, list):
        return [plain(v) for v in value]
    if isinstance(value, str) and len(value) > 1 and value[0] == value[-1] == '"':
        return value[1:-1]
    return value


class Block:
    """One resource, data source, variable, output or module."""

    def __init__(self, folder, kind, type_, name, body):
        self.folder, self.kind, self.type, self.name, self.body = folder, kind, type_, name, body

    def __str__(self):
        return f"{self.folder.relative_to(ROOT)}: {self.kind} {self.type or ''} {self.name}"

    def __getitem__(self, key):
        return self.body[key]

    def get(self, key, default=None):
        return self.body.get(key, default)

    def blocks(self, name):
        """Nested blocks called `name`, at any depth, those that are made by `dynamic` too."""
        found = []

        def walk(value):
            if isinstance(value, list):
                for item in value:
                    walk(item)
            elif isinstance(value, dict):
                for key, inner in value.items():
                    if key == name:
                        for each in inner if isinstance(inner, list) else [inner]:
                            found.extend(each["content"] if "content" in each else [each])
                    walk(inner)

        walk(self.body)
        return found


def load():
    """Every block of every file."""
    blocks = []
    for path in sorted(ROOT.rglob("*.tf")):
        if ".terraform" in path.parts:
            continue
        for kind, entries in plain(hcl2.loads(path.read_text())).items():
            for entry in entries:
                if kind in ("resource", "data", "ephemeral"):
                    for type_, named in entry.items():
                        blocks.extend(Block(path.parent, kind, type_, name, body) for name, body in named.items())
                elif kind in ("variable", "output", "module", "provider"):
                    blocks.extend(Block(path.parent, kind, None, name, body) for name, body in entry.items())
                else:
                    blocks.append(Block(path.parent, kind, None, "", entry))
    return blocks


BLOCKS = load()


def of(kind, type_=None, folder=None):
    return [b for b in BLOCKS if b.kind == kind and type_ in (None, b.type) and folder in (None, b.folder)]


def references(text, prefix):
    """Names after `prefix.` in an expression."""
    return set(re.findall(rf"\b{re.escape(prefix)}\.(\w+)", str(text)))
