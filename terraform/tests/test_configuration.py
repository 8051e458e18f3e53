"""What must hold of the AWS configuration, asserted on the parsed files: no provider and no network is needed."""

import fnmatch
import json
import re
import shutil
import subprocess
import tempfile
import unittest

from configuration import BLOCKS, REPOSITORY, ROOT, of, references


class Variables(unittest.TestCase):
    def test_every_variable_is_described_typed_and_validated(self):
        for variable in of("variable"):
            with self.subTest(str(variable)):
                self.assertGreater(len(variable["description"]), 5)
                self.assertTrue(variable["type"])
                for validation in variable["validation"]:
                    self.assertIn(f"var.{variable.name}", validation["condition"])
                    self.assertTrue(validation["error_message"].endswith("."), validation["error_message"])

    def test_every_variable_is_used_and_every_one_used_is_declared(self):
        for folder in {b.folder for b in BLOCKS}:
            text = "\n".join(p.read_text() for p in folder.glob("*.tf") if p.name != "variables.tf")
            declared = {v.name for v in of("variable", folder=folder)}
            with self.subTest(str(folder)):
                self.assertEqual(declared, references(text, "var"))

    def test_every_output_is_described(self):
        for output in of("output"):
            with self.subTest(str(output)):
                self.assertGreater(len(output["description"]), 5)

    def test_modules_are_called_with_what_they_declare(self):
        for module in of("module"):
            folder = (module.folder / module["source"]).resolve()
            declared = {v.name: v for v in of("variable", folder=folder)}
            given = set(module.body) - {"source", "providers", "depends_on", "count", "for_each"}
            with self.subTest(str(module)):
                self.assertTrue(declared, f"{folder} has no variables")
                self.assertLessEqual(given, set(declared))
                self.assertLessEqual(
                    {n for n, v in declared.items() if v.get("default") is None and "default" not in v.body}, given
                )

    def test_outputs_of_modules_that_are_read_exist(self):
        for folder in {m.folder for m in of("module")}:
            text = "\n".join(p.read_text() for p in folder.glob("*.tf"))
            for module in of("module", folder=folder):
                have = {o.name for o in of("output", folder=(folder / module["source"]).resolve())}
                with self.subTest(str(module)):
                    self.assertLessEqual(references(text, f"module.{module.name}"), have)


class Network(unittest.TestCase):
    def test_nothing_but_the_balancer_is_open_to_the_outside(self):
        for rule in of("resource", "aws_vpc_security_group_ingress_rule"):
            if "cidr_ipv4" in rule.body or "cidr_ipv6" in rule.body or "prefix_list_id" in rule.body:
                self.assertEqual(rule.folder.name, "firewall")
                if rule.name == "monitoring":
                    # Networks that the operator names, for metrics; none by default, and never the world.
                    self.assertIn("local.looks", rule["for_each"])
                    continue
                self.assertEqual(rule.name, "clients", str(rule))
                self.assertIn('this["balancer"]', rule["security_group_id"])
        (monitoring,) = [v for v in of("variable", folder=ROOT) if v.name == "monitoring_cidrs"]
        self.assertEqual(monitoring["default"], [])
        self.assertIn('!endswith(cidr, "/0")', str(monitoring["validation"]))
        text = (ROOT / "modules/firewall/main.tf").read_text()
        self.assertRegex(text, r"doors\s*= .*setproduct\(var\.client_cidrs, \[80, 443\]\)")

    def test_rules_stand_alone_so_that_none_is_overlooked(self):
        for group in of("resource", "aws_security_group") + of("resource", "aws_default_security_group"):
            self.assertFalse({"ingress", "egress"} & set(group.body), str(group))
        self.assertEqual(of("resource", "aws_security_group_rule"), [])

    def test_tiers_speak_to_each_other_as_the_architecture_says(self):
        text = (ROOT / "modules/firewall/main.tf").read_text()
        ways = set(re.findall(r'\["([a-z-]+)", "([a-z-]+)", (\d+)\]', text))
        self.assertEqual(
            ways,
            {
                ("balancer", "gateway", "8080"),
                ("gateway", "scheduler-balancer", "8081"),
                ("worker", "scheduler-balancer", "8081"),
                ("scheduler-balancer", "scheduler", "8081"),
                ("gateway", "scheduler", "8081"),
                ("worker", "scheduler", "8081"),
                ("gateway", "worker", "8082"),
                ("worker", "gateway", "8083"),
                ("scheduler", "worker", "8082"),
                ("worker", "worker", "8082"),
                ("scheduler", "database", "5432"),
            },
        )

    def test_machines_and_the_database_have_no_public_address(self):
        for subnet in of("resource", "aws_subnet"):
            self.assertIs(subnet["map_public_ip_on_launch"], False, str(subnet))
        for database in of("resource", "aws_db_instance"):
            self.assertIs(database["publicly_accessible"], False, str(database))
        for module in of("module", folder=ROOT):
            if module["source"] == "./modules/fleet":
                self.assertIn("private_subnet_ids", module["subnet_ids"], str(module))

    def test_functions_cannot_reach_the_metadata_of_the_machine(self):
        templates = of("resource", "aws_launch_template")
        self.assertTrue(templates)
        self.assertEqual(of("resource", "aws_instance"), [], "machines come from launch templates alone")
        for template in templates:
            for options in template["metadata_options"]:
                self.assertEqual(
                    (options["http_tokens"], options["http_put_response_hop_limit"]), ("required", 1), str(template)
                )

    def test_listeners_speak_tls_or_redirect_to_it(self):
        for listener in of("resource", "aws_lb_listener"):
            action = listener["default_action"][0]
            if listener["protocol"] == "HTTP":
                self.assertEqual(
                    (action["type"], action["redirect"][0]["protocol"]), ("redirect", "HTTPS"), str(listener)
                )
            elif listener["protocol"] == "HTTPS":
                self.assertIn("TLS13", listener["ssl_policy"])
            else:
                self.assertEqual((listener["protocol"], listener.name), ("TCP", "scheduler"))


