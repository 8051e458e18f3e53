variable "region" {
  description = "Region of the cluster."
  type        = string
  default     = "eu-central-1"
  validation {
    condition     = can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]$", var.region))
    error_message = "A region is written like eu-central-1."
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

variable "artefact" {
  description = "The release: rekindle's .deb in a bucket, and its SHA-256."
  type        = object({ bucket = string, key = string, sha256 = string })
  validation {
    condition     = can(regex("^[0-9a-f]{64}$", var.artefact.sha256)) && endswith(var.artefact.key, ".deb")
    error_message = "The key must name a .deb, and its SHA-256 must be 64 hexadecimal digits."
  }
}

variable "runtimes" {
  description = "The runtimes' root filesystems (rekindle-runtimes' .deb) in the same bucket; empty when they are imported by hand."
  type        = object({ key = string, sha256 = string })
  default     = { key = "", sha256 = "" }
  validation {
    condition     = var.runtimes.key == "" || can(regex("^[0-9a-f]{64}$", var.runtimes.sha256))
    error_message = "The SHA-256 must be 64 hexadecimal digits."
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

variable "alarm_addresses" {
  description = "Mail addresses that alarms are sent to, once they have been confirmed."
  type        = list(string)
  default     = []
  validation {
    condition     = alltrue([for address in var.alarm_addresses : can(regex("^[^@ ]+@[^@ ]+$", address))])
    error_message = "Write mail addresses."
  }
}
