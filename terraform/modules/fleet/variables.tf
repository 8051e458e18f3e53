variable "name" {
  description = "Prefix of every name."
  type        = string
  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,19}$", var.name))
    error_message = "The name must be 2 to 20 lower-case letters, digits and hyphens, a letter first."
  }
}

variable "role" {
  description = "What the machines are: gateway, scheduler or worker."
  type        = string
  validation {
    condition     = contains(["gateway", "scheduler", "worker"], var.role)
    error_message = "There are the roles gateway, scheduler and worker."
  }
}

variable "image_id" {
  description = "AMI they start from."
  type        = string
  validation {
    condition     = can(regex("^ami-", var.image_id))
    error_message = "An image's id begins with ami-."
  }
}

variable "root_device" {
  description = "Name of the image's root device."
  type        = string
  default     = "/dev/xvda"
  validation {
    condition     = startswith(var.root_device, "/dev/")
    error_message = "A device is written like /dev/xvda."
  }
}

variable "instance_types" {
  description = "Types of machine, the preferred one first: several of like size let spot capacity be found."
  type        = list(string)
  validation {
    condition = length(var.instance_types) > 0 && alltrue([
      for type in var.instance_types : can(regex("^[a-z0-9-]+\\.[a-z0-9-]+$", type))
    ])
    error_message = "Name at least one type, like m7i.large."
  }
}

variable "size" {
  description = "How many machines at least and at most."
  type        = object({ min = number, max = number })
  validation {
    condition     = var.size.min >= 0 && var.size.max >= var.size.min
    error_message = "The least number must not be above the greatest."
  }
}

variable "spot_percent" {
  description = "Share of spot machines above on_demand_base, in percent."
  type        = number
  default     = 0
  validation {
    condition     = var.spot_percent >= 0 && var.spot_percent <= 100
    error_message = "A share is 0 to 100."
  }
}

variable "on_demand_base" {
  description = "Machines that are never spot."
  type        = number
  default     = 0
  validation {
    condition     = var.on_demand_base >= 0
    error_message = "A number of machines is 0 or more."
  }
}

variable "subnet_ids" {
  description = "Private subnets they stand in."
  type        = list(string)
  validation {
    condition     = length(var.subnet_ids) > 0
    error_message = "Name at least one subnet."
  }
}

variable "security_group_id" {
  description = "Their security group."
  type        = string
  validation {
    condition     = can(regex("^sg-", var.security_group_id))
    error_message = "A security group's id begins with sg-."
  }
}

variable "target_group_arns" {
  description = "Balancers' target groups they join."
  type        = list(string)
  default     = []
  validation {
    condition     = alltrue([for arn in var.target_group_arns : can(regex("^arn:", arn))])
    error_message = "Target groups are given by their ARNs."
  }
}

variable "health_check_type" {
  description = "Who says that a machine must be replaced: EC2, or ELB, the balancer."
  type        = string
  default     = "EC2"
  validation {
    condition     = contains(["EC2", "ELB"], var.health_check_type)
    error_message = "Say EC2 or ELB."
  }
}

variable "user_data" {
  description = "Script they run at their first start."
  type        = string
  validation {
    condition     = startswith(var.user_data, "#!/bin/bash")
    error_message = "The script must begin with #!/bin/bash."
  }
}

variable "policies" {
  description = "What their role may do, as JSON policy documents."
  type        = list(string)
  validation {
    condition     = alltrue([for policy in var.policies : can(jsondecode(policy))])
    error_message = "Policies must be JSON."
  }
}

variable "disk_gib" {
  description = "Root disk in GiB."
  type        = number
  validation {
    condition     = var.disk_gib >= 10 && var.disk_gib <= 16384
    error_message = "Take 10 to 16384 GiB."
  }
}

variable "disk_mibps" {
  description = "Throughput of the root disk in MiB/s."
  type        = number
  default     = 125
  validation {
    condition     = var.disk_mibps >= 125 && var.disk_mibps <= 1000
    error_message = "gp3 gives 125 to 1000 MiB/s."
  }
}

variable "drain_seconds" {
  description = "How long a machine may take to drain before it is terminated."
  type        = number
  validation {
    condition     = var.drain_seconds >= 30 && var.drain_seconds <= 7200
    error_message = "A lifecycle hook waits 30 to 7200 seconds."
  }
}

variable "memory_target_percent" {
  description = "Share of the workers' memory that may be promised before machines are added; null for no such rule."
  type        = number
  default     = null
  validation {
    condition = (
      var.memory_target_percent == null ? true : var.memory_target_percent >= 10 && var.memory_target_percent <= 95
    )
    error_message = "A target is 10 to 95 percent."
  }
}

variable "cpu_target_percent" {
  description = "Average CPU above which machines are added; null for no such rule."
  type        = number
  default     = null
  validation {
    condition     = var.cpu_target_percent == null ? true : var.cpu_target_percent >= 10 && var.cpu_target_percent <= 95
    error_message = "A target is 10 to 95 percent."
  }
}

variable "session_manager" {
  description = "Whether operators may open a shell by Session Manager."
  type        = bool
  validation {
    condition     = var.session_manager != null
    error_message = "Say true or false."
  }
}

variable "tags" {
  description = "Tags of machines and disks."
  type        = map(string)
  validation {
    condition     = alltrue([for key in keys(var.tags) : !startswith(key, "aws:")])
    error_message = "Tags must not begin with aws:."
  }
}
