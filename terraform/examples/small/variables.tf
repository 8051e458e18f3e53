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
