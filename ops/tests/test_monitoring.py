"""Rules, their tests and the dashboard against what the roles really measure (docs/reference/metrics.md,
which tests of theirs write) and each other."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

OPS = pathlib.Path(__file__).resolve().parents[1]
DOCS = OPS.parent / "docs"
sys.path.insert(0, str(OPS / "grafana"))
sys.dont_write_bytecode = True
import dashboard  # noqa: E402

RULES = [OPS / "prometheus" / name for name in ("recording.yml", "alerts.yml")]
# What Prometheus adds itself.
ADDED = {"le", "job", "instance", "alertname", "alertstate", "severity", "quantile"}


def documented():
    """Metric -> its labels, with the series that a histogram has."""
    metrics = {}
    for name, kind, labels in re.findall(
        r"^\| `(\w+)` \| [^|]* \| (\w+) \| ([^|]*) \|", (DOCS / "reference/metrics.md").read_text(), re.M
    ):
        known = set(re.findall(r"`(\w+)`", labels))
        for suffix in ("_bucket", "_sum", "_count") if kind == "histogram" else ("",):
            metrics.setdefault(name + suffix, set()).update(known)
    return metrics


METRICS = documented()


def rules(path):
    """The rules of a file: (name, expression). Read line by line, as there may be no YAML parser."""
    found = []
    for block in re.split(r"\n\s+- (?=record:|alert:)", path.read_text())[1:]:
        name = re.match(r"(?:record|alert): (\S+)", block)[1]
        expression = re.search(r"expr: (?:>-\n((?:\s{10,}.*\n?)+)|(.*))", block)
        found.append((name, " ".join((expression[1] or expression[2]).split()), block))
    return found


RECORDED = {name for name, _, _ in rules(RULES[0])}
ALERTS = {name: block for name, _, block in rules(RULES[1])}
QUERIES = [(f"{path.name}: {name}", expression) for path in RULES for name, expression, _ in rules(path)]
QUERIES += [(panel["title"], target["expr"]) for panel in dashboard.panels() for target in panel.get("targets", [])]


def series(expression):
    """Names of series and the labels that they are selected by."""
    bare = re.sub(r'"[^"]*"', '""', expression)
    for name, labels in re.findall(r"\b((?:rekindle|faas|process|function|start)[_:][\w:]+)\s*(?:\{([^}]*)\})?", bare):
        yield name, set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", labels))


class Names(unittest.TestCase):
    def test_the_table_of_metrics_was_understood(self):
        self.assertGreater(len(METRICS), 70)
        self.assertIn("rekindle_request_duration_seconds_bucket", METRICS)

    def test_every_series_that_is_asked_for_exists_with_the_labels_it_is_selected_by(self):
        self.assertGreater(len(QUERIES), 60)
        for where, expression in QUERIES:
            found = list(series(expression))
            with self.subTest(where):
                self.assertTrue(found or "up{" in expression, expression)
                for name, labels in found:
                    if name in RECORDED or name == "faas_invoked_name":
                        continue
                    self.assertIn(name, METRICS)
                    self.assertLessEqual(labels, METRICS[name] | ADDED, name)

    def test_what_is_grouped_by_is_a_label_of_something_there(self):
        for where, expression in QUERIES:
            labels = set().union(*(METRICS.get(name, set()) for name, _ in series(expression))) | ADDED
            if any(name in RECORDED for name, _ in series(expression)):
                continue
            for group in re.findall(r"by \(([^)]*)\)", expression):
                with self.subTest(where):
                    self.assertLessEqual({label.strip() for label in group.split(",")}, labels)

    def test_series_of_the_rules_tests_exist_too(self):
        for name, labels in re.findall(r"series: '(\w+)(?:\{([^}]*)\})?'", (OPS / "prometheus/tests.yml").read_text()):
            if name == "up":
                continue
            with self.subTest(name):
                self.assertIn(name, METRICS)
                self.assertLessEqual(set(re.findall(r"(\w+)=", labels)), METRICS[name] | ADDED)

    def test_error_codes_that_are_named_exist(self):
        codes = {path.stem for path in (DOCS / "reference/errors").glob("*.md")}
        for where, expression in QUERIES:
            for value in re.findall(r'error_type[=!]~?"([^"]*)"', expression) + re.findall(
                r'placements_total\{outcome="([^"]*)"', expression
            ):
                for part in value.split("|"):
                    with self.subTest(where):
                        self.assertTrue(
                            part in ("5xx", "placed") or any(re.fullmatch(part, code) for code in codes), part
                        )


class Alerts(unittest.TestCase):
    def test_each_has_a_severity_and_a_section_that_says_what_to_do(self):
        text = (DOCS / "reference/alerts.md").read_text()
        sections = {
            heading.lower(): body for heading, body in re.findall(r"^## (\w+)\n(.*?)(?=^#|\Z)", text, re.M | re.S)
        }
        for name, block in ALERTS.items():
            with self.subTest(name):
                self.assertRegex(block, r"severity: (critical|warning)")
                self.assertRegex(block, rf"runbook: docs/reference/alerts\.md#{name.lower()}(?!\S)")
                section = sections[name.lower()]
                for part in ("Means", "Check", "Act"):
                    self.assertIn(f"**{part}:**", section)
        self.assertEqual({s for s in sections if s.startswith("rekindle")}, {name.lower() for name in ALERTS})

    def test_each_is_seen_to_fire_by_a_test(self):
        tested = re.findall(
            r"alertname: (\w+)\n\s+eval_time: \S+\n\s+exp_alerts:\n\s+- exp_labels",
            (OPS / "prometheus/tests.yml").read_text(),
        )
        self.assertEqual(sorted(tested), sorted(ALERTS))


class Promtool(unittest.TestCase):
    def setUp(self):
        cached = pathlib.Path(os.environ.get("FN_CACHE", "/var/cache/rekindle"), "tools/bin/promtool")
        self.promtool = shutil.which("promtool") or (str(cached) if cached.exists() else None)
        if self.promtool is None:
            self.assertFalse(os.environ.get("REKINDLE_REQUIRE_ALL"), "promtool is missing: scripts/install-promtool.sh")
            self.skipTest("promtool is missing: scripts/install-promtool.sh")

    def run_promtool(self, *arguments):
        done = subprocess.run([self.promtool, *map(str, arguments)], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_rules_are_sound(self):
        self.run_promtool("check", "rules", *RULES)

    def test_alerts_fire_when_they_must_and_not_on_a_calm_day(self):
        self.run_promtool("test", "rules", OPS / "prometheus/tests.yml")

    def test_the_dashboard_s_queries_are_promql(self):
        with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
            file.write("groups:\n  - name: dashboard\n    rules:\n")
            for number, (_, expression) in enumerate(QUERIES):
                expression = expression.replace("$__rate_interval", "5m").replace("$function", ".*")
                file.write(f"      - record: query:{number}\n        expr: {json.dumps(expression)}\n")
            file.flush()
            self.run_promtool("check", "rules", file.name)


class Dashboard(unittest.TestCase):
    def test_the_file_is_what_the_program_writes(self):
        self.assertEqual((OPS / "grafana/rekindle.json").read_text(), dashboard.text(), "run ops/grafana/dashboard.py")

    def test_panels_have_ids_of_their_own_units_and_places_that_do_not_overlap(self):
        panels = dashboard.dashboard()["panels"]
        self.assertEqual(len({p["id"] for p in panels}), len(panels))
        taken = set()
        for panel in panels:
            at = panel["gridPos"]
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            self.assertLessEqual(at["x"] + at["w"], 24)
            self.assertFalse(taken & cells, panel["title"])
            taken |= cells
            if panel["type"] != "row":
                self.assertTrue(panel["fieldConfig"]["defaults"]["unit"] and panel["description"].endswith("."))
                self.assertTrue(
                    all(t["datasource"] == dashboard.SOURCE and t["legendFormat"] for t in panel["targets"])
                )

    def test_variables_that_queries_use_exist(self):
        board = dashboard.dashboard()
        names = {v["name"] for v in board["templating"]["list"]} | {"__rate_interval", "__all"}
        self.assertLessEqual(set(re.findall(r"\$\{?(\w+)", json.dumps(board))), names)


if __name__ == "__main__":
    unittest.main()
