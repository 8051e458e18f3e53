# The key of everything at rest, the bucket of the platform (functions, layers, snapshots), and a bucket for the
# balancer's access log.

data "aws_caller_identity" "me" {}
data "aws_region" "here" {}
data "aws_partition" "here" {}

locals {
  account = data.aws_caller_identity.me.account_id
  buckets = {
    objects = { id = aws_s3_bucket.objects.id, arn = aws_s3_bucket.objects.arn }
    logs    = { id = aws_s3_bucket.logs.id, arn = aws_s3_bucket.logs.arn }
  }
}

resource "aws_kms_key" "this" {
  description             = "Rekindle ${var.name}: bucket, database, secrets, logs"
  enable_key_rotation     = true
  deletion_window_in_days = 30
  policy                  = data.aws_iam_policy_document.key.json
}

resource "aws_kms_alias" "this" {
  name          = "alias/${var.name}"
  target_key_id = aws_kms_key.this.key_id
}

# In a key's policy "*" is that key: IAM decides who of this account may use it, and CloudWatch may for log groups of
# this name.
data "aws_iam_policy_document" "key" {
  #checkov:skip=CKV_AWS_109: a key policy is about its own key
  #checkov:skip=CKV_AWS_111: a key policy is about its own key
  #checkov:skip=CKV_AWS_356: a key policy is about its own key
  statement {
    sid       = "Account"
    actions   = ["kms:*"]
    resources = ["*"]
    principals {
      type        = "AWS"
      identifiers = ["arn:${data.aws_partition.here.partition}:iam::${local.account}:root"]
    }
  }
  statement {
    sid       = "Logs"
    actions   = ["kms:Encrypt", "kms:Decrypt", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:DescribeKey"]
    resources = ["*"]
    principals {
      type        = "Service"
      identifiers = ["logs.${data.aws_region.here.region}.amazonaws.com"]
    }
    condition {
      test     = "ArnLike"
      variable = "kms:EncryptionContext:aws:logs:arn"
      values   = ["arn:${data.aws_partition.here.partition}:logs:${data.aws_region.here.region}:${local.account}:log-group:/rekindle/${var.name}/*"]
    }
  }
  statement {
    sid       = "Alarms"
    actions   = ["kms:Decrypt", "kms:GenerateDataKey*"]
    resources = ["*"]
    principals {
      type        = "Service"
      identifiers = ["cloudwatch.amazonaws.com"]
    }
    condition {
      test     = "StringEquals"
      variable = "aws:SourceAccount"
      values   = [local.account]
    }
  }
}

resource "aws_s3_bucket" "objects" {
  #checkov:skip=CKV_AWS_18: workers read it thousands of times a second; CloudTrail's data events are the place for that, where wanted
  #checkov:skip=CKV_AWS_144: a bucket belongs to one scheduler in one region; docs/how-to/recover-from-a-loss.md has disaster recovery
  #checkov:skip=CKV2_AWS_62: nobody waits for events of it
  bucket        = "${var.name}-objects-${local.account}-${data.aws_region.here.region}"
  force_destroy = var.force_destroy
}

resource "aws_s3_bucket" "logs" {
  #checkov:skip=CKV_AWS_18: a log of the log would log itself
  #checkov:skip=CKV_AWS_144: access logs are kept for a while, not for ever
  #checkov:skip=CKV_AWS_145: balancers can write to buckets with S3's own key only
  #checkov:skip=CKV2_AWS_62: nobody waits for events of it
  bucket        = "${var.name}-logs-${local.account}-${data.aws_region.here.region}"
  force_destroy = var.force_destroy
}

resource "aws_s3_bucket_public_access_block" "this" {
  for_each                = local.buckets
  bucket                  = each.value.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_ownership_controls" "this" {
  for_each = local.buckets
  bucket   = each.value.id
  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

# A deleted or overwritten object can be had back until its lifecycle rule removes it.
resource "aws_s3_bucket_versioning" "this" {
  for_each = local.buckets
  bucket   = each.value.id
  versioning_configuration {
    status = "Enabled"
  }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "objects" {
  bucket = aws_s3_bucket.objects.id
  rule {
    # One data key for many objects: else each chunk would cost a request to KMS.
    bucket_key_enabled = true
    apply_server_side_encryption_by_default {
      sse_algorithm     = "aws:kms"
      kms_master_key_id = aws_kms_key.this.arn
    }
  }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "logs" {
  bucket = aws_s3_bucket.logs.id
  rule {
    apply_server_side_encryption_by_default {
      sse_algorithm = "AES256"
    }
  }
}

# No rule may remove objects by their age: what is old may be what serves. The scheduler collects
# (docs/how-to/free-storage.md).
resource "aws_s3_bucket_lifecycle_configuration" "objects" {
  bucket = aws_s3_bucket.objects.id
  rule {
    id     = "remains"
    status = "Enabled"
    filter {}
    abort_incomplete_multipart_upload {
      days_after_initiation = 2
    }
    noncurrent_version_expiration {
      noncurrent_days = var.noncurrent_days
    }
    expiration {
      expired_object_delete_marker = true
    }
  }
  depends_on = [aws_s3_bucket_versioning.this]
}

resource "aws_s3_bucket_lifecycle_configuration" "logs" {
  bucket = aws_s3_bucket.logs.id
  rule {
    id     = "old"
    status = "Enabled"
    filter {}
    abort_incomplete_multipart_upload {
      days_after_initiation = 2
    }
    expiration {
      days = 90
    }
    noncurrent_version_expiration {
      noncurrent_days = 7
    }
  }
  depends_on = [aws_s3_bucket_versioning.this]
}

data "aws_iam_policy_document" "tls_only" {
  for_each = local.buckets
  statement {
    sid       = "TlsOnly"
    effect    = "Deny"
    actions   = ["s3:*"]
    resources = [each.value.arn, "${each.value.arn}/*"]
    principals {
      type        = "*"
      identifiers = ["*"]
    }
    condition {
      test     = "Bool"
      variable = "aws:SecureTransport"
      values   = ["false"]
    }
  }
  dynamic "statement" {
    for_each = each.key == "logs" ? [true] : []
    content {
      sid       = "BalancerLogs"
      actions   = ["s3:PutObject"]
      resources = ["${each.value.arn}/balancer/AWSLogs/${local.account}/*"]
      principals {
        type        = "Service"
        identifiers = ["logdelivery.elasticloadbalancing.amazonaws.com"]
      }
    }
  }
}

resource "aws_s3_bucket_policy" "this" {
  for_each   = local.buckets
  bucket     = each.value.id
  policy     = data.aws_iam_policy_document.tls_only[each.key].json
  depends_on = [aws_s3_bucket_public_access_block.this]
}
