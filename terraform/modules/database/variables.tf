variable "name" {
  description = "Prefix of every name."
  type        = string
  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,19}$", var.name))
    error_message = "The name must be 2 to 20 lower-case letters, digits and hyphens, a letter first."
  }
}

variable "subnet_ids" {
  description = "Private subnets, in two zones at least."
  type        = list(string)
  validation {
    condition     = length(var.subnet_ids) >= 2
    error_message = "RDS asks for subnets in two zones, also of a database in one."
  }
}

variable "security_group_id" {
  description = "Group that lets the schedulers in."
  type        = string
  validation {
    condition     = can(regex("^sg-", var.security_group_id))
    error_message = "A security group's id begins with sg-."
  }
}

variable "engine_version" {
  description = "PostgreSQL's version, 15 or newer: a major one takes the newest minor one."
  type        = string
  validation {
    condition     = can(regex("^1[5-9](\\.[0-9]+)?$", var.engine_version))
    error_message = "Name a version from 15 on, like 17 or 17.5."
  }
}

variable "instance_class" {
  description = "Class of the database's machine."
  type        = string
  validation {
    condition     = can(regex("^db\\.[a-z0-9]+\\.[a-z0-9]+$", var.instance_class))
    error_message = "A class is written like db.t4g.medium."
  }
}

variable "storage_gib" {
  description = "Its disk in GiB; it grows by itself to four times that."
  type        = number
  validation {
    condition     = var.storage_gib >= 20 && var.storage_gib <= 16384
    error_message = "RDS takes 20 to 16384 GiB of gp3."
  }
}

variable "multi_az" {
  description = "A second machine in another zone takes over when the first is lost."
  type        = bool
  validation {
    condition     = var.multi_az != null
    error_message = "Say true or false."
  }
}

variable "backup_days" {
  description = "How far back the database can be restored to any moment, in days."
  type        = number
  validation {
    condition     = var.backup_days >= 1 && var.backup_days <= 35
    error_message = "RDS keeps backups for 1 to 35 days; 0 would be none."
  }
}

variable "deletion_protection" {
  description = "Whether the database refuses to be destroyed, and leaves a last snapshot when it is."
  type        = bool
  validation {
    condition     = var.deletion_protection != null
    error_message = "Say true or false."
  }
}

variable "key_arn" {
  description = "KMS key it is encrypted with."
  type        = string
  validation {
    condition     = can(regex("^arn:", var.key_arn))
    error_message = "The key must be given by its ARN."
  }
}

variable "password_secret_arn" {
  description = "Secret that has its password."
  type        = string
  validation {
    condition     = can(regex("^arn:", var.password_secret_arn))
    error_message = "The secret must be given by its ARN."
  }
}

variable "password_generation" {
  description = "Generation of the secret: the password is set anew when it changes."
  type        = number
  validation {
    condition     = var.password_generation >= 1
    error_message = "Generations are counted 1, 2, 3."
  }
}
