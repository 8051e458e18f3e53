output "arns" {
  description = "ARN of each secret, by its name; known once it has a value."
  value       = { for name, version in aws_secretsmanager_secret_version.this : name => version.secret_id }
}
