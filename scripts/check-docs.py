#!/usr/bin/env python3
"""Checks the project's Markdown: links, the table of contents, the length of sentences, lines and cells, commands,
files. Of the comments of Rust files it checks the length of sentences and lines.

usage: check-docs.py [FN]        (FN: the built `fn`; without it commands are not checked)

Standard library only, a few seconds. Prints a line for each finding; ends with 1 if there is any.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BOOK = ROOT / "docs"
WORDS, COLUMNS, CELL = 30, 120, 160
# A decision is read by whoever has little time.
DECISION_LENGTH = 450
# What was said of a change stays as it was said; its links are checked.
HISTORY = {"CHANGELOG.md"}
# Pages whose command lines must be those of `fn`.
COMMANDS = ("README.md", "docs/tutorial/")

FENCE = re.compile(r"^\s*(```|~~~)")
LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
MARKER = re.compile(r"^(\s*)([-*+]|\d+\.)\s+")
END = re.compile(r"(?<=[.!?])[*_)\"”]*\s+(?=[\"“(*_]*[A-Z0-9`\[])")
# A file of the project, as prose names it: the end of its path.
SOURCE = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.(?:rs|sh|py|toml|yaml|yml))`")
# A comment that has its line to itself: what it says.
COMMENT = re.compile(r"\s*//[/!]? ?(.*)")
ABBREVIATION = re.compile(r"\b(e\.g|i\.e|cf|vs|etc|al|M|Fig|No)\.$")


def pages(kind="*.md"):
    command = ["git", "ls-files", "-co", "--exclude-standard", "-z", kind]
    listed = subprocess.check_output(command, cwd=ROOT, text=True)
    return sorted(path for name in listed.split("\0") if name and (path := ROOT / name).exists())


def lines_of(text):
    """Each line with its number and kind: code, table, heading, generated or prose."""
    fence = generated = comment = False
    for number, line in enumerate(text.split("\n"), 1):
        if FENCE.match(line):
            fence = not fence
            yield number, "code", line
        elif fence:
            yield number, "fenced", line
        elif comment or line.startswith("<!--"):
            generated = line.startswith(("<!-- metrics of", "<!-- options of")) or (
                generated and not line.startswith("<!-- end")
            )
            comment = "-->" not in line
            yield number, "comment", line
        elif generated:
            yield number, "generated", line
        elif line.lstrip().startswith("|"):
            yield number, "table", line
        elif line.startswith("#"):
            yield number, "heading", line
        else:
            yield number, "prose", line


def rendered(text):
    """What a reader sees of inline Markdown: a link's text, and code as one word."""
    text = re.sub(r"`+[^`]+`+", lambda code: "X" * min(len(code.group()), 12), text)
    return LINK.sub(lambda link: link.group(1), text)


def shown(cell):
    return LINK.sub(lambda link: link.group(1), cell).replace("`", "").strip()


def anchors(path, cache={}):
    """The anchors of a page, as GitHub and mdBook make them of its headings."""
    if path not in cache:
        found = {}
        for _, kind, line in lines_of(path.read_text()):
            if kind == "heading":
                title = re.sub(r"[`*]", "", LINK.sub(lambda link: link.group(1), line.lstrip("#").strip()))
                slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
                count = found[slug] = found.get(slug, -1) + 1
                if count:
                    found[f"{slug}-{count}"] = 0
        cache[path] = set(found)
    return cache[path]


def links(path, text):
    # A link may be broken over two lines.
    seen = "\n".join("" if kind in ("code", "fenced", "comment") else line for _, kind, line in lines_of(text))
    seen = re.sub(r"`[^`\n]*`", "", seen)
    for link in LINK.finditer(seen):
        number, target = seen.count("\n", 0, link.start()) + 1, link.group(2)
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        there = (path.parent / name).resolve() if name else path
        if not there.exists():
            yield number, f"link to {target}: there is no such file"
        elif anchor and there.suffix == ".md" and anchor not in anchors(there):
            yield number, f"link to {target}: the page has no such heading"


def sources(text, files=[]):
    """Files that a page names and that are not there."""
    if not files:
        command = ["git", "ls-files", "-co", "--exclude-standard"]
        files.extend("/" + name for name in subprocess.check_output(command, cwd=ROOT, text=True).split())
    for number, _, line in lines_of(text):
        for name in SOURCE.findall(line):
            if not any(file.endswith("/" + name) for file in files):
                yield number, f"no file {name}"


def tests(text, files=[]):
    """Tests that a page names, as `FILE: name` or `FILE: beginning_…`, and that their file lacks."""
    if not files:
        files.extend(pages("*.rs"))
    for named in re.finditer(r"`([\w./-]+\.rs):\s+(\w+)(…?)`", text):
        name, test, rest = named.groups()
        there = [path for path in files if f"/{path}".endswith("/" + name)]
        wanted = re.compile(rf"fn {test}" + ("" if rest else r"\b"))
        if not any(wanted.search(path.read_text()) for path in there):
            yield text.count("\n", 0, named.start()) + 1, f"no test {name}: {test}"


