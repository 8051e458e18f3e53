# The least that is a cluster: one machine of each role, a database in one zone, one NAT gateway, and nothing that
# refuses to be destroyed.

provider "aws" {
  region = var.region
  default_tags {
    tags = { Project = "rekindle", Environment = "trial" }
  }
}

module "rekindle" {
  source = "../.."

  name                = "rekindle-trial"
  zones               = ["${var.region}a", "${var.region}b"]
  single_nat_gateway  = true
  certificate_arn     = var.certificate_arn
  image_id            = var.image_id
  artefact            = var.artefact
  runtimes            = var.runtimes
  deletion_protection = false
  drain_seconds       = 120
  noncurrent_days     = 1

  gateways   = { instance_types = ["t3.small"], size = { min = 1, max = 2 } }
  schedulers = { instance_types = ["t3.small"], count = 1 }
  workers    = { instance_types = ["m7i.large", "m6i.large"], size = { min = 1, max = 2 }, disk_gib = 50 }
  database   = { instance_class = "db.t4g.micro", multi_az = false, backup_days = 1 }
}
