variable "name" {
  description = "Prefix of every name."
  type        = string
  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,19}$", var.name))
    error_message = "The name must be 2 to 20 lower-case letters, digits and hyphens, a letter first."
  }
}

variable "log_days" {
  description = "How long logs are kept, in days."
  type        = number
  validation {
    condition = contains(
      [1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653],
      var.log_days
    )
    error_message = "CloudWatch keeps logs for 1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288 or 3653 days."
  }
}

variable "key_arn" {
  description = "KMS key they are encrypted with."
  type        = string
  validation {
    condition     = can(regex("^arn:", var.key_arn))
    error_message = "The key must be given by its ARN."
  }
}

variable "alarm_addresses" {
  description = "Mail addresses that alarms are sent to, once they have been confirmed."
  type        = list(string)
  validation {
    condition     = alltrue([for address in var.alarm_addresses : can(regex("^[^@ ]+@[^@ ]+$", address))])
    error_message = "Write mail addresses."
  }
}

variable "dimensions" {
  description = "How CloudWatch names balancers and target groups."
  type        = object({ public = string, gateway = string, inner = string, scheduler = string })
  validation {
    condition     = alltrue([for name in values(var.dimensions) : length(name) > 0])
    error_message = "None of them may be empty."
  }
}

variable "database_identifier" {
  description = "The database's name."
  type        = string
  validation {
    condition     = length(var.database_identifier) > 0
    error_message = "The name must not be empty."
  }
}
