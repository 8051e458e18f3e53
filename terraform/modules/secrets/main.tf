# The platform's secrets. Values are made here and go to Secrets Manager alone: they are ephemeral, and so in no state
# and no plan.

ephemeral "aws_secretsmanager_random_password" "new" {
  for_each            = toset(var.secrets)
  password_length     = 48
  exclude_punctuation = true
}

resource "aws_secretsmanager_secret" "this" {
  #checkov:skip=CKV2_AWS_57: the roles read their secrets when they start: a new generation is rolled out by an instance refresh (README.md)
  for_each                = toset(var.secrets)
  name                    = "${var.name}/${each.key}"
  description             = "Rekindle ${var.name}: ${each.key}"
  kms_key_id              = var.key_arn
  recovery_window_in_days = var.recovery_days
}

resource "aws_secretsmanager_secret_version" "this" {
  for_each                 = aws_secretsmanager_secret.this
  secret_id                = each.value.id
  secret_string_wo         = ephemeral.aws_secretsmanager_random_password.new[each.key].random_password
  secret_string_wo_version = var.generation
}
