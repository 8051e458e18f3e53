output "vpc_id" {
  description = "The VPC."
  value       = aws_vpc.this.id
}

output "public_subnet_ids" {
  description = "Subnets of the public balancer, one a zone."
  value       = [for zone in var.zones : aws_subnet.public[zone].id]
}

output "public_cidrs" {
  description = "Networks of the public subnets, where the balancer has its addresses."
  value       = [for zone in var.zones : aws_subnet.public[zone].cidr_block]
}

output "private_subnet_ids" {
  description = "Subnets of everything else, one a zone."
  value       = [for zone in var.zones : aws_subnet.private[zone].id]
}
