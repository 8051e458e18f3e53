variable "name" {
  description = "Name of the cluster, prefix of every name."
  type        = string
  default     = "rekindle"
  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,19}$", var.name))
    error_message = "The name must be 2 to 20 lower-case letters, digits and hyphens, a letter first."
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

variable "cidr" {
  description = "Addresses of the VPC."
  type        = string
  default     = "10.20.0.0/16"
  validation {
    condition     = can(cidrhost(var.cidr, 0)) && can(regex("/1[6-9]$", var.cidr))
    error_message = "The network must be written like 10.20.0.0/16, with a prefix of 16 to 19 bits."
  }
}

variable "single_nat_gateway" {
  description = "One NAT gateway for all zones: cheaper, and functions lose the internet with its zone."
  type        = bool
  default     = false
  validation {
    condition     = var.single_nat_gateway != null
    error_message = "Say true or false."
  }
}

variable "client_cidrs" {
  description = "Networks that callers of functions come from."
  type        = list(string)
  default     = ["0.0.0.0/0"]
  validation {
    condition     = length(var.client_cidrs) > 0 && alltrue([for cidr in var.client_cidrs : can(cidrhost(cidr, 0))])
    error_message = "Name at least one network, like 0.0.0.0/0 or 198.51.100.0/24."
  }
}

variable "monitoring_cidrs" {
  description = "Private networks from which Prometheus may ask the roles for their metrics; [] for none."
  type        = list(string)
  default     = []
  validation {
    condition     = alltrue([for cidr in var.monitoring_cidrs : can(cidrhost(cidr, 0)) && !endswith(cidr, "/0")])
    error_message = "Write networks like 10.20.0.0/24; all of the world is none."
  }
}

variable "function_egress_cidrs" {
  description = "Networks that functions reach on any port; [] leaves them 443."
  type        = list(string)
  default     = ["0.0.0.0/0"]
  validation {
    condition     = alltrue([for cidr in var.function_egress_cidrs : can(cidrhost(cidr, 0))])
    error_message = "Write networks like 0.0.0.0/0."
  }
}

variable "certificate_arn" {
  description = "Certificate of the public name, in ACM and of this region."
  type        = string
  validation {
    condition     = can(regex("^arn:[a-z-]+:acm:", var.certificate_arn))
    error_message = "The certificate must be given by its ARN in ACM."
  }
}

