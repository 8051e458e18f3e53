#!/usr/bin/env bash
# Builds what checks the Terraform configuration, from the Go module proxy and PyPI, into $FN_CACHE/terraform.
# Idempotent.
# usage: install-terraform-tools.sh parser      python-hcl2: what `make terraform-check` needs (seconds)
#        install-terraform-tools.sh linters     tflint, checkov and hclfmt (some minutes)
#        install-terraform-tools.sh provider    OpenTofu, the AWS provider and moto, for `make terraform-validate`
#                                               (ten to thirty minutes)
# The AWS provider is the real one (6.13), cut down to the services that this configuration uses (trim-aws-provider.py):
# whole, it takes three times as long. A tofu or terraform on PATH is taken as it is. GO_JOBS (2) is how many compilers
# run at once.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dest=${FN_CACHE:-/var/cache/rekindle}/terraform
mkdir -p "$dest/bin"
dest=$(cd "$dest" && pwd)

tofu_version=v1.12.6
tflint_version=v0.64.0
hcl2_version=8.1.4
hclfmt_version=v2.25.0
# HashiCorp tags its provider in a way that Go modules cannot name; this is its release 6.13.0 as a fork re-publishes
# it. The checksum database of Go does not know every fork: its sum is held here.
provider_module=github.com/upbound/terraform-provider-aws
provider_commit=v0.0.0-20251204202605-7049bcc1808e
provider_sum=h1:8vCgYjBCQ7Mn391mft3hRk8eAomY48L7PS6Trdg9QwI=
provider_version=6.13.0

say() { echo "terraform-tools: $*" >&2; }
fail() { say "$*"; exit 1; }

# copy_module MODULE@VERSION TO: the module's source, to be written to.
copy_module() {
    local found directory
    found=$(cd "$work" && "$go" mod download -json "$1") || fail "the module $1 could not be downloaded"
    directory=$(sed -n 's/^[[:space:]]*"Dir": "\(.*\)",\{0,1\}$/\1/p' <<< "$found")
    sum=$(sed -n 's/^[[:space:]]*"Sum": "\(.*\)",\{0,1\}$/\1/p' <<< "$found")
    cp -r "$directory" "$2"
    chmod -R u+w "$2"
}

prepare() {
    # shellcheck source=scripts/find-go.sh
    . "$here/find-go.sh"
    go=$(find_go terraform-tools "Without it the configuration is asserted on, but not validated.")
    work=$(mktemp -d "$dest/.build.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    export CGO_ENABLED=0
}

build() { (cd "$1" && "$go" build -buildvcs=false -p "${GO_JOBS:-2}" -trimpath -ldflags '-s -w' -o "$2" "$3") >&2; }

parser() {
    PYTHONPATH=$dest/python python3 -c "import hcl2.version as v; assert v.__version__ == '$hcl2_version'" \
        2> /dev/null && return
    say "installing python-hcl2 $hcl2_version"
    rm -rf "$dest/python"
    python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --target "$dest/python" \
        "python-hcl2==$hcl2_version"
}

linters() {
    if ! [ -x "$dest/bin/tflint" ]; then
        prepare
        say "building tflint $tflint_version"
        GOBIN=$work "$go" install -buildvcs=false -p "${GO_JOBS:-2}" -trimpath \
            "github.com/terraform-linters/tflint@$tflint_version" >&2
        mv -f "$work/tflint" "$dest/bin/tflint"
    fi
    if ! [ -x "$dest/bin/hclfmt" ]; then
        prepare
        say "building hclfmt $hclfmt_version"
        GOBIN=$work "$go" install -buildvcs=false -p "${GO_JOBS:-2}" -trimpath \
            "github.com/hashicorp/hcl/v2/cmd/hclfmt@$hclfmt_version" >&2
        mv -f "$work/hclfmt" "$dest/bin/hclfmt"
    fi
    if ! [ -x "$dest/checkov/bin/checkov" ]; then
        say "installing checkov"
        python3 -m venv "$dest/checkov" || fail "python3 has no venv module: install Debian's python3-venv"
        "$dest/checkov/bin/pip" install --quiet --disable-pip-version-check 'checkov>=3.3,<4'
    fi
    say "tflint, hclfmt and checkov are in $dest"
}

provider() {
    local mirror=$dest/mirror host at
    if ! command -v tofu > /dev/null && ! command -v terraform > /dev/null && ! [ -x "$dest/bin/tofu" ]; then
        prepare
        say "building OpenTofu $tofu_version (three to ten minutes)"
        copy_module "github.com/opentofu/opentofu@$tofu_version" "$work/tofu"
        build "$work/tofu" "$dest/bin/tofu" ./cmd/tofu
        rm -rf "$work"
    fi
    if [ "$(cat "$mirror/built" 2> /dev/null)" != "$(sha256sum < "$here/trim-aws-provider.py")" ]; then
        prepare
        say "building the AWS provider $provider_version, cut down to what is used (five to twenty minutes)"
        GONOSUMDB=$provider_module copy_module "$provider_module@$provider_commit" "$work/provider"
        [ "$sum" = "$provider_sum" ] || fail "$provider_module@$provider_commit is not what it was: its sum is $sum"
        python3 "$here/trim-aws-provider.py" "$work/provider" "$go"
        build "$work/provider" "$work/binary" .
        for host in registry.opentofu.org registry.terraform.io; do
            at=$mirror/$host/hashicorp/aws/$provider_version/$("$go" env GOOS)_$("$go" env GOARCH)
            mkdir -p "$at"
            cp "$work/binary" "$at/terraform-provider-aws_v$provider_version"
        done
        sha256sum < "$here/trim-aws-provider.py" > "$mirror/built"
        rm -rf "$work"
    fi
    if ! [ -x "$dest/moto/bin/moto_server" ]; then
        say "installing moto"
        python3 -m venv "$dest/moto" || fail "python3 has no venv module: install Debian's python3-venv"
        "$dest/moto/bin/pip" install --quiet --disable-pip-version-check \
            'moto[server,ec2,iam,s3,rds,secretsmanager]>=5,<6'
    fi
    say "OpenTofu or Terraform, the provider and moto are there"
}

case ${1:-} in
parser | linters | provider) "$1" ;;
*)
    sed -n '4,7s/^# //p' "$0" >&2
    exit 2
    ;;
esac
