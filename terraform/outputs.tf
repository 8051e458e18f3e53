output "public_name" {
  description = "DNS name of the public balancer: point the certificate's name at it."
  value       = module.balancers.public_name
}

output "public_zone_id" {
  description = "Its hosted zone, for an alias record."
  value       = module.balancers.public_zone_id
}

output "public_balancer_arn" {
  description = "The public balancer, to attach a firewall for web applications to."
  value       = module.balancers.public_arn
}

output "scheduler_address" {
  description = "Where roles find a scheduler, within the VPC."
  value       = module.balancers.scheduler_address
}

output "bucket" {
  description = "Bucket of functions, layers and snapshots."
  value       = module.storage.bucket
}

output "secret_arns" {
  description = "Secrets by name; `admin-key` is what clients need as FN_KEY."
  value       = module.secrets.arns
}

output "fleets" {
  description = "Auto-scaling groups by role."
  value = {
    gateway   = module.gateways.group_name
    scheduler = module.schedulers.group_name
    worker    = module.workers.group_name
  }
}

output "alarm_topic_arn" {
  description = "Topic that alarms go to."
  value       = module.monitoring.alarm_topic_arn
}
