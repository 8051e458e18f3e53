# What each role may do, and no more. Gateways touch no object; workers add objects; schedulers collect what nobody
# needs.

locals {
  # What workers put. What snapshots are made of is put once, if absent, so that nobody exchanges it. Put over what may
  # be there are hints, which readers check, and notes of what is being published.
  put_once     = ["snapshots/*/manifest.json", "snapshots/*/bundle", "snapshots/*/extra/*", "chunks/*", "layers/*"]
  put_over     = ["snapshots/*/working-set", "snapshots/*/files", "publishing/*"]
  put_in_parts = ["snapshots/*/extra/*", "layers/*"]

  secrets_of = {
    gateway   = ["cluster-token", "admin-key"]
    scheduler = concat(["cluster-token", "database-password"], var.master_key == "kms" ? [] : ["master-key"])
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
  # Of what this key has wrapped, only what is this cluster's (docs/how-to/keep-the-master-key-in-kms.md).
  dynamic "statement" {
    for_each = module.master_key_in_kms[*].key_arn
    content {
      sid       = "MasterKey"
      actions   = ["kms:GenerateDataKey", "kms:Encrypt", "kms:Decrypt"]
      resources = [statement.value]
      condition {
        test     = "StringEquals"
        variable = "kms:EncryptionContext:rekindle:cluster"
        values   = [var.name]
      }
    }
  }
  # This has no encryption context.
  dynamic "statement" {
    for_each = module.master_key_in_kms[*].key_arn
    content {
      sid       = "MasterKeyState"
      actions   = ["kms:DescribeKey"]
      resources = [statement.value]
    }
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
  statement {
    sid       = "PublishOnce"
    actions   = ["s3:PutObject"]
    resources = [for key in local.put_once : "${module.storage.bucket_arn}/${key}"]
    # S3 refuses whoever says so where there is an object already.
    condition {
      test     = "Null"
      variable = "s3:if-none-match"
      values   = ["false"]
    }
  }
  # The parts of an upload make no object: what completes it does, on the condition above.
  statement {
    sid       = "PublishParts"
    actions   = ["s3:PutObject"]
    resources = [for key in local.put_in_parts : "${module.storage.bucket_arn}/${key}"]
    condition {
      test     = "Bool"
      variable = "s3:ObjectCreationOperation"
      values   = ["false"]
    }
  }
  statement {
    sid       = "Publish"
    actions   = ["s3:PutObject"]
    resources = [for key in local.put_over : "${module.storage.bucket_arn}/${key}"]
  }
  statement {
    sid       = "GiveUpParts"
    actions   = ["s3:AbortMultipartUpload"]
    resources = [for key in local.put_in_parts : "${module.storage.bucket_arn}/${key}"]
  }
  # Notes of snapshots being published, when they are. IAM cannot tell a worker's own from another's.
  statement {
    sid       = "EndPublication"
    actions   = ["s3:DeleteObject"]
    resources = ["${module.storage.bucket_arn}/publishing/s-*"]
  }
}
