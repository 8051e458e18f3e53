output "public_name" {
  description = "DNS name of the public balancer: point a CNAME or alias at it."
  value       = aws_lb.public.dns_name
}

output "public_zone_id" {
  description = "Its hosted zone, for an alias record."
  value       = aws_lb.public.zone_id
}

output "public_arn" {
  description = "The balancer, to attach a firewall for web applications to."
  value       = aws_lb.public.arn
}

output "scheduler_address" {
  description = "Where gateways and workers find a scheduler, host:port."
  value       = "${aws_lb.scheduler.dns_name}:8081"
}

output "gateway_target_group_arn" {
  description = "Target group of the gateways."
  value       = aws_lb_target_group.gateway.arn
}

output "scheduler_target_group_arn" {
  description = "Target group of the schedulers."
  value       = aws_lb_target_group.scheduler.arn
}

output "metric_dimensions" {
  description = "How CloudWatch names balancers and target groups."
  value = {
    public    = aws_lb.public.arn_suffix
    gateway   = aws_lb_target_group.gateway.arn_suffix
    inner     = aws_lb.scheduler.arn_suffix
    scheduler = aws_lb_target_group.scheduler.arn_suffix
  }
}
