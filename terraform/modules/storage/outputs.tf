output "bucket" {
  description = "The platform's bucket."
  value       = aws_s3_bucket.objects.id
}

output "bucket_arn" {
  description = "Its ARN."
  value       = aws_s3_bucket.objects.arn
}

output "log_bucket" {
  description = "Bucket of the balancer's access log, once it may be written to."
  value       = aws_s3_bucket_policy.this["logs"].bucket
}

output "key_arn" {
  description = "The key of everything at rest."
  value       = aws_kms_key.this.arn
}
