# A Rekindle cluster on AWS: balancer, gateways, schedulers, workers, PostgreSQL, S3. README.md has the picture.

data "aws_region" "here" {}
data "aws_partition" "here" {}

locals {
  # Roles that every machine's script knows (boot/boot.sh); each value is quoted for the shell.
  settings = {
    for role in ["gateway", "scheduler", "worker"] : role => merge(
      {
        ROLE            = role
        CLUSTER         = var.name
        REGION          = data.aws_region.here.region
        ARTEFACT_BUCKET = var.artefact.bucket
        ARTEFACT_KEY    = var.artefact.key
        ARTEFACT_SHA256 = var.artefact.sha256
        SCHEDULER       = module.balancers.scheduler_address
        BUCKET          = module.storage.bucket
        TOKEN_SECRET    = module.secrets.arns["cluster-token"]
        OTLP_ENDPOINT   = var.otlp_endpoint
        LOG_GROUP       = "/rekindle/${var.name}/${role}"
        AGENT_URL       = var.log_agent.url
        AGENT_SHA256    = var.log_agent.sha256
        DRAIN_SECONDS   = var.drain_seconds
      },
      role == "gateway" ? {
        ADMIN_KEY_SECRET = module.secrets.arns["admin-key"]
        # The balancer says in X-Forwarded-For whom it speaks for.
        TRUSTED_PROXIES = join(",", module.network.public_cidrs)
      } : {},
      role == "scheduler" ? {
        DATABASE_HOST   = module.database.address
        DATABASE_SECRET = module.secrets.arns["database-password"]
        MASTER_SECRET   = var.master_key == "kms" ? "" : module.master_key.arns["master-key"]
        MASTER_KMS      = join("", module.master_key_in_kms[*].key_arn)
        RUNTIMES_KEY    = var.runtimes.key
        RUNTIMES_SHA256 = var.runtimes.sha256
      } : {},
      role == "worker" ? { WORKER_OPTIONS = var.worker_options } : {},
    )
  }
  user_data = {
    for role, settings in local.settings : role => join("\n", concat(
      ["#!/bin/bash"],
      [for name, value in settings : "${name}='${replace(tostring(value), "'", "'\\''")}'"],
      [file("${path.module}/boot/boot.sh")],
    ))
  }
}

module "network" {
  source             = "./modules/network"
  name               = var.name
  cidr               = var.cidr
  zones              = var.zones
  single_nat_gateway = var.single_nat_gateway
  flow_log_group_arn = module.monitoring.log_group_arns["network"]
  flow_log_role_arn  = module.monitoring.flow_log_role_arn
}

module "firewall" {
  source                = "./modules/firewall"
  name                  = var.name
  vpc_id                = module.network.vpc_id
  client_cidrs          = var.client_cidrs
  monitoring_cidrs      = var.monitoring_cidrs
  function_egress_cidrs = var.function_egress_cidrs
}

module "storage" {
  source          = "./modules/storage"
  name            = var.name
  noncurrent_days = var.noncurrent_days
  force_destroy   = !var.deletion_protection
}

module "secrets" {
  source        = "./modules/secrets"
  name          = var.name
  secrets       = ["cluster-token", "admin-key", "database-password"]
  key_arn       = module.storage.key_arn
  generation    = var.secrets_generation
  recovery_days = var.deletion_protection ? 30 : 0
}

# The same for ever: what it has encrypted in the database is lost with it, so no new generation replaces it.
module "master_key" {
  source        = "./modules/secrets"
  name          = var.name
  secrets       = var.master_key == "kms" ? [] : ["master-key"]
  key_arn       = module.storage.key_arn
  generation    = 1
  recovery_days = var.deletion_protection ? 30 : 0
}

module "master_key_in_kms" {
  source = "./modules/master-key"
  count  = var.master_key == "secret" ? 0 : 1
  name   = var.name
}

module "database" {
  source              = "./modules/database"
  name                = var.name
  subnet_ids          = module.network.private_subnet_ids
  security_group_id   = module.firewall.ids["database"]
  engine_version      = var.database.engine_version
  instance_class      = var.database.instance_class
  storage_gib         = var.database.storage_gib
  multi_az            = var.database.multi_az
  backup_days         = var.database.backup_days
  deletion_protection = var.deletion_protection
  key_arn             = module.storage.key_arn
  password_secret_arn = module.secrets.arns["database-password"]
  password_generation = var.secrets_generation
}

module "balancers" {
  source              = "./modules/balancers"
  name                = var.name
  vpc_id              = module.network.vpc_id
  public_subnet_ids   = module.network.public_subnet_ids
  private_subnet_ids  = module.network.private_subnet_ids
  security_groups     = module.firewall.ids
  certificate_arn     = var.certificate_arn
  log_bucket          = module.storage.log_bucket
  drain_seconds       = var.drain_seconds
  deletion_protection = var.deletion_protection
}

module "monitoring" {
  source              = "./modules/monitoring"
  name                = var.name
  log_days            = var.log_days
  key_arn             = module.storage.key_arn
  alarm_addresses     = var.alarm_addresses
  dimensions          = module.balancers.metric_dimensions
  database_identifier = module.database.identifier
}

module "gateways" {
  source             = "./modules/fleet"
  name               = var.name
  role               = "gateway"
  image_id           = var.image_id
  root_device        = var.root_device
  instance_types     = var.gateways.instance_types
  size               = var.gateways.size
  subnet_ids         = module.network.private_subnet_ids
  security_group_id  = module.firewall.ids["gateway"]
  target_group_arns  = [module.balancers.gateway_target_group_arn]
  health_check_type  = "ELB"
  user_data          = local.user_data["gateway"]
  policies           = [data.aws_iam_policy_document.common["gateway"].json]
  disk_gib           = 16
  drain_seconds      = var.drain_seconds
  cpu_target_percent = 60
  session_manager    = var.session_manager
  tags               = var.tags
}

module "schedulers" {
  source            = "./modules/fleet"
  name              = var.name
  role              = "scheduler"
  image_id          = var.image_id
  root_device       = var.root_device
  instance_types    = var.schedulers.instance_types
  size              = { min = var.schedulers.count, max = var.schedulers.count + 1 }
  subnet_ids        = module.network.private_subnet_ids
  security_group_id = module.firewall.ids["scheduler"]
  target_group_arns = [module.balancers.scheduler_target_group_arn]
  # One that stands by is not ready, and well.
  health_check_type = "EC2"
  user_data         = local.user_data["scheduler"]
  policies = [
    data.aws_iam_policy_document.common["scheduler"].json,
    data.aws_iam_policy_document.scheduler.json,
  ]
  disk_gib        = 32
  drain_seconds   = var.drain_seconds
  session_manager = var.session_manager
  tags            = var.tags
}

module "workers" {
  source                = "./modules/fleet"
  name                  = var.name
  role                  = "worker"
  image_id              = var.image_id
  root_device           = var.root_device
  instance_types        = var.workers.instance_types
  size                  = var.workers.size
  spot_percent          = var.workers.spot_percent
  on_demand_base        = var.workers.on_demand_base
  subnet_ids            = module.network.private_subnet_ids
  security_group_id     = module.firewall.ids["worker"]
  user_data             = local.user_data["worker"]
  policies              = [data.aws_iam_policy_document.common["worker"].json, data.aws_iam_policy_document.worker.json]
  disk_gib              = var.workers.disk_gib
  disk_mibps            = var.workers.disk_mibps
  drain_seconds         = var.drain_seconds
  memory_target_percent = var.workers.memory_target_percent
  session_manager       = var.session_manager
  tags                  = var.tags
}
