#!/usr/bin/env python3
"""Writes the Grafana dashboard beside it: rows of panels, three a line, of what ../prometheus and
docs/reference/metrics.md have.

usage: dashboard.py [OUT]        (default: rekindle.json beside this file)
"""

import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
SELECTED = 'faas_invoked_name=~"$function"'


def quantile(q, metric, by="", where=""):
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({q}, sum by ({labels}) (rate({metric}_bucket{{{where}}}[$__rate_interval])))"


def rate(metric, by="", where=""):
    return f"sum {f'by ({by}) ' if by else ''}(rate({metric}{{{where}}}[$__rate_interval]))"


HITS = rate("rekindle_chunk_cache_lookups_total", where='outcome="hit"')
LOOKUPS = rate("rekindle_chunk_cache_lookups_total")

# Row -> panels: title, unit, what it tells, [(query, legend)].
ROWS = {
    "Serving": [
        (
            "Requests",
            "reqps",
            "Answered by functions, by start kind.",
            [(rate("faas_invocations_total", "start", SELECTED), "{{start}}")],
        ),
        (
            "Failures of the platform",
            "percentunit",
            "Of all requests; alarmed on above 1 %.",
            [("rekindle:platform_failures:ratio_rate5m", "share")],
        ),
        (
            "Failures by reason",
            "reqps",
            "The platform's error codes; 5xx is a function's own.",
            [(rate("faas_errors_total", "error_type", SELECTED), "{{error_type}}")],
        ),
        (
            "Latency that clients see, p50",
            "s",
            "Arrival to headers of the answer, by start kind.",
            [(quantile(0.5, "rekindle_request_duration_seconds", "start", SELECTED), "{{start}}")],
        ),
        (
            "Latency that clients see, p99",
            "s",
            "Arrival to headers of the answer, by start kind.",
            [(quantile(0.99, "rekindle_request_duration_seconds", "start", SELECTED), "{{start}}")],
        ),
        (
            "The function's own time, p99",
            "s",
            "What is left of the latency is the platform's.",
            [(quantile(0.99, "faas_invoke_duration_seconds", "start", SELECTED), "{{start}}")],
        ),
        (
            "Busiest functions",
            "reqps",
            "The ten with most requests.",
            [("topk(10, function:invocations:rate5m)", "{{faas_invoked_name}}")],
        ),
        (
            "Failing functions",
            "percentunit",
            "The ten that fail the greatest share of their requests.",
            [("topk(10, function:failures:ratio_rate5m)", "{{faas_invoked_name}}")],
        ),
        (
            "Cold starts",
            "percentunit",
            "Share of requests that waited for an instance to start.",
            [("rekindle:coldstarts:ratio_rate5m", "share")],
        ),
    ],
    "Gateways": [
        (
            "In flight",
            "short",
            "Against the limit of each.",
            [
                ("sum by (instance) (rekindle_gateway_in_flight)", "{{instance}}"),
                ("max(rekindle_gateway_in_flight_limit)", "limit"),
            ],
        ),
        (
            "Finding a slot, p99",
            "s",
            "Nothing when a lease has one.",
            [(quantile(0.99, "rekindle_gateway_place_duration_seconds", "start"), "{{start}}")],
        ),
        (
            "Attempts again",
            "reqps",
            "The function saw nothing of the first one.",
            [(rate("rekindle_gateway_attempts_again_total", "reason"), "{{reason}}")],
        ),
        (
            "Leased slots",
            "short",
            "Slots of leased instances.",
            [("sum by (state) (rekindle_gateway_slots)", "{{state}}")],
        ),
        (
            "Waiting",
            "short",
            "For a slot, in gateways and in the scheduler.",
            [("sum(rekindle_gateway_waiting)", "gateways"), ("max(rekindle_scheduler_waiting)", "scheduler")],
        ),
        (
            "Given up by clients",
            "reqps",
            "Before the answer began.",
            [(rate("rekindle_gateway_abandoned_total"), "abandoned")],
        ),
    ],
    "Scheduling": [
        ("Workers", "short", "As the scheduler knows them.", [("max by (state) (rekindle_workers)", "{{state}}")]),
        (
            "Memory promised",
            "percentunit",
            "Of what workers may give; alarmed on above 85 %.",
            [
                ("rekindle:worker_memory:reserved_ratio", "all"),
                (
                    "max(rekindle_worker_memory_reserved_bytes / rekindle_worker_memory_capacity_bytes)",
                    "fullest worker",
                ),
            ],
        ),
        ("Instances", "short", "By state.", [(f"sum by (state) (rekindle_instances{{{SELECTED}}})", "{{state}}")]),
        (
            "Placements",
            "reqps",
            "By outcome.",
            [(rate("rekindle_scheduler_placements_total", "outcome"), "{{outcome}}")],
        ),
        (
            "Wait in the queue, p95",
            "s",
            "Of those that had to.",
            [(quantile(0.95, "rekindle_scheduler_queue_duration_seconds", "outcome"), "{{outcome}}")],
        ),
        (
            "Deploys",
            "short",
            "Within the last hour.",
            [("sum by (outcome) (increase(rekindle_deploys_total[1h]))", "{{outcome}}")],
        ),
    ],
    "Starting": [
        (
            "Starts",
            "ops",
            "By start kind and outcome.",
            [(rate("rekindle_starts_total", "start, outcome"), "{{start}} {{outcome}}")],
        ),
        (
            "Until ready, p99",
            "s",
            "What a cold start waits for on the worker.",
            [(quantile(0.99, "faas_init_duration_seconds", "start", SELECTED), "{{start}}")],
        ),
        (
            "Phases of a restore, p50",
            "s",
            "Phases overlap.",
            [(quantile(0.5, "rekindle_start_phase_duration_seconds", "phase", 'start="restored"'), "{{phase}}")],
        ),
        (
            "Where restores find memory",
            "ops",
            "The host's template, its disk, or S3.",
            [(rate("rekindle_restores_total", "tier"), "{{tier}}")],
        ),
        (
            "Page faults, p99",
            "s",
            "From the pager's being told until the page is there.",
            [(quantile(0.99, "rekindle_pager_fault_duration_seconds"), "p99")],
        ),
        (
            "Sandboxes",
            "ops",
            "Taken from the pool, or made while a start waited.",
            [(rate("rekindle_sandboxes_taken_total", "from"), "{{from}}")],
        ),
    ],
    "Memory and store": [
        (
            "Templates",
            "bytes",
            "Against the limits.",
            [("sum(rekindle_templates_memory_bytes)", "used"), ("sum(rekindle_templates_limit_bytes)", "limit")],
        ),
        ("Chunk cache hits", "percentunit", "Of reads of chunks.", [(HITS + " / (" + LOOKUPS + " > 0)", "hits")]),
        (
            "Memory of instances",
            "bytes",
            "Charged to their control groups.",
            [("sum by (instance) (rekindle_worker_instances_memory_bytes)", "{{instance}}")],
        ),
        ("Object store", "reqps", "By outcome.", [(rate("rekindle_s3_requests_total", "outcome"), "{{outcome}}")]),
        (
            "Object store, p99",
            "s",
            "By operation.",
            [(quantile(0.99, "rekindle_s3_request_duration_seconds", "operation"), "{{operation}}")],
        ),
        (
            "Object store, bytes",
            "Bps",
            "Bodies received and sent.",
            [(rate("rekindle_s3_transferred_bytes_total", "direction"), "{{direction}}")],
        ),
    ],
    "Kept, evicted, moved": [
        (
            "Captured",
            "percentunit",
            "Of the memory captured, what had to be stored; of that, what the store had already.",
            [
                (
                    'sum(increase(rekindle_capture_bytes_total{kind="stored"}[1h]))'
                    ' / (sum(increase(rekindle_capture_bytes_total{kind="memory"}[1h])) > 0)',
                    "stored",
                ),
                (
                    'sum(increase(rekindle_capture_bytes_total{kind="shared"}[1h]))'
                    ' / (sum(increase(rekindle_capture_bytes_total{kind="stored"}[1h])) > 0)',
                    "shared",
                ),
            ],
        ),
        (
            "Evicted for want of room",
            "Bps",
            "Templates and chunks that went for others, idle memory of instances that went to swap.",
            [
                (rate("rekindle_templates_evicted_bytes_total", "part"), "templates: {{part}}"),
                (rate("rekindle_chunk_cache_evicted_bytes_total"), "chunks"),
                (rate("rekindle_idle_evicted_bytes_total", "state"), "instances: {{state}}"),
            ],
        ),
        (
            "Idle memory that is evicted",
            "bytes",
            "Of instances; it comes back by fault.",
            [("sum by (instance) (rekindle_idle_swapped_bytes)", "{{instance}}")],
        ),
        (
            "Moves",
            "short",
            "Within the last hour, by what they were and came to.",
            [
                ("sum by (kind, outcome) (increase(rekindle_migrations_total[1h]))", "{{kind}} {{outcome}}"),
                ("sum by (outcome) (increase(rekindle_scheduler_rebalanced_total[1h]))", "rebalanced: {{outcome}}"),
            ],
        ),
        (
            "Pause of a move, p99",
            "s",
            "How long no request could be in the instance.",
            [(quantile(0.99, "rekindle_migration_pause_duration_seconds", "phase"), "{{phase}}")],
        ),
        (
            "Memory behind a move, p99",
            "s",
            "So long a loss of the source ends the instance.",
            [(quantile(0.99, "rekindle_migration_behind_duration_seconds"), "p99")],
        ),
    ],
    "Asynchronous invocations": [
        (
            "Accepted, given up",
            "reqps",
            "What is given up is a dead letter.",
            [
                (rate("rekindle_async_accepted_total", where=SELECTED), "accepted"),
                (rate("rekindle_async_dead_total", "error_type", SELECTED), "dead: {{error_type}}"),
            ],
        ),
        (
            "Waiting and running",
            "short",
            "By state.",
            [(f"sum by (state) (rekindle_async_depth{{{SELECTED}}})", "{{state}}")],
        ),
        (
            "The oldest",
            "s",
            "Its age, by function; alarmed on above a quarter of an hour.",
            [
                (
                    f"topk(10, max by (faas_invoked_name) (rekindle_async_oldest_age_seconds{{{SELECTED}}}))",
                    "{{faas_invoked_name}}",
                )
            ],
        ),
    ],
    "Processes": [
        ("CPU", "short", "Cores.", [(rate("process_cpu_seconds_total", "job, instance"), "{{job}} {{instance}}")]),
        (
            "Resident memory",
            "bytes",
            "Of the roles themselves.",
            [("process_resident_memory_bytes", "{{job}} {{instance}}")],
        ),
        ("Open descriptors", "short", "Of the roles themselves.", [("process_open_fds", "{{job}} {{instance}}")]),
    ],
}

