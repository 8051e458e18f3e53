#!/usr/bin/env python3
"""Deploys programs that nobody of the project wrote into a running platform, and says which of them come back right.

usage: zoo.py [options] NAME...        the programs of these names
       zoo.py [options] --all          every program
       zoo.py --list                   prints their names
       zoo.py [options] --write-docs   only writes docs/reference/benchmarks/zoo.md from the record

Each program is a folder with an fn.toml and a check.json: load-tests/zoo/NAME or load-tests/zoo/programs/NAME. Programs
run one after the other. Each is deployed, booted once, restored several times, changed, migrated, and deleted. Every
answer is compared with what check.json says. The exit code is 1 if a program of this run was wrong anywhere.

options:
  --url URL         the platform's gateway (FN_URL, or http://127.0.0.1:8080)
  --key KEY         its admin key (FN_KEY)
  --fn PATH         the `fn` to use (the one on PATH)
  --restores N      restored starts of each program (5)
  --record FILE     the results as JSON; rows of earlier runs stay (load-tests/results/zoo.json)
  --keep            leave the functions deployed
  --write-docs      write the page of the documentation from the record
"""

import argparse
import http.client
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
import urllib.parse

ZOO = pathlib.Path(__file__).resolve().parent
ROOT = ZOO.parent.parent
PAGE = ROOT / "docs/reference/benchmarks/zoo.md"
# Seconds: a deploy with its installation, one request, any other command. Letters of a table's cell.
DEPLOY, REQUEST, COMMAND, CELL = 900, 120, 120, 150


class Wrong(Exception):
    """The platform or the program did not do what it should."""


def folders():
    """The programs' folders by their names."""
    found = sorted([*ZOO.glob("*/check.json"), *ZOO.glob("programs/*/check.json")], key=lambda path: path.parent.name)
    return {path.parent.name: path.parent for path in found}


