variable "name" {
  description = "Prefix of every name."
  type        = string
  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,19}$", var.name))
    error_message = "The name must be 2 to 20 lower-case letters, digits and hyphens, a letter first."
  }
}

variable "noncurrent_days" {
  description = "How long deleted and overwritten objects can be had back, in days."
  type        = number
  validation {
    condition     = var.noncurrent_days >= 1 && var.noncurrent_days <= 365
    error_message = "Keep them for 1 to 365 days."
  }
}

variable "force_destroy" {
  description = "Whether destroying the configuration removes the buckets with what is in them."
  type        = bool
  validation {
    condition     = var.force_destroy != null
    error_message = "Say true or false."
  }
}