SOURCE = {"type": "prometheus", "uid": "${source}"}


def panels():
    made, line = [], 0
    for row, contents in ROWS.items():
        made.append(
            {
                "id": len(made) + 1,
                "type": "row",
                "title": row,
                "collapsed": False,
                "panels": [],
                "gridPos": {"h": 1, "w": 24, "x": 0, "y": line},
            }
        )
        line += 1
        for index, (title, unit, description, queries) in enumerate(contents):
            made.append(
                {
                    "id": len(made) + 1,
                    "type": "timeseries",
                    "title": title,
                    "description": description,
                    "datasource": SOURCE,
                    "gridPos": {"h": 8, "w": 8, "x": index % 3 * 8, "y": line + index // 3 * 8},
                    "fieldConfig": {
                        "defaults": {"unit": unit, "min": 0, "custom": {"fillOpacity": 8, "showPoints": "never"}},
                        "overrides": [],
                    },
                    "options": {
                        "legend": {"displayMode": "list", "placement": "bottom"},
                        "tooltip": {"mode": "multi", "sort": "desc"},
                    },
                    "targets": [
                        {
                            "refId": chr(ord("A") + n),
                            "datasource": SOURCE,
                            "expr": query,
                            "legendFormat": legend,
                            "exemplar": "_bucket" in query,
                        }
                        for n, (query, legend) in enumerate(queries)
                    ],
                }
            )
        line += (len(contents) + 2) // 3 * 8
    return made


def dashboard():
    return {
        "uid": "rekindle",
        "title": "Rekindle",
        "tags": ["rekindle"],
        "schemaVersion": 39,
        "editable": False,
        "graphTooltip": 1,
        "time": {"from": "now-3h", "to": "now"},
        "refresh": "30s",
        "templating": {
            "list": [
                {"name": "source", "label": "Source", "type": "datasource", "query": "prometheus"},
                {
                    "name": "function",
                    "label": "Function",
                    "type": "query",
                    "datasource": SOURCE,
                    "query": "label_values(faas_invocations_total, faas_invoked_name)",
                    "refresh": 2,
                    "includeAll": True,
                    "multi": True,
                    "allValue": ".*",
                    "current": {"text": "All", "value": "$__all"},
                },
            ]
        },
        "annotations": {
            "list": [
                {
                    "name": "Alerts",
                    "datasource": SOURCE,
                    "enable": True,
                    "iconColor": "red",
                    "expr": 'ALERTS{alertname=~"Rekindle.*",alertstate="firing"}',
                    "titleFormat": "{{alertname}}",
                }
            ]
        },
        "panels": panels(),
    }


def text():
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else HERE / "rekindle.json").write_text(text())