class Platform:
    """A running platform, through its gateway and `fn`."""

    def __init__(self, url, key, fn):
        self.address = urllib.parse.urlsplit(url).netloc
        self.key, self.fn = key, fn
        self.environment = {**os.environ, "FN_URL": url, "FN_KEY": key}

    def command(self, *words, limit=COMMAND):
        """What `fn` prints. Raises Wrong with its message if it fails."""
        shown = {"capture_output": True, "text": True}
        try:
            done = subprocess.run([self.fn, *words], env=self.environment, timeout=limit, **shown)
        except subprocess.TimeoutExpired:
            raise Wrong(f"fn {words[0]}: not done after {limit} s") from None
        if done.returncode:
            raise Wrong(f"fn {words[0]}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def request(self, method, path, body=None, headers=None):
        """Status, headers, body, and milliseconds from the request to the answer's last byte."""
        connection = http.client.HTTPConnection(self.address, timeout=REQUEST)
        try:
            connection.connect()
            begun = time.perf_counter()
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            content = answer.read().decode(errors="replace")
            return answer.status, answer.headers, content, (time.perf_counter() - begun) * 1000
        except (OSError, http.client.HTTPException) as error:
            raise Wrong(f"{method} {path}: {error}") from error
        finally:
            connection.close()

    def instances(self, function):
        return [one for one in json.loads(self.command("instances", "--json")) if one["function"] == function]

    def remove_instances(self, function):
        """Ends the function's instances and waits until they are gone."""
        deadline = time.monotonic() + COMMAND
        while left := self.instances(function):
            if time.monotonic() > deadline:
                raise Wrong("its instances do not end")
            for one in left:
                self.request("DELETE", f"/v1/instances/{one['id']}", None, {"Authorization": f"Bearer {self.key}"})
            time.sleep(0.05)


def ask(platform, function, check, start=None):
    """Sends one request of a check.json and compares the answer. With `start` a fresh instance is started for it."""
    method, path = check.get("method", "GET"), check["path"]
    below = f"/function/{function}{path}"
    headers = dict(check.get("headers", {}))
    if start:
        headers |= {"Authorization": f"Bearer {platform.key}", "x-fn-force-start": start}
    status, got, content, took = platform.request(method, below, check.get("body"), headers)
    wanted = check.get("status", 200)
    if status != wanted:
        raise Wrong(f"{method} {path}: {status} instead of {wanted}: {content[:300]}")
    for fragment in check.get("has", []):
        if fragment not in content:
            raise Wrong(f"{method} {path}: no {fragment!r} in {content[:300]!r}")
    if start and got.get("x-fn-start") != start:
        raise Wrong(f"{method} {path}: {got.get('x-fn-start')} instead of {start}")
    return got, took


def start(platform, function, kind, checks):
    """Starts a fresh instance, the only one, and sends it all checks. Headers and milliseconds of its first answer."""
    platform.remove_instances(function)
    first, took = ask(platform, function, checks[0], kind)
    # The platform learns a little later that the instance is free; before that another one would be started.
    deadline = time.monotonic() + COMMAND
    while any(one["in_flight"] for one in platform.instances(function)) and time.monotonic() < deadline:
        time.sleep(0.02)
    for check in checks[1:]:
        headers, _ = ask(platform, function, check)
        if headers.get("x-fn-instance") != first.get("x-fn-instance"):
            raise Wrong(f"{check['path']}: another instance answered, so the first one ended")
    return first, took


def migrate(platform, function, check):
    """Changes the running copy, moves it, and asks it what it knows. Milliseconds for which it stood still."""
    if "write" in check:
        ask(platform, function, check["write"])
    instance = platform.instances(function)[0]["id"]
    moved = json.loads(platform.command("migrate", instance, "--json"))
    for one in check.get("moved") or check["ask"] + check.get("kept", []):
        headers, _ = ask(platform, function, one)
        if headers.get("x-fn-instance") != instance:
            raise Wrong(f"{one['path']}: another instance answered, so the one that moved ended")
    return moved["phases"]["pause_ms"]


def deploy(platform, folder, row):
    version = json.loads(platform.command("deploy", str(folder), "--json", "--force", limit=DEPLOY))
    row["deploy_ms"] = {phase["phase"]: phase["ms"] for phase in version["phases"]}
    snapshot = version.get("snapshot")
    if not snapshot:
        raise Wrong(f"no snapshot: {version.get('snapshot_error')}")
    row["snapshot_bytes"] = snapshot["memory_bytes"]
    rehearsal = snapshot.get("rehearsal") or {}
    by = rehearsal.get("restored_by") or {}
    row["restorer"], row["because"] = by.get("by", "-"), by.get("because")
    row["warnings"] = [*snapshot.get("refused_warmups", []), rehearsal.get("warning")]


def restores(platform, function, checks, count, row):
    """Restored starts, each of which must answer everything. What restored them is in their phases."""
    times = []
    for _ in range(count):
        headers, took = start(platform, function, "restored", checks)
        times.append(took)
        if "criu;dur" in headers.get("server-timing", "") and row["restorer"] == "program":
            row["restorer"], row["because"] = "criu", "its restore program failed: see the worker's log"
    row["restored_ms"] = statistics.median(times)
    row["ratio"] = row["booted_ms"] / row["restored_ms"]
    row["memory_bytes"] = platform.instances(function)[0]["memory_bytes"]


def run(platform, name, folder, count, keep):
    """One program's row. Its `failed` names the first step that went wrong, and how."""
    check = json.loads((folder / "check.json").read_text())
    config = (folder / "fn.toml").read_text()
    function = next(line.split('"')[1] for line in config.splitlines() if line.startswith("name"))
    row = {"name": name, "program": check["program"], "from": check["from"], "at": int(time.time())}
    row["load"] = os.getloadavg()[0]
    kept = check["ask"] + check.get("kept", [])
    two_workers = len(json.loads(platform.command("workers", "--json"))) > 1

    steps = {
        "deploy": lambda: deploy(platform, folder, row),
        "boot": lambda: row.update(booted_ms=start(platform, function, "booted", check["ask"])[1]),
        "restore": lambda: restores(platform, function, kept, count, row),
    }
    if two_workers:
        steps["migrate"] = lambda: row.update(pause_ms=migrate(platform, function, check))
    try:
        for step, act in steps.items():
            act()
    except Wrong as error:
        row["failed"] = f"{step}: {error}"
    if not keep:
        try:
            platform.command("delete", function, "--yes")
        except Wrong as error:
            if "function_not_found" not in str(error):
                print(f"{name}: left behind: {error}", file=sys.stderr)
    return row


def cells(row):
    """A row of the table, as words."""

    def number(key, unit=1.0, digits=0):
        return f"{row[key] / unit:.{digits}f}" if row.get(key) is not None else "-"

    said = row.get("failed") or (f"CRIU: {row['because']}" if row.get("because") else "right")
    said = " ".join(said.split()).replace("|", "/").replace("`", "'").replace("<", "(").replace(">", ")")
    said = said if len(said) <= CELL else said[: CELL - 2] + " …"
    program = f"{row['program']} ({row['from']})"
    times = [number("booted_ms"), number("restored_ms"), number("ratio", digits=1)]
    return [program, *times, number("memory_bytes", 2**20), row.get("restorer", "-"), number("pause_ms"), said]


def table(rows):
    head = "program | booted, ms | restored, ms | ratio | memory, MiB | restored by | moved, ms | right, or what failed"
    lines = [f"| {head} |", "|---|---:|---:|---:|---:|---|---:|---|"]
    return "\n".join(lines + [f"| {' | '.join(cells(row))} |" for row in rows])


def write_page(rows):
    right = sum("failed" not in row for row in rows)
    programs = sum(row.get("restorer") == "program" for row in rows)
    loads = sorted(row["load"] for row in rows)
    day = time.strftime("%Y-%m-%d", time.gmtime(max(row["at"] for row in rows)))
    PAGE.write_text(f"""# Programs of others

```sh
load-tests/zoo/zoo.py --all --write-docs        # FN_URL and FN_KEY name a running platform with two workers
```

Programs that nobody of the project wrote, each deployed from its folder in `load-tests/zoo/`. Each was booted once and
restored {rows[0]["restores"]} times. Every copy had to answer as the folder's `check.json` says, with what the warm-up
requests had left in the program. Then the last copy was changed, moved to another worker, and asked once more.

**{right} of {len(rows)} are right in every column; {programs} are restored by a restore program.**
The last run was on {day}. Rows of programs that it did not run are of earlier builds.

The times are no benchmark: the machine had other work meanwhile (2 cores, load {loads[0]:.1f} to
{loads[-1]:.1f}), and both workers were on it.

| column | what |
|---|---|
| booted, restored | from the request to the last byte of the first answer; of restored starts the median |
| memory | what a restored copy is charged after its answers |
| restored by | `program`: a [restore program](../restore-program.md); `criu`: CRIU, for the reason in the last column |
| moved | how long the instance stood still when it [migrated](../../how-to/migrate-an-instance.md) |

{table(rows)}
""")


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("names", nargs="*")
    for flag in ["--all", "--list", "--keep", "--write-docs"]:
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--url", default=os.environ.get("FN_URL", "http://127.0.0.1:8080"))
    parser.add_argument("--key", default=os.environ.get("FN_KEY", ""))
    parser.add_argument("--fn", default="fn")
    parser.add_argument("--restores", type=int, default=5)
    parser.add_argument("--record", type=pathlib.Path, default=ROOT / "load-tests/results/zoo.json")
    args = parser.parse_args()
    known = folders()
    if args.list:
        print("\n".join(known))
        return 0
    names = list(known) if args.all else args.names
    if unknown := ", ".join(name for name in names if name not in known):
        parser.error(f"no such program: {unknown}; --list prints all")
    if not names and not args.write_docs:
        parser.error("name a program, or --all")

    def read():
        return json.loads(args.record.read_text()) if args.record.exists() else {}

    record = read()
    platform = Platform(args.url, args.key, args.fn)
    for name in names:
        begun = time.monotonic()
        try:
            row = run(platform, name, known[name], args.restores, args.keep)
        except (Wrong, OSError) as error:
            print(f"{name}: the platform does not answer: {error}", file=sys.stderr)
            return 1
        row["restores"] = args.restores
        record = read() | {name: row}
        args.record.parent.mkdir(parents=True, exist_ok=True)
        args.record.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
        print(f"{name}: {row.get('failed') or 'right'} ({time.monotonic() - begun:.0f} s)", file=sys.stderr)
    print(table([record[name] for name in names]))
    if args.write_docs:
        write_page([record[name] for name in sorted(record) if name in known])
    return int(any("failed" in record[name] for name in names))


if __name__ == "__main__":
    sys.exit(main())
