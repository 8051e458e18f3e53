# What a machine does at its first start: installs the release, fetches the role's secrets, starts the role. Before this
# stand a `#!/bin/bash` and a line NAME='value' for each setting (../main.tf); nothing secret is among them. Its group
# waits for its end (the hook "boot"): a machine whose role answers is taken into service, one where anything failed is
# replaced; /var/log/cloud-init-output.log says why.
# shellcheck shell=bash
# shellcheck disable=SC2154 # the settings stand before this

set -euo pipefail
umask 077

say() { echo "rekindle: $*"; }
fail() { say "$*" >&2; exit 1; }
imds() {
    local token
    token=$(curl -fsS -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' http://169.254.169.254/latest/api/token)
    curl -fsS -H "X-aws-ec2-metadata-token: $token" "http://169.254.169.254/latest/meta-data/$1"
}
# launched RESULT: ends the wait of the group's hook. A machine that was started by hand has none.
launched() {
    aws autoscaling complete-lifecycle-action --region "$REGION" --auto-scaling-group-name "$CLUSTER-$ROLE" \
        --lifecycle-hook-name boot --lifecycle-action-result "$1" --instance-id "$(imds instance-id)" ||
        say "no lifecycle hook waits for it"
}
# shellcheck disable=SC2154 # the status is assigned in the trap itself
trap 'status=$?; [ "$status" = 0 ] || launched ABANDON || true' EXIT
secret() { aws secretsmanager get-secret-value --region "$REGION" --secret-id "$1" --query SecretString --output text; }

# retry COMMAND...: the network, permissions and mirrors of a new machine may take a while to be there.
retry() {
    local attempt
    for attempt in 1 2 3 4 5 6; do
        "$@" && return
        # Not into what the command prints: that may be a secret.
        say "attempt $attempt failed: $1" >&2
        sleep $((attempt * 5))
    done
    fail "gave up: $*"
}

# install_deb FILE SHA256
install_deb() {
    echo "$2  $1" | sha256sum --check --quiet || fail "$1 is not what its SHA-256 says"
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$1"
}

# fetch KEY SHA256: installs a package from the artefact bucket.
fetch() {
    local file=/var/cache/apt/archives/${1##*/}
    retry aws s3 cp --only-show-errors --region "$REGION" "s3://$ARTEFACT_BUCKET/$1" "$file"
    chmod 644 "$file"
    install_deb "$file" "$2"
}

# An image of packaging/image has all of this; Debian's own gets it now, by TLS, as nothing else is let out.
export DEBIAN_FRONTEND=noninteractive
if ! command -v aws > /dev/null || ! command -v curl > /dev/null; then
    sed -i 's|http://|https://|' /etc/apt/sources.list /etc/apt/sources.list.d/* /etc/apt/mirrors/* 2> /dev/null || true
    retry apt-get -q update
    retry apt-get install -y -q --no-install-recommends awscli ca-certificates curl
fi
fetch "$ARTEFACT_KEY" "$ARTEFACT_SHA256"

install -d -m 750 -o rekindle -g rekindle /var/lib/rekindle
# put NAME: standard input becomes a file that the role alone reads.
put() { install -m 600 -o rekindle -g rekindle /dev/stdin "/var/lib/rekindle/$1"; }
# setting NAME VALUE: a line for the role's unit.
setting() { echo "$1=$2" >> "/etc/rekindle/$ROLE.env"; }

token=$(retry secret "$TOKEN_SECRET")
put cluster.token <<< "$token"

setting FN_SCHEDULER "$SCHEDULER"
setting FN_S3_ENDPOINT "https://s3.$REGION.amazonaws.com"
setting FN_S3_BUCKET "$BUCKET"
setting AWS_REGION "$REGION"
setting REKINDLE_LOG json
[ -z "$OTLP_ENDPOINT" ] || setting OTEL_EXPORTER_OTLP_ENDPOINT "$OTLP_ENDPOINT"
address=$(imds local-ipv4)

units=("rekindle-$ROLE.service")
case $ROLE in
gateway)
    setting FN_LISTEN 0.0.0.0:8080
    answers=127.0.0.1:8080
    # Where workers pass on calls between functions.
    setting FN_FUNCTIONS_LISTEN "$address:8083"
    setting FN_TRUSTED_PROXY "$TRUSTED_PROXIES"
    key=$(retry secret "$ADMIN_KEY_SECRET")
    put admin.key <<< "$key"
    ;;
scheduler)
    setting FN_LISTEN 0.0.0.0:8081
    answers=127.0.0.1:8081
    password=$(retry secret "$DATABASE_SECRET")
    if [ -n "$MASTER_SECRET" ]; then
        master=$(retry secret "$MASTER_SECRET")
        put master.key <<< "$master"
    fi
    # KMS wraps what the file has, where there is one, and makes a new key for a new database.
    if [ -n "$MASTER_KMS" ]; then
        setting FN_MASTER_KEY_KMS "$MASTER_KMS"
        setting FN_MASTER_KEY_CLUSTER "$CLUSTER"
    fi
    retry curl -fsS -o /etc/rekindle/database-ca.pem \
        "https://truststore.pki.rds.amazonaws.com/$REGION/$REGION-bundle.pem"
    chmod 644 /etc/rekindle/database-ca.pem
    # In the environment, not on the command line, which every process sees.
    database=postgres://rekindle:$password@$DATABASE_HOST:5432/rekindle
    setting FN_DATABASE "$database?sslmode=verify-full&sslrootcert=/etc/rekindle/database-ca.pem"
    # One leads, and a scheduler that stands by names it.
    setting FN_ADVERTISE "$address:8081"
    if [ -n "$RUNTIMES_KEY" ]; then
        fetch "$RUNTIMES_KEY" "$RUNTIMES_SHA256"
        retry fn runtimes import --cache /usr/share/rekindle --s3-endpoint "https://s3.$REGION.amazonaws.com" \
            --s3-bucket "$BUCKET"
    fi
    echo "CLUSTER=$CLUSTER" > /etc/rekindle/cloudwatch.env
    units+=(rekindle-cloudwatch.timer)
    ;;
worker)
    setting FN_LISTEN "$address:8082"
    answers=$address:8082
    setting FN_ZONE "$(imds placement/availability-zone)"
    setting FN_LEAVE_LIMIT "${DRAIN_SECONDS}s"
    setting FN_OPTIONS "$WORKER_OPTIONS"
    # Proves CRIU by a real checkpoint, and installs a newer one where Debian's fails.
    retry /usr/lib/rekindle/prove-criu
    ;;
*) fail "no role '$ROLE'" ;;
esac

printf '%s\n' "ROLE=$ROLE" "REGION=$REGION" "GROUP=$CLUSTER-$ROLE" "DRAIN_SECONDS=$DRAIN_SECONDS" \
    > /etc/rekindle/drain.env
units+=(rekindle-drain.service)

# Logs to CloudWatch: the agent reads a file, so the unit writes one beside the journal's place.
if [ -n "$AGENT_URL" ]; then
    retry curl -fsS -o /var/cache/apt/archives/cloudwatch-agent.deb "$AGENT_URL"
    chmod 644 /var/cache/apt/archives/cloudwatch-agent.deb
    install_deb /var/cache/apt/archives/cloudwatch-agent.deb "$AGENT_SHA256"
    install -d -m 755 "/etc/systemd/system/rekindle-$ROLE.service.d" /var/log/rekindle
    printf '[Service]\nStandardError=append:/var/log/rekindle/%s.log\n' "$ROLE" \
        > "/etc/systemd/system/rekindle-$ROLE.service.d/log.conf"
    cat > /opt/aws/amazon-cloudwatch-agent/etc/rekindle.json <<JSON
{"logs": {"logs_collected": {"files": {"collect_list": [
  {"file_path": "/var/log/rekindle/$ROLE.log", "log_group_name": "$LOG_GROUP", "log_stream_name": "{instance_id}"}
]}}}}
JSON
    /opt/aws/amazon-cloudwatch-agent/bin/amazon-cloudwatch-agent-ctl -a fetch-config -m ec2 -s \
        -c file:/opt/aws/amazon-cloudwatch-agent/etc/rekindle.json
fi

# The role is told to stop, and may finish what it has.
install -d -m 755 "/etc/systemd/system/rekindle-$ROLE.service.d"
printf '[Service]\nTimeoutStopSec=%s\n' $((DRAIN_SECONDS + 30)) \
    > "/etc/systemd/system/rekindle-$ROLE.service.d/stop.conf"
systemctl daemon-reload
systemctl enable --now "${units[@]}"
# It answers as soon as it listens, whether it is ready or stands by.
retry curl -fsS -m 5 -o /dev/null "http://$answers/healthz"
say "$ROLE runs"
launched CONTINUE