class Schedulers(unittest.TestCase):
    def test_one_that_stands_by_is_not_replaced_for_it(self):
        (group,) = [g for g in of("resource", "aws_lb_target_group") if g.name == "scheduler"]
        self.assertEqual(group["health_check"][0]["path"], "/readyz")
        schedulers = next(m for m in of("module", folder=ROOT) if m.name == "schedulers")
        self.assertEqual(schedulers["health_check_type"], "EC2")


class Fleets(unittest.TestCase):
    def test_a_machine_is_in_service_only_when_its_boot_says_so(self):
        (group,) = of("resource", "aws_autoscaling_group")
        hooks = {h["name"]: h for h in group["initial_lifecycle_hook"]}
        self.assertEqual(hooks["boot"]["lifecycle_transition"], "autoscaling:EC2_INSTANCE_LAUNCHING")
        self.assertEqual(hooks["boot"]["default_result"], "ABANDON")
        self.assertEqual(hooks["drain"]["default_result"], "CONTINUE")
        self.assertTrue(group["instance_refresh"][0]["preferences"][0]["auto_rollback"])
        (lifecycle,) = [s for d, s in statements() if s.get("sid") == "Lifecycle"]
        self.assertIn("autoscaling:CompleteLifecycleAction", lifecycle["actions"])


