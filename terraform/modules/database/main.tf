# PostgreSQL for the schedulers: encrypted, in private subnets, TLS enforced. Its password is read from Secrets Manager
# and never in the state.

locals {
  major = split(".", var.engine_version)[0]
}

ephemeral "aws_secretsmanager_secret_version" "password" {
  secret_id = var.password_secret_arn
}

resource "aws_db_subnet_group" "this" {
  name       = var.name
  subnet_ids = var.subnet_ids
}

resource "aws_db_parameter_group" "this" {
  name_prefix = "${var.name}-"
  family      = "postgres${local.major}"
  parameter {
    name  = "rds.force_ssl"
    value = "1"
  }
  # A statement of the scheduler that takes longer than a second is worth a line.
  parameter {
    name  = "log_min_duration_statement"
    value = "1000"
  }
  # No statement itself: it may hold what functions were called with.
  parameter {
    name  = "log_statement"
    value = "ddl"
  }
  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_db_instance" "this" {
  #checkov:skip=CKV_AWS_157: var.multi_az; examples/production sets it, a small cluster saves half the price
  #checkov:skip=CKV_AWS_293: var.deletion_protection, on by default; examples/small can be destroyed
  #checkov:skip=CKV_AWS_118: the platform measures its own requests; enhanced monitoring adds an agent's cost for nothing that is alarmed on
  #checkov:skip=CKV_AWS_161: the schedulers hold connections for days with one password from Secrets Manager
  identifier     = var.name
  engine         = "postgres"
  engine_version = var.engine_version
  instance_class = var.instance_class
  db_name        = "rekindle"
  username       = "rekindle"

  password_wo         = ephemeral.aws_secretsmanager_secret_version.password.secret_string
  password_wo_version = var.password_generation

  allocated_storage     = var.storage_gib
  max_allocated_storage = var.storage_gib * 4
  storage_type          = "gp3"
  storage_encrypted     = true
  kms_key_id            = var.key_arn

  multi_az               = var.multi_az
  db_subnet_group_name   = aws_db_subnet_group.this.name
  vpc_security_group_ids = [var.security_group_id]
  publicly_accessible    = false
  parameter_group_name   = aws_db_parameter_group.this.name
  ca_cert_identifier     = "rds-ca-rsa2048-g1"

  backup_retention_period         = var.backup_days
  copy_tags_to_snapshot           = true
  deletion_protection             = var.deletion_protection
  skip_final_snapshot             = !var.deletion_protection
  final_snapshot_identifier       = var.deletion_protection ? "${var.name}-final" : null
  auto_minor_version_upgrade      = true
  enabled_cloudwatch_logs_exports = ["postgresql", "upgrade"]
  performance_insights_enabled    = true
  performance_insights_kms_key_id = var.key_arn
}
