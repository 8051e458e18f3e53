# Who may speak to whom: one security group a tier, and a rule at both ends of each way between two tiers. Nothing else
# is open.

locals {
  groups = {
    balancer           = "The public balancer"
    gateway            = "Gateways"
    scheduler-balancer = "The schedulers' inner balancer"
    scheduler          = "Schedulers"
    worker             = "Workers, and what functions reach"
    database           = "PostgreSQL"
  }
  # from, to, port
  ways = [
    ["balancer", "gateway", 8080],
    ["gateway", "scheduler-balancer", 8081],
    ["worker", "scheduler-balancer", 8081],
    ["scheduler-balancer", "scheduler", 8081],
    # A scheduler that stands by names the one that leads.
    ["gateway", "scheduler", 8081],
    ["worker", "scheduler", 8081],
    ["gateway", "worker", 8082],
    # Calls between functions.
    ["worker", "gateway", 8083],
    ["scheduler", "worker", 8082],
    ["worker", "worker", 8082],
    ["scheduler", "database", 5432],
  ]
  between = { for way in local.ways : "${way[0]} to ${way[1]}" => { from = way[0], to = way[1], port = way[2] } }
  # Secrets Manager, S3, CloudWatch, an OTLP endpoint, packages: all by TLS.
  out   = toset(["gateway", "scheduler", "worker"])
  ports = { gateway = 8080, scheduler = 8081, worker = 8082 }
  looks = { for pair in setproduct(var.monitoring_cidrs, keys(local.ports)) :
    "${pair[0]} ${pair[1]}" => { cidr = pair[0], role = pair[1] }
  }
  doors = { for pair in setproduct(var.client_cidrs, [80, 443]) :
    "${pair[0]} ${pair[1]}" => { cidr = pair[0], port = pair[1] }
  }
}

resource "aws_security_group" "this" {
  #checkov:skip=CKV2_AWS_5: attached by the modules that get its id
  for_each    = local.groups
  name        = "${var.name}-${each.key}"
  description = each.value
  vpc_id      = var.vpc_id
  tags        = { Name = "${var.name}-${each.key}" }
}

resource "aws_vpc_security_group_ingress_rule" "between" {
  for_each                     = local.between
  security_group_id            = aws_security_group.this[each.value.to].id
  referenced_security_group_id = aws_security_group.this[each.value.from].id
  ip_protocol                  = "tcp"
  from_port                    = each.value.port
  to_port                      = each.value.port
  description                  = each.key
}

resource "aws_vpc_security_group_egress_rule" "between" {
  for_each                     = local.between
  security_group_id            = aws_security_group.this[each.value.from].id
  referenced_security_group_id = aws_security_group.this[each.value.to].id
  ip_protocol                  = "tcp"
  from_port                    = each.value.port
  to_port                      = each.value.port
  description                  = each.key
}

# Callers of functions. Port 80 answers with a redirect to 443 and nothing else.
resource "aws_vpc_security_group_ingress_rule" "clients" {
  #checkov:skip=CKV_AWS_260: port 80 of the balancer redirects to 443
  for_each          = local.doors
  security_group_id = aws_security_group.this["balancer"].id
  cidr_ipv4         = each.value.cidr
  ip_protocol       = "tcp"
  from_port         = each.value.port
  to_port           = each.value.port
  description       = "clients"
}

# Prometheus, which asks every role for its metrics with the cluster's token.
resource "aws_vpc_security_group_ingress_rule" "monitoring" {
  for_each          = local.looks
  security_group_id = aws_security_group.this[each.value.role].id
  cidr_ipv4         = each.value.cidr
  ip_protocol       = "tcp"
  from_port         = local.ports[each.value.role]
  to_port           = local.ports[each.value.role]
  description       = "monitoring"
}

resource "aws_vpc_security_group_egress_rule" "tls" {
  for_each          = local.out
  security_group_id = aws_security_group.this[each.key].id
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
  description       = "AWS, packages, telemetry"
}

# What functions may reach beyond 443. The workers' own filters refuse private networks and metadata in any case
# (docs/reference/network-rules.md).
resource "aws_vpc_security_group_egress_rule" "functions" {
  #checkov:skip=CKV_AWS_382: functions reach the internet; var.function_egress_cidrs narrows it, [] closes it
  for_each          = toset(var.function_egress_cidrs)
  security_group_id = aws_security_group.this["worker"].id
  cidr_ipv4         = each.key
  ip_protocol       = "-1"
  description       = "what functions reach"
}
