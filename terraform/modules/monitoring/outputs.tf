output "log_group_arns" {
  description = "Log groups by role, and of the network."
  value       = { for role, group in aws_cloudwatch_log_group.this : role => group.arn }
}

output "flow_log_role_arn" {
  description = "Role that writes the flow log."
  value       = aws_iam_role.flow_log.arn
}

output "alarm_topic_arn" {
  description = "Topic that alarms go to."
  value       = aws_sns_topic.alarms.arn
}
