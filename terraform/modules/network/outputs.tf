output "vpc_id" {
  description = "The VPC."
  value       = aws_vpc.this.id
}

output "public_subnet_ids" {
  description = "Subnets of the public balancer, one a zone."
  value       = [for zone in var.zones : aws_subnet.public[zone].id]
}

output "private_subnet_ids" {
  description = "Subnets of everything else, one a zone."
  value       = [for zone in var.zones : aws_subnet.private[zone].id]
}
