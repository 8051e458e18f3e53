output "public_name" {
  description = "DNS name of the public balancer: point the certificate's name at it."
  value       = module.rekindle.public_name
}

output "secret_arns" {
  description = "Secrets by name; `admin-key` is what clients need as FN_KEY."
  value       = module.rekindle.secret_arns
}

output "fleets" {
  description = "Auto-scaling groups by role."
  value       = module.rekindle.fleets
}
