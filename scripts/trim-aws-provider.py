#!/usr/bin/env python3
"""Cuts the source of Terraform's AWS provider down to some services, so that it builds in minutes.

usage: trim-aws-provider.py SOURCE GO

Nothing of what is left is changed: the list of services loses entries, and the AWS client loses the methods that \
nobody calls any more.
"""

import pathlib
import re
import subprocess
import sys

SERVICES = set(
    "acm autoscaling cloudwatch ec2 elbv2 iam kms logs meta organizations rds route53 s3 s3control secretsmanager "
    "sns ssm sts".split()
)
MODULE = "github.com/hashicorp/terraform-provider-aws/"


def keep_services(path):
    """Entries of other services go: their imports, and their packages in the list."""
    kept = []
    for line in path.read_text().splitlines():
        entry = re.match(rf'\t"{MODULE}internal/service/(\w+)"', line) or re.match(
            r"\t\t(\w+)\.ServicePackage\(ctx\),", line
        )
        if entry is None or entry[1] in SERVICES:
            kept.append(line)
    path.write_text("\n".join(kept) + "\n")


def sources(root, go):
    """Files that the provider is now built from."""
    packages = subprocess.run(
        [go, "list", "-deps", "."], cwd=root, check=True, capture_output=True, text=True
    ).stdout.split()
    ours = [p for p in packages if p.startswith(MODULE)]
    template = "{{$dir := .Dir}}{{range .GoFiles}}{{$dir}}/{{.}}\n{{end}}"
    listed = subprocess.run([go, "list", "-f", template, *ours], cwd=root, check=True, capture_output=True, text=True)
    return [pathlib.Path(line) for line in listed.stdout.split()]


def keep_clients(path, others):
    """Methods that make a client of a service that nobody asks for go, and what was imported for them."""
    called = set()
    for other in others:
        called |= set(re.findall(r"\b(\w+Client)\b", other.read_text()))
    head, *methods = re.split(r"\n(?=func )", path.read_text())
    body = "\n".join(m for m in methods if re.match(r"func \(c \*AWSClient\) (\w+)\(", m)[1] in called)
    kept = []
    for line in head.splitlines():
        imported = re.match(r'\t(?:(\w+) )?"([^"]+)"', line)
        if imported is None or re.search(rf"\b{imported[1] or imported[2].rsplit('/')[-1]}\.", body):
            kept.append(line)
    path.write_text("\n".join(kept) + "\n\n" + body + "\n")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    root, go = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
    keep_services(root / "internal/provider/sdkv2/service_packages_gen.go")
    clients = root / "internal/conns/awsclient_gen.go"
    keep_clients(clients, [path for path in sources(root, go) if path != clients])


if __name__ == "__main__":
    main()
