# For traffic that matters: three zones, each with its NAT gateway, two schedulers and a database with a second machine,
# workers mostly of spot.

provider "aws" {
  region = var.region
  default_tags {
    tags = { Project = "rekindle", Environment = "production" }
  }
}

module "rekindle" {
  source = "../.."

  name            = "rekindle"
  zones           = ["${var.region}a", "${var.region}b", "${var.region}c"]
  certificate_arn = var.certificate_arn
  image_id        = var.image_id
  artefact        = var.artefact
  runtimes        = var.runtimes
  otlp_endpoint   = var.otlp_endpoint
  log_agent       = var.log_agent
  alarm_addresses = var.alarm_addresses

  gateways   = { size = { min = 3, max = 12 } }
  schedulers = { count = 2 }
  workers = {
    size           = { min = 3, max = 60 }
    on_demand_base = 3
    spot_percent   = 80
  }
  database = { instance_class = "db.m7g.large", storage_gib = 50 }
}