variable "image_id" {
  description = "AMI of the machines: one made by packaging/image, or Debian 13's."
  type        = string
  validation {
    condition     = can(regex("^ami-[0-9a-f]+$", var.image_id))
    error_message = "An image's id is written like ami-0123456789abcdef0."
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

variable "artefact" {
  description = "The release: rekindle's .deb in a bucket, and its SHA-256, which every machine checks."
  type        = object({ bucket = string, key = string, sha256 = string })
  validation {
    condition     = can(regex("^[0-9a-f]{64}$", var.artefact.sha256)) && endswith(var.artefact.key, ".deb")
    error_message = "The key must name a .deb, and its SHA-256 must be 64 hexadecimal digits."
  }
}

variable "runtimes" {
  description = "The runtimes' root filesystems (rekindle-runtimes' .deb) in the same bucket, which a scheduler imports at its start; empty when they are imported by hand."
  type        = object({ key = string, sha256 = string })
  default     = { key = "", sha256 = "" }
  validation {
    condition = var.runtimes.key == "" || (
      can(regex("^[0-9a-f]{64}$", var.runtimes.sha256)) && endswith(var.runtimes.key, ".deb")
    )
    error_message = "The key must name a .deb, and its SHA-256 must be 64 hexadecimal digits."
  }
}

variable "gateways" {
  description = "Gateways: types of machine, how many."
  type = object({
    instance_types = optional(list(string), ["c7i.large", "c6i.large"])
    size           = optional(object({ min = number, max = number }), { min = 2, max = 10 })
  })
  default = {}
  validation {
    condition     = var.gateways.size.min >= 1 && var.gateways.size.max >= var.gateways.size.min
    error_message = "There must be a gateway at least."
  }
}

variable "schedulers" {
  description = "Schedulers: types of machine, how many. One leads, the others take over."
  type = object({
    instance_types = optional(list(string), ["m7i.large", "m6i.large"])
    count          = optional(number, 2)
  })
  default = {}
  validation {
    condition     = var.schedulers.count >= 1 && var.schedulers.count <= 5
    error_message = "Take one to five schedulers."
  }
}

variable "workers" {
  description = "Workers: types of machine, how many, their share of spot machines, disk, and how much of their memory may be promised before more are started."
  type = object({
    instance_types        = optional(list(string), ["m7i.2xlarge", "m6i.2xlarge", "m7a.2xlarge", "m6a.2xlarge"])
    size                  = optional(object({ min = number, max = number }), { min = 2, max = 20 })
    spot_percent          = optional(number, 0)
    on_demand_base        = optional(number, 1)
    disk_gib              = optional(number, 100)
    disk_mibps            = optional(number, 250)
    memory_target_percent = optional(number, 70)
  })
  default = {}
  validation {
    condition = (
      var.workers.size.min >= 1 && var.workers.size.max >= var.workers.size.min &&
      var.workers.spot_percent >= 0 && var.workers.spot_percent <= 100
    )
    error_message = "There must be a worker at least, and a share of spot machines is 0 to 100."
  }
}

variable "worker_options" {
  description = "More options of `fn worker`, such as --template-memory 8GiB."
  type        = string
  default     = ""
  validation {
    condition     = can(regex("^[A-Za-z0-9 ./:=,_-]*$", var.worker_options))
    error_message = "Options are words of letters, digits and . / : = , _ -."
  }
}

variable "database" {
  description = "PostgreSQL of the schedulers."
  type = object({
    engine_version = optional(string, "17")
    instance_class = optional(string, "db.t4g.medium")
    storage_gib    = optional(number, 20)
    multi_az       = optional(bool, true)
    backup_days    = optional(number, 14)
  })
  default = {}
  validation {
    condition     = var.database.backup_days >= 1 && var.database.storage_gib >= 20
    error_message = "Backups are kept for a day at least, and RDS takes 20 GiB or more."
  }
}

variable "secrets_generation" {
  description = "Raise it to make new secrets; then replace the machines (README.md)."
  type        = number
  default     = 1
  validation {
    condition     = var.secrets_generation >= 1 && floor(var.secrets_generation) == var.secrets_generation
    error_message = "Generations are counted 1, 2, 3."
  }
}

variable "master_key" {
  description = "Where the key of the database's secrets is: secret (Secrets Manager, and a file on schedulers), kms (wrapped by a key of KMS), or moving (from there to there: both)."
  type        = string
  default     = "secret"
  validation {
    condition     = contains(["secret", "moving", "kms"], var.master_key)
    error_message = "Say secret, moving or kms."
  }
}

variable "otlp_endpoint" {
  description = "Where traces and metrics are pushed by OTLP; empty for nowhere."
  type        = string
  default     = ""
  validation {
    condition     = var.otlp_endpoint == "" || can(regex("^https?://[^ ]+$", var.otlp_endpoint))
    error_message = "An endpoint is a URL like https://otlp.example.com:443."
  }
}

variable "log_agent" {
  description = "Amazon's CloudWatch agent as a .deb: where it is, and its SHA-256. Empty: logs stay in each machine's journal."
  type        = object({ url = string, sha256 = string })
  default     = { url = "", sha256 = "" }
  validation {
    condition = var.log_agent.url == "" || (
      startswith(var.log_agent.url, "https://") && can(regex("^[0-9a-f]{64}$", var.log_agent.sha256))
    )
    error_message = "The agent needs an https URL and a SHA-256 of 64 hexadecimal digits."
  }
}

variable "log_days" {
  description = "How long logs are kept, in days."
  type        = number
  default     = 365
  validation {
    condition     = var.log_days >= 1
    error_message = "Keep logs for a day at least."
  }
}

variable "alarm_addresses" {
  description = "Mail addresses that alarms are sent to, once they have been confirmed."
  type        = list(string)
  default     = []
  validation {
    condition     = alltrue([for address in var.alarm_addresses : can(regex("^[^@ ]+@[^@ ]+$", address))])
    error_message = "Write mail addresses."
  }
}

variable "drain_seconds" {
  description = "How long a machine that is replaced may take to finish what it has. A spot machine has two minutes at most."
  type        = number
  default     = 900
  validation {
    condition     = var.drain_seconds >= 30 && var.drain_seconds <= 3600
    error_message = "Take 30 to 3600 seconds."
  }
}

variable "noncurrent_days" {
  description = "How long deleted and overwritten objects can be had back, in days."
  type        = number
  default     = 14
  validation {
    condition     = var.noncurrent_days >= 1 && var.noncurrent_days <= 365
    error_message = "Keep them for 1 to 365 days."
  }
}

variable "deletion_protection" {
  description = "Whether database, balancers, buckets and secrets refuse to be destroyed."
  type        = bool
  default     = true
  validation {
    condition     = var.deletion_protection != null
    error_message = "Say true or false."
  }
}

variable "session_manager" {
  description = "Whether operators may open a shell on machines by Session Manager."
  type        = bool
  default     = true
  validation {
    condition     = var.session_manager != null
    error_message = "Say true or false."
  }
}

variable "tags" {
  description = "Tags of machines and disks, beside the provider's default tags."
  type        = map(string)
  default     = {}
  validation {
    condition     = alltrue([for key in keys(var.tags) : !startswith(key, "aws:")])
    error_message = "Tags must not begin with aws:."
  }
}
