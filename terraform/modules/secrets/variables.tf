variable "name" {
  description = "Prefix of every name."
  type        = string
  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,19}$", var.name))
    error_message = "The name must be 2 to 20 lower-case letters, digits and hyphens, a letter first."
  }
}

variable "secrets" {
  description = "Names of the secrets."
  type        = list(string)
  validation {
    condition     = alltrue([for secret in var.secrets : can(regex("^[a-z][a-z-]+$", secret))])
    error_message = "Names are lower-case letters and hyphens."
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

variable "generation" {
  description = "Raise it to make new values."
  type        = number
  validation {
    condition     = var.generation >= 1 && floor(var.generation) == var.generation
    error_message = "Generations are counted 1, 2, 3."
  }
}

variable "recovery_days" {
  description = "How long a deleted secret can be had back; 0 for not at all."
  type        = number
  validation {
    condition     = var.recovery_days == 0 || (var.recovery_days >= 7 && var.recovery_days <= 30)
    error_message = "Secrets Manager takes 0, or 7 to 30 days."
  }
}