class Rest(unittest.TestCase):
    """Data at rest."""

    def test_everything_is_encrypted(self):
        for template in of("resource", "aws_launch_template"):
            for disk in template.blocks("ebs"):
                self.assertIs(disk["encrypted"], True, str(template))
        for database in of("resource", "aws_db_instance"):
            self.assertIs(database["storage_encrypted"], True)
            self.assertIn("key_arn", database["kms_key_id"])
        keyed = {
            "aws_secretsmanager_secret": "kms_key_id",
            "aws_cloudwatch_log_group": "kms_key_id",
            "aws_sns_topic": "kms_master_key_id",
        }
        for type_, argument in keyed.items():
            self.assertTrue(of("resource", type_))
            for resource in of("resource", type_):
                self.assertEqual(resource[argument], "${var.key_arn}", str(resource))

    def test_every_bucket_is_encrypted_private_versioned_and_for_tls_only(self):
        text = (ROOT / "modules/storage/main.tf").read_text()
        buckets = {b.name for b in of("resource", "aws_s3_bucket")}
        self.assertEqual(buckets, set(re.findall(r"(\w+)\s+= \{ id = aws_s3_bucket\.\1\.id", text)))
        self.assertEqual(
            buckets, {e.name for e in of("resource", "aws_s3_bucket_server_side_encryption_configuration")}
        )
        self.assertEqual(buckets, {e.name for e in of("resource", "aws_s3_bucket_lifecycle_configuration")})
        for type_ in (
            "aws_s3_bucket_public_access_block",
            "aws_s3_bucket_versioning",
            "aws_s3_bucket_policy",
            "aws_s3_bucket_ownership_controls",
        ):
            (each,) = of("resource", type_)
            self.assertEqual(each["for_each"], "${local.buckets}", str(each))
        (block,) = of("resource", "aws_s3_bucket_public_access_block")
        for what in ("block_public_acls", "block_public_policy", "ignore_public_acls", "restrict_public_buckets"):
            self.assertIs(block[what], True)
        (policy,) = [d for d in of("data", "aws_iam_policy_document") if d.name == "tls_only"]
        deny = policy["statement"][0]
        self.assertEqual(
            (deny["effect"], deny["actions"], deny["condition"][0]["variable"]),
            ("Deny", ["s3:*"], "aws:SecureTransport"),
        )

    def test_no_rule_removes_what_serves_for_being_old(self):
        (objects,) = [c for c in of("resource", "aws_s3_bucket_lifecycle_configuration") if c.name == "objects"]
        for expiration in objects.blocks("expiration"):
            self.assertEqual(set(expiration), {"expired_object_delete_marker"})
        self.assertTrue(objects.blocks("abort_incomplete_multipart_upload"))

    def test_no_secret_gets_into_state_or_plan(self):
        for block in BLOCKS:
            for argument in ("password", "secret_string", "master_password"):
                self.assertNotIn(argument, block.body, str(block))
        self.assertEqual({b.type for b in BLOCKS if b.kind == "resource" and b.type.startswith("random_")}, set())
        self.assertEqual([b for b in of("data") if b.type == "aws_secretsmanager_secret_version"], [])

    def test_the_database_takes_tls_only_and_keeps_backups(self):
        (group,) = of("resource", "aws_db_parameter_group")
        self.assertIn(("rds.force_ssl", "1"), {(p["name"], p["value"]) for p in group["parameter"]})
        self.assertIn("sslmode=verify-full", (ROOT / "boot/boot.sh").read_text())


def statements():
    for document in of("data", "aws_iam_policy_document"):
        for statement in document.blocks("statement"):
            yield document, statement


