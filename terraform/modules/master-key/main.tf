# The key of KMS that wraps the master key of the schedulers' database, and nothing else: no other role has a right to
# it.

data "aws_caller_identity" "me" {}
data "aws_partition" "here" {}

resource "aws_kms_key" "this" {
  description             = "Rekindle ${var.name}: the master key"
  enable_key_rotation     = true
  deletion_window_in_days = 30
  policy                  = data.aws_iam_policy_document.key.json
}

resource "aws_kms_alias" "this" {
  name          = "alias/${var.name}-master-key"
  target_key_id = aws_kms_key.this.key_id
}

# In a key's policy "*" is that key: IAM decides who of this account may use it.
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
      identifiers = ["arn:${data.aws_partition.here.partition}:iam::${data.aws_caller_identity.me.account_id}:root"]
    }
  }
}
