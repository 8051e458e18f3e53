variable "name" {
  description = "Prefix of every name."
  type        = string
  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,19}$", var.name))
    error_message = "The name must be 2 to 20 lower-case letters, digits and hyphens, a letter first."
  }
}

variable "cidr" {
  description = "Addresses of the VPC; functions cannot reach them, as they are private."
  type        = string
  validation {
    condition = (
      can(cidrhost(var.cidr, 0)) &&
      tonumber(split("/", var.cidr)[1]) <= 20 && tonumber(split("/", var.cidr)[1]) >= 16
    )
    error_message = "The network must be written like 10.20.0.0/16, with a prefix of 16 to 19 bits."
  }
}

variable "zones" {
  description = "Availability zones, two to six."
  type        = list(string)
  validation {
    condition     = length(var.zones) >= 2 && length(var.zones) <= 6 && length(distinct(var.zones)) == length(var.zones)
    error_message = "Name two to six different zones: the balancer needs two at least."
  }
}

variable "single_nat_gateway" {
  description = "One NAT gateway for all zones: cheaper, and functions lose the internet with its zone."
  type        = bool
  validation {
    condition     = var.single_nat_gateway != null
    error_message = "Say true or false."
  }
}

variable "flow_log_group_arn" {
  description = "CloudWatch log group for refused connections."
  type        = string
  validation {
    condition     = can(regex("^arn:", var.flow_log_group_arn))
    error_message = "The log group must be given by its ARN."
  }
}

variable "flow_log_role_arn" {
  description = "Role that writes the flow log."
  type        = string
  validation {
    condition     = can(regex("^arn:", var.flow_log_role_arn))
    error_message = "The role must be given by its ARN."
  }
}