class Rights(unittest.TestCase):
    # (document, sid): why it is about everything.
    WILD_RESOURCES = {
        ("key", "Account"): "a key's policy is about that key",
        ("key", "Logs"): "a key's policy is about that key",
        ("key", "Alarms"): "a key's policy is about that key",
        ("scheduler", "Metrics"): "PutMetricData knows no resources; a condition holds the namespace",
    }
    WILD_ACTIONS = {
        ("key", "Account"): {"kms:*"},
        ("key", "Logs"): {"kms:ReEncrypt*", "kms:GenerateDataKey*"},
        ("key", "Alarms"): {"kms:GenerateDataKey*"},
        ("tls_only", "TlsOnly"): {"s3:*"},
    }

    def test_no_right_is_about_everything_without_a_reason(self):
        for document, statement in statements():
            at = (document.name, statement.get("sid"))
            with self.subTest(f"{document} {at}"):
                resources = statement.get("resources", [])
                if (resources if isinstance(resources, list) else str(resources)) == ["*"] or '"*"' in str(
                    resources
                ).replace("'", '"'):
                    self.assertIn(at, self.WILD_RESOURCES)
                    if at[1] != "Account":
                        self.assertTrue(statement.get("condition"), "a condition must hold it")
                wild = {a for a in re.findall(r"[\w-]+:[\w*]+", str(statement["actions"])) if "*" in a}
                self.assertLessEqual(wild, self.WILD_ACTIONS.get(at, set()))

    def test_anybody_is_named_only_to_be_refused(self):
        for document, statement in statements():
            for principal in statement.get("principals", []):
                if "*" in principal["identifiers"] or principal["type"] == "*":
                    self.assertEqual(statement["effect"], "Deny", str(document))

    def test_no_role_removes_a_version_or_changes_what_the_bucket_keeps(self):
        allowed = {"s3:ListBucket", "s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"}
        for document, statement in statements():
            if document.folder == ROOT:
                self.assertLessEqual(
                    {a for a in statement["actions"] if str(a).startswith("s3:")}, allowed, str(document)
                )

    def test_a_gateway_has_no_right_to_objects_and_a_worker_none_to_the_admin_key(self):
        text = (ROOT / "policies.tf").read_text()
        self.assertRegex(text, r'worker\s+= \["cluster-token"\]')
        gateways = next(m for m in of("module", folder=ROOT) if m.name == "gateways")
        self.assertEqual(len(gateways["policies"]), 1)

    def test_the_master_key_is_unwrapped_by_schedulers_alone_and_for_their_cluster(self):
        about = [(d.name, s) for d, s in statements() if "statement.value" in str(s.get("resources"))]
        self.assertEqual(
            [(name, s["sid"]) for name, s in about], [("scheduler", "MasterKey"), ("scheduler", "MasterKeyState")]
        )
        (use, state) = [s for _, s in about]
        (condition,) = use["condition"]
        held = (condition["test"], condition["variable"], condition["values"])
        self.assertEqual(held, ("StringEquals", "kms:EncryptionContext:rekindle:cluster", ["${var.name}"]))
        self.assertEqual(state["actions"], ["kms:DescribeKey"])
        # What the code asks for.
        source = (REPOSITORY / "crates/kms/src/lib.rs").read_text()
        asked = {f"kms:{name}" for name in re.findall(r'(?:let operation = |asking\()"(\w+)"', source)}
        self.assertEqual(asked, set(use["actions"]) | set(state["actions"]))
        self.assertIn('"rekindle:cluster"', source)
        self.assertIn('setting FN_MASTER_KEY_CLUSTER "$CLUSTER"', (ROOT / "boot/boot.sh").read_text())

    def test_every_check_that_is_passed_over_has_a_reason(self):
        for path in ROOT.rglob("*.tf"):
            for line in path.read_text().splitlines():
                if "checkov:skip" in line:
                    self.assertRegex(line, r"checkov:skip=CKV2?_AWS_\d+: \S+ \S+", f"{path}: {line}")


def local(name):
    return next(b[name] for b in BLOCKS if b.kind == "locals" and b.folder == ROOT and name in b.body)


