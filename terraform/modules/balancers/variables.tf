variable "name" {
  description = "Prefix of every name."
  type        = string
  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,19}$", var.name))
    error_message = "The name must be 2 to 20 lower-case letters, digits and hyphens, a letter first."
  }
}

variable "vpc_id" {
  description = "The VPC."
  type        = string
  validation {
    condition     = can(regex("^vpc-", var.vpc_id))
    error_message = "A VPC's id begins with vpc-."
  }
}

variable "public_subnet_ids" {
  description = "Subnets of the public balancer."
  type        = list(string)
  validation {
    condition     = length(var.public_subnet_ids) >= 2
    error_message = "The balancer needs subnets in two zones."
  }
}

variable "private_subnet_ids" {
  description = "Subnets of the inner balancer."
  type        = list(string)
  validation {
    condition     = length(var.private_subnet_ids) >= 2
    error_message = "The balancer needs subnets in two zones."
  }
}

variable "security_groups" {
  description = "Security groups by tier."
  type        = map(string)
  validation {
    condition = alltrue([
      for tier in ["balancer", "scheduler-balancer"] : contains(keys(var.security_groups), tier)
    ])
    error_message = "The groups of balancer and scheduler-balancer must be there."
  }
}

variable "certificate_arn" {
  description = "Certificate of the public name, in ACM."
  type        = string
  validation {
    condition     = can(regex("^arn:[a-z-]+:acm:", var.certificate_arn))
    error_message = "The certificate must be given by its ARN in ACM."
  }
}

variable "log_bucket" {
  description = "Bucket of the public balancer's access log."
  type        = string
  validation {
    condition     = length(var.log_bucket) >= 3
    error_message = "Name a bucket."
  }
}

variable "drain_seconds" {
  description = "How long a gateway that goes may finish what it has."
  type        = number
  validation {
    condition     = var.drain_seconds >= 30 && var.drain_seconds <= 3600
    error_message = "A target group waits 0 to 3600 seconds; take 30 at least."
  }
}

variable "deletion_protection" {
  description = "Whether the balancers refuse to be destroyed."
  type        = bool
  validation {
    condition     = var.deletion_protection != null
    error_message = "Say true or false."
  }
}
