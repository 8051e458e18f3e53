#!/usr/bin/env python3
"""Draws what a terminal showed as a static SVG: the README's picture of `make up`.

    fn demo functions/samples/hello-python | scripts/record-up.py > docs/plots/make-up.svg
    script -qec 'make up' -T timing typescript
    scripts/record-up.py typescript --timing timing > docs/plots/make-up.svg

Reads plain text or ANSI from a file or standard input: colours, carriage returns, erased lines and a moving cursor, as
progress lines use them, so that what stays is what a reader saw last. With the timing file of script(1) the lines
appear one after the other, by CSS alone; without, all are there. Standard library only.
"""

import argparse
import re
import sys
import unicodedata
from html import escape

CELL_WIDTH, CELL_HEIGHT, FONT_SIZE, MARGIN, BAR = 8.4, 19, 14, 18, 34
BACKGROUND, FOREGROUND = "#1b1f27", "#d7dae0"
COLOURS = ["#5c6370", "#e06c75", "#8fc173", "#e0b060", "#61afef", "#c678dd", "#56b6c2", "#d7dae0"]
FAINT = "#8b919c"
# A pause between two lines is at most so long, in seconds.
PAUSE = 1.0
ESCAPE = re.compile(r"\x1b(?:\[([?0-9;]*)([@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][A-Z0-9]|[@-Z\\-_=>78])")
PLAIN = (FOREGROUND, False)
BOLD = ' font-weight="bold"'


