#!/usr/bin/env bash
# Checks terraform/. What a tool is missing for is said and passed over, but for the assertions; with
# REKINDLE_REQUIRE_ALL=1 it fails.
# usage: terraform-check.sh              formatting, linters, assertions on the parsed files (seconds)
#        terraform-check.sh validate     init, validate and plan both examples with the real AWS provider against moto
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
tools=${FN_CACHE:-/var/cache/rekindle}/terraform
export CHECKPOINT_DISABLE=1 TF_CLI_CONFIG_FILE=/dev/null
tf=$(command -v tofu || command -v terraform || { [ -x "$tools/bin/tofu" ] && echo "$tools/bin/tofu"; } || true)
failed=0
say() { echo "terraform: $*"; }
step() {
    local name=$1
    shift
    if "$@"; then say "$name: ok"; else say "$name: FAILED"; failed=1; fi
}

skip() {
    if [ "${REKINDLE_REQUIRE_ALL:-}" = 1 ]; then say "$1: FAILED: not there: $2"; failed=1
    else say "$1: skipped: $2"; fi
}
# Fails, and says which file, where one would change.
hclfmt() {
    find "$here/terraform" -name '*.tf' \
        -exec sh -c '"$0" -require-no-change "$@" > /dev/null' "$tools/bin/hclfmt" {} +
}
lint() { (cd "$here/terraform" && "$tools/bin/tflint" --recursive --config "$here/terraform/.tflint.hcl"); }

check() {
    if [ -n "$tf" ]; then step formatting "$tf" fmt -check -diff -recursive "$here/terraform"
    elif [ -x "$tools/bin/hclfmt" ]; then step formatting hclfmt
    else
        skip formatting "there is neither tofu nor terraform nor hclfmt (scripts/install-terraform-tools.sh linters)"
    fi
    if [ -x "$tools/bin/tflint" ]; then step tflint lint
    else skip tflint "scripts/install-terraform-tools.sh linters"; fi
    if [ -x "$tools/checkov/bin/checkov" ]; then
        step checkov "$tools/checkov/bin/checkov" -d "$here/terraform" --framework terraform --skip-download \
            --quiet --compact
    else skip checkov "scripts/install-terraform-tools.sh linters"; fi
    step assertions env PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$tools/python" \
        python3 -m unittest discover -q -s "$here/terraform/tests"
}

# plan EXAMPLE: a plan of what there is nothing of yet, with made-up names of a certificate, an image and a release.
plan() {
    TF_DATA_DIR=$work/$1 "$tf" -chdir="$here/terraform/examples/$1" plan -no-color -input=false -out="$work/$1.plan" \
        -var 'certificate_arn=arn:aws:acm:eu-central-1:123456789012:certificate/00000000-0000-0000-0000-000000000000' \
        -var 'image_id=ami-0123456789abcdef0' \
        -var "artefact={bucket=\"releases\",key=\"rekindle_0_amd64.deb\",sha256=\"$(printf '%064d' 0)\"}" \
        > "$work/$1.log" 2>&1 ||
        { tail -n 40 "$work/$1.log"; return 1; }
    TF_DATA_DIR=$work/$1 "$tf" -chdir="$here/terraform/examples/$1" show -json "$work/$1.plan" > "$work/$1.json"
    grep '^Plan:' "$work/$1.log"
    REKINDLE_PLAN=$work/$1.json PYTHONPATH="$tools/python" python3 -m unittest -q "$here/terraform/tests/plan_checks.py"
}

validate() {
    [ -n "$tf" ] || { say "there is neither tofu nor terraform"; exit 1; }
    work=$(mktemp -d)
    local moto port=${MOTO_PORT:-15998} example
    "$tools/moto/bin/moto_server" -H 127.0.0.1 -p "$port" > "$work/moto.log" 2>&1 &
    moto=$!
    # shellcheck disable=SC2064 # the names as they are now
    trap "kill $moto 2> /dev/null; rm -rf '$work'; rm -f '$here'/terraform/examples/*/.terraform.lock.hcl" EXIT
    printf 'provider_installation {\n  filesystem_mirror {\n    path = "%s"\n  }\n}\n' "$tools/mirror" > "$work/rc"
    export TF_CLI_CONFIG_FILE=$work/rc AWS_ENDPOINT_URL=http://127.0.0.1:$port AWS_EC2_METADATA_DISABLED=true
    # The S3 client would else address buckets by host names that nothing here resolves.
    export AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test AWS_REGION=eu-central-1
    for _ in $(seq 60); do curl -fs -o /dev/null "$AWS_ENDPOINT_URL/moto-api/" && break; sleep 1; done
    say "$("$tf" version | head -n 1)"
    for example in small production; do
        export TF_DATA_DIR=$work/$example
        step "init $example" "$tf" -chdir="$here/terraform/examples/$example" init -input=false -no-color \
            > "$work/init.log" || cat "$work/init.log"
        step "validate $example" "$tf" -chdir="$here/terraform/examples/$example" validate -no-color
        step "plan $example" plan "$example"
    done
}

case ${1:-check} in
check | validate) "${1:-check}" ;;
*)
    sed -n '3,4s/^# //p' "$0" >&2
    exit 2
    ;;
esac
exit $failed