class Objects(unittest.TestCase):
    """What a role may do to which key of the platform's bucket, decided as IAM decides: by any statement that allows
    it."""

    def may(self, role, action, key, if_none_match=False, makes_object=True):
        for document, statement in statements():
            if document.name != role or f"s3:{action}" not in statement["actions"]:
                continue
            resources = statement["resources"]
            each = re.search(r"for key in local\.(\w+)", str(resources))
            patterns = local(each[1]) if each else [re.sub(r".*\.bucket_arn\}/?", "", str(r)) for r in resources]
            # As in S3's policies, an asterisk stands for slashes, too.
            if not any(fnmatch.fnmatchcase(key, str(pattern)) for pattern in patterns):
                continue
            conditions = statement.get("condition", [])
            holds = {
                ("Null", "s3:if-none-match", "false"): if_none_match,
                ("Bool", "s3:ObjectCreationOperation", "false"): not makes_object,
            }
            # A condition that is not known here fails the test.
            if all(holds[(condition["test"], condition["variable"], *condition["values"])] for condition in conditions):
                return True
        return False

    # One of each kind of key (snapshotter/src/keys.rs).
    MANIFEST, BUNDLE = "snapshots/s-1/manifest.json", "snapshots/s-1/bundle"
    IN_PARTS = ["snapshots/s-1/extra/tmp.tar", "layers/ab.tar.zst"]
    ONCE = [MANIFEST, BUNDLE, "chunks/ab", *IN_PARTS]
    OVER = ["snapshots/s-1/working-set", "snapshots/s-1/files", "publishing/s-1/x.0", "publishing/v-hello-1/x.0"]
    NEVER = [
        "runtimes/python",
        "runtime-snapshots/python.json",
        "runtime-snapshots/python/hello.json",
        "collecting/r-1",
        "owner",
        "sources/ab",
    ]

    def test_a_worker_puts_what_makes_a_snapshot_only_where_there_is_nothing(self):
        for key in self.ONCE:
            self.assertTrue(self.may("worker", "PutObject", key, if_none_match=True), key)
            self.assertFalse(self.may("worker", "PutObject", key), key)
        for key in self.OVER:
            self.assertTrue(self.may("worker", "PutObject", key), key)
        for key in self.NEVER:
            self.assertFalse(self.may("worker", "PutObject", key, if_none_match=True), key)

    def test_a_worker_sends_parts_of_what_goes_up_in_parts_alone(self):
        """S3 asks for no condition of a part, but of what makes an object of them."""
        for key in self.ONCE + self.NEVER:
            self.assertEqual(self.may("worker", "PutObject", key, makes_object=False), key in self.IN_PARTS, key)

    def test_a_worker_removes_nothing_but_notes_of_snapshots_being_published(self):
        for key in self.ONCE + self.OVER + self.NEVER:
            self.assertEqual(self.may("worker", "DeleteObject", key), key.startswith("publishing/s-"), key)

    def test_a_worker_gives_up_only_what_goes_up_in_parts(self):
        for key in self.ONCE + self.OVER + self.NEVER:
            self.assertEqual(self.may("worker", "AbortMultipartUpload", key), key in self.IN_PARTS, key)

    def test_a_scheduler_removes_what_nobody_needs(self):
        for key in self.ONCE + self.OVER + self.NEVER:
            for action in ("GetObject", "PutObject", "DeleteObject"):
                self.assertTrue(self.may("scheduler", action, key), f"{action} {key}")

    def test_every_kind_of_key_is_decided_on(self):
        keys = (REPOSITORY / "snapshotter/src/keys.rs").read_text()
        folders = set(re.findall(r'pub const \w+: &str = "([\w-]+)/";', keys))
        self.assertLessEqual(folders, {key.split("/")[0] for key in self.ONCE + self.OVER + self.NEVER})
        in_snapshot = set(re.findall(r'format!\("\{SNAPSHOTS\}\{id\}/([\w-]+)', keys)) | set(
            re.findall(r'pub const (?:MANIFEST|BUNDLE): &str = "([\w.-]+)"', keys)
        )
        self.assertEqual(
            in_snapshot, {key.split("/")[2] for key in self.ONCE + self.OVER if key.startswith("snapshots/")}
        )

    def test_the_code_puts_each_kind_as_the_policy_has_it(self):
        """Who puts a kind of key otherwise moves it in policies.tf: one that is put if absent belongs to those that are
        put once."""
        ways = {
            "snapshotter/src/capture/commit.rs": [
                r"put_if_absent\(&keys::bundle\(",
                r"let key = keys::manifest\(.*\n\s*match store\.put_if_absent\(&key,",
                r"let key = keys::extra\(.*\n.*\n\s*if store\.put_file_if_absent\(&key,",
            ],
            "snapshotter/src/capture/pack.rs": [r"let key = keys::chunk\(.*\n\s*if store\.put_if_absent\(&key,"],
            "snapshotter/src/layer/mod.rs": [r"store\.put_file_if_absent\(&key,"],
            "snapshotter/src/working_set/mod.rs": [r"\.put\(&keys::working_set\("],
            "snapshotter/src/layer/touched.rs": [r"\.put\(&keys::files\("],
            "snapshotter/src/collect/publication.rs": [r"objects\.put\(&key,"],
            "worker/src/instance/runtime_snapshot.rs": [r"\.put\(&scope\.key,"],
        }
        for path, patterns in ways.items():
            text = (REPOSITORY / path).read_text()
            for pattern in patterns:
                self.assertRegex(text, pattern, path)
            self.assertEqual(
                len(re.findall(r"\bput(?:_file)?(?:_if_absent)?\(&", text)),
                len(patterns),
                f"{path} puts something else, too",
            )


