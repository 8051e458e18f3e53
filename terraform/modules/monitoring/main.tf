# Log groups, and the alarms that AWS can tell of; those of the platform itself are Prometheus rules (ops/prometheus).

resource "aws_cloudwatch_log_group" "this" {
  for_each          = toset(["gateway", "scheduler", "worker", "network"])
  name              = "/rekindle/${var.name}/${each.key}"
  retention_in_days = var.log_days
  kms_key_id        = var.key_arn
}

data "aws_iam_policy_document" "assume_flow_log" {
  statement {
    actions = ["sts:AssumeRole"]
    principals {
      type        = "Service"
      identifiers = ["vpc-flow-logs.amazonaws.com"]
    }
  }
}

resource "aws_iam_role" "flow_log" {
  name               = "${var.name}-flow-log"
  description        = "Writes refused connections of the VPC to CloudWatch"
  assume_role_policy = data.aws_iam_policy_document.assume_flow_log.json
}

data "aws_iam_policy_document" "flow_log" {
  statement {
    actions   = ["logs:CreateLogStream", "logs:PutLogEvents", "logs:DescribeLogStreams"]
    resources = ["${aws_cloudwatch_log_group.this["network"].arn}:*"]
  }
}

resource "aws_iam_role_policy" "flow_log" {
  name   = "write"
  role   = aws_iam_role.flow_log.id
  policy = data.aws_iam_policy_document.flow_log.json
}

resource "aws_sns_topic" "alarms" {
  name              = "${var.name}-alarms"
  kms_master_key_id = var.key_arn
}

resource "aws_sns_topic_subscription" "mail" {
  for_each  = toset(var.alarm_addresses)
  topic_arn = aws_sns_topic.alarms.arn
  protocol  = "email"
  endpoint  = each.key
}

resource "aws_cloudwatch_metric_alarm" "no_gateway" {
  alarm_name          = "${var.name}-no-healthy-gateway"
  alarm_description   = "Nobody is served: docs/reference/alerts.md, RekindleGatewayDown"
  namespace           = "AWS/ApplicationELB"
  metric_name         = "HealthyHostCount"
  dimensions          = { LoadBalancer = var.dimensions.public, TargetGroup = var.dimensions.gateway }
  statistic           = "Minimum"
  comparison_operator = "LessThanThreshold"
  threshold           = 1
  period              = 60
  evaluation_periods  = 2
  treat_missing_data  = "breaching"
  alarm_actions       = [aws_sns_topic.alarms.arn]
  ok_actions          = [aws_sns_topic.alarms.arn]
}

resource "aws_cloudwatch_metric_alarm" "no_scheduler" {
  alarm_name          = "${var.name}-no-healthy-scheduler"
  alarm_description   = "Nothing new starts: docs/reference/alerts.md, RekindleSchedulerDown"
  namespace           = "AWS/NetworkELB"
  metric_name         = "HealthyHostCount"
  dimensions          = { LoadBalancer = var.dimensions.inner, TargetGroup = var.dimensions.scheduler }
  statistic           = "Maximum"
  comparison_operator = "LessThanThreshold"
  threshold           = 1
  period              = 60
  evaluation_periods  = 2
  treat_missing_data  = "breaching"
  alarm_actions       = [aws_sns_topic.alarms.arn]
  ok_actions          = [aws_sns_topic.alarms.arn]
}

resource "aws_cloudwatch_metric_alarm" "errors" {
  alarm_name          = "${var.name}-balancer-5xx"
  alarm_description   = "The balancer itself answers with 5xx: docs/reference/alerts.md, RekindleGatewayDown"
  namespace           = "AWS/ApplicationELB"
  metric_name         = "HTTPCode_ELB_5XX_Count"
  dimensions          = { LoadBalancer = var.dimensions.public }
  statistic           = "Sum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 10
  period              = 60
  evaluation_periods  = 5
  treat_missing_data  = "notBreaching"
  alarm_actions       = [aws_sns_topic.alarms.arn]
}

resource "aws_cloudwatch_metric_alarm" "database_storage" {
  alarm_name          = "${var.name}-database-storage"
  alarm_description   = "The database's disk is nearly full although it grows by itself: docs/reference/alerts.md, Database"
  namespace           = "AWS/RDS"
  metric_name         = "FreeStorageSpace"
  dimensions          = { DBInstanceIdentifier = var.database_identifier }
  statistic           = "Minimum"
  comparison_operator = "LessThanThreshold"
  threshold           = 2 * 1024 * 1024 * 1024
  period              = 300
  evaluation_periods  = 3
  alarm_actions       = [aws_sns_topic.alarms.arn]
}