class Screen:
    """A terminal that is as long as need be. Each row is cells: a character and its style."""

    def __init__(self, columns):
        self.columns, self.rows, self.times = columns, [[]], [0.0]
        self.row = self.column = 0
        self.colour, self.bold, self.faint = None, False, False
        self.now = 0.0

    def feed(self, text):
        at = 0
        while at < len(text):
            code = ESCAPE.match(text, at)
            if code:
                if code.group(2):
                    self.control(code.group(1), code.group(2))
                at = code.end()
                continue
            self.put(text[at])
            at += 1

    def go(self, row, column):
        self.row, self.column = max(row, 0), max(column, 0)
        while len(self.rows) <= self.row:
            self.rows.append([])
            self.times.append(self.now)

    def put(self, char):
        if char == "\n":
            self.go(self.row + 1, 0)
        elif char == "\r":
            self.go(self.row, 0)
        elif char == "\b":
            self.go(self.row, self.column - 1)
        elif char == "\t":
            self.go(self.row, (self.column // 8 + 1) * 8)
        elif unicodedata.category(char) != "Cc":
            if self.column >= self.columns:
                self.go(self.row + 1, 0)
            cells = self.rows[self.row]
            cells.extend([(" ", PLAIN)] * (self.column + 1 - len(cells)))
            cells[self.column] = (char, self.style())
            self.times[self.row] = self.now
            self.column += 1

    def style(self):
        colour = FAINT if self.faint else FOREGROUND if self.colour is None else COLOURS[self.colour]
        return colour, self.bold

    def control(self, numbers, letter):
        if numbers.startswith("?"):
            return
        values = [int(n) if n else 0 for n in numbers.split(";")]
        by, cells = max(values[0], 1), self.rows[self.row]
        if letter == "m":
            self.colours(values)
        elif letter in "AF":
            self.go(self.row - by, 0 if letter == "F" else self.column)
        elif letter in "BE":
            self.go(self.row + by, 0 if letter == "E" else self.column)
        elif letter in "CD":
            self.go(self.row, self.column + (by if letter == "C" else -by))
        elif letter == "G":
            self.go(self.row, by - 1)
        elif letter == "K":
            if values[0] == 2:
                cells.clear()
            elif values[0] == 1:
                cells[: self.column] = [(" ", PLAIN)] * min(self.column, len(cells))
            else:
                del cells[self.column :]
        elif letter == "J":
            del cells[self.column :]
            for below in self.rows[self.row + 1 :]:
                below.clear()

    def colours(self, values):
        for value in values:
            if value == 0:
                self.colour, self.bold, self.faint = None, False, False
            elif value in (1, 2):
                self.bold, self.faint = self.bold or value == 1, self.faint or value == 2
            elif value == 22:
                self.bold = self.faint = False
            elif value == 39:
                self.colour = None
            elif 30 <= value <= 37 or 90 <= value <= 97:
                self.colour = value % 10


def pieces(data, timing):
    """The typescript in the pieces in which it came, each with the seconds before it."""
    if timing is None:
        yield 0.0, data
        return
    start = data.find(b"\n") + 1 if data.startswith(b"Script started") else 0
    for line in timing.splitlines():
        fields = line.split()
        # util-linux writes "DELAY BYTES", or with its multi-stream log "O DELAY BYTES" for output.
        if fields and fields[0] in "OISH":
            if fields[0] != "O":
                continue
            fields = fields[1:]
        delay, count = float(fields[0]), int(fields[1])
        yield delay, data[start : start + count]
        start += count


def shown(data, timing, columns):
    screen, rest = Screen(columns), b""
    for delay, piece in pieces(data, timing):
        screen.now += min(delay, PAUSE)
        piece = rest + piece
        # A character, or a sequence, may be cut in two.
        cut = re.search(rb"(\x1b[^@-Z\\-~]*|[\xc0-\xff][\x80-\xbf]*)\Z", piece) if timing else None
        rest = cut.group() if cut and len(cut.group()) < 16 else b""
        screen.feed(piece[: len(piece) - len(rest)].decode("utf-8", "replace"))
    screen.feed(rest.decode("utf-8", "replace"))
    rows = list(zip(screen.rows, screen.times))
    text = ["".join(char for char, _ in cells).strip() for cells, _ in rows]
    keep = [n for n, line in enumerate(text) if not re.match(r"Script (started|done) on ", line)]
    while keep and not text[keep[-1]]:
        keep.pop()
    while keep and not text[keep[0]]:
        keep.pop(0)
    return [rows[n] for n in keep]


def runs(cells):
    """Neighbours of one style, cut where there are several spaces: a viewer may draw those as one."""
    at = 0
    while at < len(cells):
        end = at
        while end < len(cells) and cells[end][1] == cells[at][1]:
            end += 1
        text = "".join(char for char, _ in cells[at:end])
        for part in re.finditer(r"\S+(?: \S+)*", text):
            yield at + part.start(), part.group(), cells[at][1]
        at = end


def drawn(rows, columns, title, moving):
    width = 2 * MARGIN + columns * CELL_WIDTH
    height = BAR + 2 * MARGIN + len(rows) * CELL_HEIGHT
    style = f"text {{ font: {FONT_SIZE}px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; white-space: pre }}"
    if moving:
        style += (
            " @media (prefers-reduced-motion: no-preference) { .r { opacity: 0; animation: r .01s forwards } }"
            " @keyframes r { to { opacity: 1 } }"
        )
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" role="img">'
    yield f"<title>{escape(title)}</title>"
    yield f"<style>{style}</style>"
    yield f'<rect width="{width:.0f}" height="{height}" rx="8" fill="{BACKGROUND}"/>'
    for n, colour in enumerate(("#e06c75", "#e0b060", "#8fc173")):
        yield f'<circle cx="{20 + 20 * n}" cy="18" r="6" fill="{colour}"/>'
    yield f'<text x="{width / 2:.0f}" y="23" fill="{FAINT}" text-anchor="middle">{escape(title)}</text>'
    for n, (cells, time) in enumerate(rows):
        y = BAR + MARGIN + n * CELL_HEIGHT + FONT_SIZE
        found = [
            f'<text x="{MARGIN + at * CELL_WIDTH:.1f}" y="{y}" fill="{colour}"'
            f'{BOLD if bold else ""} textLength="{len(text) * CELL_WIDTH:.1f}"'
            f' lengthAdjust="spacingAndGlyphs">{escape(text)}</text>'
            for at, text, (colour, bold) in runs(cells)
        ]
        if found and moving:
            yield f'<g class="r" style="animation-delay: {time:.2f}s">{"".join(found)}</g>'
        else:
            yield from found
    yield "</svg>"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("typescript", nargs="?", help="what the terminal showed; standard input by default")
    parser.add_argument("--timing", help="the timing file of script(1): lines then appear one after the other")
    parser.add_argument("--title", default="make up")
    parser.add_argument("--columns", type=int, default=120, help="where lines break; 120 by default")
    args = parser.parse_args()
    if args.typescript:
        with open(args.typescript, "rb") as file:
            data = file.read()
    else:
        data = sys.stdin.buffer.read()
    timing = None
    if args.timing:
        with open(args.timing, encoding="utf-8") as file:
            timing = file.read()
    rows = shown(data, timing, args.columns)
    if not rows:
        sys.exit("record-up.py: nothing was shown")
    longest = max(len("".join(char for char, _ in cells).rstrip()) for cells, _ in rows)
    sys.stdout.write("\n".join(drawn(rows, max(longest, 40), args.title, args.timing is not None)) + "\n")


if __name__ == "__main__":
    main()
