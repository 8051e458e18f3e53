output "address" {
  description = "Its host name."
  value       = aws_db_instance.this.address
}

output "identifier" {
  description = "Its name, as metrics have it."
  value       = aws_db_instance.this.identifier
}
