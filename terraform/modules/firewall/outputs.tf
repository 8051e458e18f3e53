output "ids" {
  description = "Security groups by tier: balancer, gateway, scheduler-balancer, scheduler, worker, database."
  value       = { for tier, group in aws_security_group.this : tier => group.id }
}