def sentences(text):
    """Sentences of the prose, each with the line its paragraph begins at. An item of a list is a paragraph."""
    block, first = [], 0
    for number, kind, line in [*lines_of(text), (0, "heading", "")]:
        ends = kind != "prose" or not line.strip() or MARKER.match(line)
        if ends and block:
            begun = ""
            for part in END.split(rendered(" ".join(block))):
                begun = f"{begun} {part}" if begun else part
                if not ABBREVIATION.search(begun):
                    yield first, begun
                    begun = ""
            if begun:
                yield first, begun
            block = []
        if kind == "prose" and line.strip():
            if not block:
                first = number
            block.append(MARKER.sub("", line).strip())


def words(text):
    return len([word for word in text.split() if re.search(r"\w", word)])


def prose(name, text):
    length, decision = 0, re.match(r"docs/decisions/\d", name)
    for number, sentence in sentences(text):
        count = words(sentence)
        length += count
        if count > WORDS:
            yield number, f"a sentence of {count} words: {sentence[:60]}…"
    if decision and length > DECISION_LENGTH:
        yield 1, f"a decision of {length} words"
    for number, kind, line in lines_of(text):
        content = MARKER.sub("", line).strip()
        if kind == "prose" and len(line) > COLUMNS and " " in content and not LINK.fullmatch(content):
            yield number, f"a line of {len(line)} columns"
        if kind == "table":
            for cell in re.split(r"(?<!\\)\|", line.strip().strip("|")):
                if len(shown(cell)) > CELL:
                    yield number, f"a cell of {len(shown(cell))} characters: {shown(cell)[:40]}…"


def comments(text):
    """Sentences and lines of a Rust file's comments that are too long. Code is read as an empty line."""
    lines = text.split("\n")
    plain = "\n".join(comment.group(1) if (comment := COMMENT.match(line)) else "" for line in lines)
    for number, sentence in sentences(plain):
        if (count := words(sentence)) > WORDS:
            yield number, f"a sentence of {count} words: {sentence[:60]}…"
    for (number, kind, content), line in zip(lines_of(plain), lines):
        if kind == "prose" and " " in content and len(line) > COLUMNS:
            yield number, f"a line of {len(line)} columns"


def summary():
    text = (BOOK / "SUMMARY.md").read_text()
    listed = [target for _, target in LINK.findall(text)]
    for name in sorted({name for name in listed if listed.count(name) > 1}):
        yield "docs/SUMMARY.md", 1, f"{name} is listed twice"
    for title, target in LINK.findall(text):
        heading = (BOOK / target).read_text().split("\n", 1)[0].lstrip("# ")
        told = re.search(r"versions? [\d to]+", heading)
        if told and told.group().strip() not in title:
            yield "docs/SUMMARY.md", 1, f"{target} has another heading: {heading}"
    for path in pages():
        if path.is_relative_to(BOOK) and path.name != "SUMMARY.md" and str(path.relative_to(BOOK)) not in listed:
            yield str(path.relative_to(ROOT)), 1, "not in docs/SUMMARY.md"


def command_lines(text):
    for number, kind, line in lines_of(text):
        if kind == "fenced":
            command = re.match(r"\s*(?:\$ )?(fn\s.*)", line)
            if command:
                yield number, command.group(1)
        elif kind in ("prose", "table"):
            for command in re.findall(r"`(fn\s[^`]+)`", line):
                yield number, command


class Help:
    """What `fn` says of its commands."""

    def __init__(self, program):
        self.program, self.known = program, {}

    def of(self, words):
        if words not in self.known:
            done = subprocess.run([self.program, *words, "--help"], capture_output=True, text=True, timeout=20)
            self.known[words] = done.stdout
        return self.known[words]

    def commands(self, words):
        _, _, rest = self.of(words).partition("\nCommands:\n")
        return set(re.findall(r"^  ([a-z][\w-]*)", rest.partition("\n\n")[0], re.M))

    def wrong(self, command):
        words, path = re.split(r"\s+[#|]\s|\s*(?:&&|;)\s*", command)[0].split()[1:], ()
        while words and words[0] in self.commands(path):
            path = (*path, words.pop(0))
        if self.commands(path) and words and re.fullmatch(r"[a-z][a-z-]*", words[0]):
            return f"`fn {' '.join(path)}` has no command `{words[0]}`"
        for word in words:
            flag = re.match(r"--[a-z][\w-]*|-[a-zA-Z]\b", word)
            if flag and not re.search(rf"(?<![\w-]){re.escape(flag.group())}(?![\w-])", self.of(path)):
                return f"`fn {' '.join(path)}` has no option `{flag.group()}`"
        return None


def findings(program):
    for path in pages():
        name, text = str(path.relative_to(ROOT)), path.read_text()
        yield from ((name, *found) for found in links(path, text))
        if name not in HISTORY:
            yield from ((name, *found) for found in prose(name, text))
            if not name.startswith("docs/tutorial/"):
                yield from ((name, *found) for found in sources(text))
                yield from ((name, *found) for found in tests(text))
        if program and name.startswith(COMMANDS):
            for number, command in command_lines(text):
                if wrong := program.wrong(command):
                    yield name, number, f"{wrong}: {command}"
    for path in pages("*.rs"):
        yield from ((str(path.relative_to(ROOT)), *found) for found in comments(path.read_text()))
    yield from summary()


def main():
    program = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else None
    found = list(findings(Help(str(program)) if program and program.exists() else None))
    for name, number, what in found:
        print(f"{name}:{number}: {what}")
    if program and not program.exists():
        print("skipped: the commands shown in README.md and the tutorial: fn is not built")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
