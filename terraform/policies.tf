# What each role may do, and no more. Gateways touch no object; workers remove nothing but what they publish; schedulers collect.

locals {
  secrets_of = {
    gateway   = ["cluster-token", "admin-key"]
    scheduler = ["cluster-token", "database-password", "master-key"]
    worker    = ["cluster-token"]
  }
  artefacts = {
    for role in keys(local.secrets_of) : role => [
      for key in distinct(compact([var.artefact.key, role == "scheduler" ? var.runtimes.key : ""])) :
      "arn:${data.aws_partition.here.partition}:s3:::${var.artefact.bucket}/${key}"
    ]
  }
}

data "aws_iam_policy_document" "common" {
  for_each = local.secrets_of
  statement {
    sid       = "Secrets"
    actions   = ["secretsmanager:GetSecretValue"]
    resources = [for secret in each.value : merge(module.secrets.arns, module.master_key.arns)[secret]]
  }
  statement {
    sid       = "Artefacts"
    actions   = ["s3:GetObject"]
    resources = local.artefacts[each.key]
  }
  statement {
    sid       = "Key"
    actions   = concat(["kms:Decrypt"], each.key == "gateway" ? [] : ["kms:GenerateDataKey"])
    resources = [module.storage.key_arn]
  }
  statement {
    sid       = "Logs"
    actions   = ["logs:CreateLogStream", "logs:PutLogEvents", "logs:DescribeLogStreams"]
    resources = ["${module.monitoring.log_group_arns[each.key]}:*"]
  }
}

data "aws_iam_policy_document" "scheduler" {
  statement {
    sid       = "List"
    actions   = ["s3:ListBucket"]
    resources = [module.storage.bucket_arn]
  }
  statement {
    sid       = "Objects"
    actions   = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]
    resources = ["${module.storage.bucket_arn}/*"]
  }
  # PutMetricData knows no resources: the namespace is what can be held.
  statement {
    sid       = "Metrics"
    actions   = ["cloudwatch:PutMetricData"]
    resources = ["*"]
    condition {
      test     = "StringEquals"
      variable = "cloudwatch:namespace"
      values   = ["Rekindle"]
    }
  }
}

data "aws_iam_policy_document" "worker" {
  statement {
    sid       = "List"
    actions   = ["s3:ListBucket"]
    resources = [module.storage.bucket_arn]
  }
  statement {
    sid       = "Read"
    actions   = ["s3:GetObject"]
    resources = ["${module.storage.bucket_arn}/*"]
  }
  # Chunks and layers are shared: a worker adds to them, and only a scheduler knows what nobody needs.
  statement {
    sid       = "Publish"
    actions   = ["s3:PutObject", "s3:AbortMultipartUpload"]
    resources = [for folder in ["snapshots", "chunks", "layers", "publishing"] : "${module.storage.bucket_arn}/${folder}/*"]
  }
  statement {
    sid       = "TakeBack"
    actions   = ["s3:DeleteObject"]
    resources = [for folder in ["snapshots", "publishing"] : "${module.storage.bucket_arn}/${folder}/*"]
  }
}