class Boot(unittest.TestCase):
    """The script that machines run at their first start."""

    def settings(self, role):
        text = (ROOT / "main.tf").read_text()
        common = re.search(r"merge\(\n\s+\{\n(.*?)\n\s+\},", text, re.S)[1]
        own = re.search(rf'role == "{role}" \? \{{(.*?)\}} : \{{\}}', text, re.S)[1]
        return re.findall(r"^\s*([A-Z][A-Z0-9_]+)\s*=", common, re.M) + re.findall(r"([A-Z][A-Z0-9_]+)\s*=", own)

    def rendered(self, role):
        lines = ["#!/bin/bash"] + [f"{name}='it'\\''s'" for name in self.settings(role)]
        return "\n".join(lines + [(ROOT / "boot/boot.sh").read_text()])

    def test_it_passes_shellcheck_for_each_role(self):
        checker = shutil.which("shellcheck")
        self.assertTrue(checker, "shellcheck is not installed: scripts/setup.sh test-packages")
        for role in ("gateway", "scheduler", "worker"):
            with self.subTest(role), tempfile.NamedTemporaryFile("w", suffix=".sh") as file:
                file.write(self.rendered(role))
                file.flush()
                done = subprocess.run(
                    [checker, "-e", "SC2154,SC2034,SC2153", file.name], capture_output=True, text=True
                )
                self.assertEqual(done.returncode, 0, done.stdout)
                done = subprocess.run(["bash", "-n", file.name], capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, done.stderr)

    def test_each_role_is_given_the_settings_that_it_reads(self):
        script = (ROOT / "boot/boot.sh").read_text()
        head, cases = script.split("case $ROLE in\n")
        body, tail = cases.split("\nesac\n", 1)
        branches = dict(re.findall(r"^(\w+)\)\n(.*?)\n    ;;", body, re.S | re.M))
        known = {name for role in branches for name in self.settings(role)}
        for role, branch in branches.items():
            used = set(re.findall(r"\$\{?([A-Z][A-Z0-9_]+)", head + branch + tail)) & known
            with self.subTest(role):
                self.assertEqual(used, set(self.settings(role)))

    def test_it_sets_only_what_fn_reads(self):
        sources = "".join(
            p.read_text() for folder in ("cli/src", "crates/telemetry/src") for p in (REPOSITORY / folder).rglob("*.rs")
        )
        units = "".join(p.read_text() for p in (REPOSITORY / "packaging/systemd").glob("*"))
        for name in re.findall(r"setting ([A-Z_0-9]+) ", (ROOT / "boot/boot.sh").read_text()):
            with self.subTest(name):
                # What the AWS client and OpenTelemetry's exporters read themselves.
                standard = name.startswith(("AWS_", "OTEL_"))
                self.assertTrue(standard or name in units or f'"{name}"' in sources, f"nobody reads {name}")

    def test_the_commands_it_calls_are_packaged(self):
        script = (ROOT / "boot/boot.sh").read_text()
        for name in set(re.findall(r"rekindle-(\w+)\.(?:service|timer)", script)) - {"ROLE"}:
            self.assertTrue(list((REPOSITORY / "packaging/systemd").glob(f"rekindle-{name}.*")), name)
        for name in re.findall(r"/usr/lib/rekindle/([\w-]+)", script):
            self.assertIn(name, (REPOSITORY / "packaging/build-deb.sh").read_text())


class Examples(unittest.TestCase):
    def module(self, name):
        (module,) = of("module", folder=ROOT / "examples" / name)
        return module

    def test_production_survives_the_loss_of_a_zone(self):
        production = self.module("production")
        self.assertGreaterEqual(len(production["zones"]), 3)
        self.assertNotIn("single_nat_gateway", production.body)
        self.assertGreaterEqual(production["schedulers"]["count"], 2)
        self.assertNotIn("multi_az", production["database"])
        defaults = json.dumps(next(v for v in of("variable", folder=ROOT) if v.name == "database")["type"])
        self.assertIn("multi_az = optional(bool, true)".replace(" ", ""), defaults.replace(" ", ""))
        self.assertGreaterEqual(production["gateways"]["size"]["min"], 2)

    def test_production_refuses_to_be_destroyed(self):
        self.assertNotIn("deletion_protection", self.module("production").body)
        (protection,) = [v for v in of("variable", folder=ROOT) if v.name == "deletion_protection"]
        self.assertIs(protection["default"], True)


if __name__ == "__main__":
    unittest.main()
