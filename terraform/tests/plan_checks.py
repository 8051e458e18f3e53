"""What must hold of a plan that the real provider made (scripts/terraform-check.sh validate): values as they would be
sent to AWS.

REKINDLE_PLAN names the plan as JSON; its file's name is the example's.
"""

import json
import os
import pathlib
import unittest

PATH = pathlib.Path(os.environ["REKINDLE_PLAN"])


def resources(module):
    yield from module.get("resources", [])
    for child in module.get("child_modules", []):
        yield from resources(child)


PLANNED = [
    r for r in resources(json.loads(PATH.read_text())["planned_values"]["root_module"]) if r["mode"] == "managed"
]


def of(type_):
    return [r for r in PLANNED if r["type"] == type_]


class Plan(unittest.TestCase):
    def test_one_machine_image_and_group_for_each_role(self):
        groups = {r["values"]["name"].rsplit("-", 1)[1]: r["values"] for r in of("aws_autoscaling_group")}
        self.assertEqual(set(groups), {"gateway", "scheduler", "worker"})
        for template in of("aws_launch_template"):
            (options,) = template["values"]["metadata_options"]
            self.assertEqual((options["http_tokens"], options["http_put_response_hop_limit"]), ("required", 1))
        for group in groups.values():
            self.assertEqual(
                [h["lifecycle_transition"] for h in group["initial_lifecycle_hook"]],
                ["autoscaling:EC2_INSTANCE_TERMINATING"],
            )

    def test_the_outside_reaches_the_balancer_s_two_ports_only(self):
        outside = {
            (r["values"]["from_port"], r["values"]["to_port"])
            for r in of("aws_vpc_security_group_ingress_rule")
            if r["values"].get("cidr_ipv4")
        }
        self.assertEqual(outside, {(80, 80), (443, 443)})

    def test_subnets_do_not_overlap_and_lie_in_all_zones(self):
        import ipaddress

        networks = [ipaddress.ip_network(s["values"]["cidr_block"]) for s in of("aws_subnet")]
        for i, one in enumerate(networks):
            self.assertFalse(any(one.overlaps(other) for other in networks[i + 1 :]), one)
        zones = {s["values"]["availability_zone"] for s in of("aws_subnet")}
        self.assertEqual((len(zones), len(networks)), {"small": (2, 4), "production": (3, 6)}[PATH.stem])

    def test_the_examples_are_what_they_say(self):
        (database,) = [d["values"] for d in of("aws_db_instance")]
        production = PATH.stem == "production"
        self.assertEqual((database["multi_az"], database["deletion_protection"]), (production, production))
        self.assertEqual(len(of("aws_nat_gateway")), 3 if production else 1)
        self.assertTrue(database["storage_encrypted"])
        spot = [
            g["values"]["mixed_instances_policy"][0]["instances_distribution"][0][
                "on_demand_percentage_above_base_capacity"
            ]
            for g in of("aws_autoscaling_group")
        ]
        self.assertEqual(sorted(spot), [20, 100, 100] if production else [100, 100, 100])

    def test_no_secret_is_in_the_plan(self):
        for secret in of("aws_secretsmanager_secret_version"):
            self.assertIsNone(secret["values"].get("secret_string"))
            self.assertIsNone(secret["values"].get("secret_string_wo"))
        for database in of("aws_db_instance"):
            self.assertIsNone(database["values"].get("password"))


if __name__ == "__main__":
    unittest.main()
