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

variable "client_cidrs" {
  description = "Networks that callers of functions come from."
  type        = list(string)
  validation {
    condition     = length(var.client_cidrs) > 0 && alltrue([for cidr in var.client_cidrs : can(cidrhost(cidr, 0))])
    error_message = "Name at least one network, like 0.0.0.0/0 or 198.51.100.0/24."
  }
}

variable "function_egress_cidrs" {
  description = "Networks that functions reach on any port; [] leaves them 443."
  type        = list(string)
  validation {
    condition     = alltrue([for cidr in var.function_egress_cidrs : can(cidrhost(cidr, 0))])
    error_message = "Write networks like 0.0.0.0/0."
  }
}

variable "monitoring_cidrs" {
  description = "Private networks from which Prometheus may ask the roles for their metrics; [] for none."
  type        = list(string)
  validation {
    condition     = alltrue([for cidr in var.monitoring_cidrs : can(cidrhost(cidr, 0)) && !endswith(cidr, "/0")])
    error_message = "Write networks like 10.20.0.0/24; all of the world is none."
  }
}
