output "group_name" {
  description = "The auto-scaling group."
  value       = aws_autoscaling_group.this.name
}

output "role_arn" {
  description = "What its machines act as."
  value       = aws_iam_role.this.arn
}
