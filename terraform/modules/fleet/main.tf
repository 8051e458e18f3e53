# A fleet of machines with one role: identity, launch template, auto-scaling group. Machines are replaced, never
# changed: a new launch template rolls through the group while the old machines drain.

data "aws_partition" "here" {}

locals {
  full_name = "${var.name}-${var.role}"
  arn       = "arn:${data.aws_partition.here.partition}:autoscaling:*:*:autoScalingGroup:*:autoScalingGroupName/${local.full_name}"
}

data "aws_iam_policy_document" "assume" {
  statement {
    actions = ["sts:AssumeRole"]
    principals {
      type        = "Service"
      identifiers = ["ec2.amazonaws.com"]
    }
  }
}

resource "aws_iam_role" "this" {
  name               = local.full_name
  description        = "Machines with the role ${var.role}"
  assume_role_policy = data.aws_iam_policy_document.assume.json
}

resource "aws_iam_role_policy" "this" {
  name   = var.role
  role   = aws_iam_role.this.id
  policy = data.aws_iam_policy_document.this.json
}

data "aws_iam_policy_document" "this" {
  source_policy_documents = var.policies
  # A machine says when it serves or cannot, when it has drained, and while it has not.
  statement {
    sid       = "Lifecycle"
    actions   = ["autoscaling:CompleteLifecycleAction", "autoscaling:RecordLifecycleActionHeartbeat"]
    resources = [local.arn]
  }
}

# A shell on a machine without SSH and without an open port.
resource "aws_iam_role_policy_attachment" "session" {
  count      = var.session_manager ? 1 : 0
  role       = aws_iam_role.this.name
  policy_arn = "arn:${data.aws_partition.here.partition}:iam::aws:policy/AmazonSSMManagedInstanceCore"
}

resource "aws_iam_instance_profile" "this" {
  name = local.full_name
  role = aws_iam_role.this.name
}

resource "aws_launch_template" "this" {
  name_prefix            = "${local.full_name}-"
  description            = "Rekindle ${var.role}"
  image_id               = var.image_id
  instance_type          = var.instance_types[0]
  update_default_version = true
  vpc_security_group_ids = [var.security_group_id]
  user_data              = base64gzip(var.user_data)
  ebs_optimized          = true

  iam_instance_profile {
    arn = aws_iam_instance_profile.this.arn
  }

  # A session token first, and answers that do not outlive one hop: what runs behind another network namespace, as
  # functions do, cannot have the machine's credentials.
  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
    instance_metadata_tags      = "enabled"
  }

  block_device_mappings {
    device_name = var.root_device
    ebs {
      volume_type           = "gp3"
      volume_size           = var.disk_gib
      throughput            = var.disk_mibps
      encrypted             = true
      delete_on_termination = true
    }
  }

  monitoring {
    enabled = true
  }

  dynamic "tag_specifications" {
    for_each = toset(["instance", "volume", "network-interface"])
    content {
      resource_type = tag_specifications.key
      tags          = merge(var.tags, { Name = local.full_name, "rekindle:role" = var.role })
    }
  }

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_autoscaling_group" "this" {
  #checkov:skip=CKV_AWS_315: the launch template stands in the mixed instances policy
  name                      = local.full_name
  vpc_zone_identifier       = var.subnet_ids
  min_size                  = var.size.min
  max_size                  = var.size.max
  target_group_arns         = var.target_group_arns
  health_check_type         = var.health_check_type
  health_check_grace_period = 300
  capacity_rebalance        = var.spot_percent > 0
  default_instance_warmup   = 120
  termination_policies      = ["OldestLaunchTemplate", "OldestInstance"]
  enabled_metrics = [
    "GroupInServiceInstances", "GroupDesiredCapacity", "GroupPendingInstances", "GroupTerminatingInstances",
  ]

  mixed_instances_policy {
    instances_distribution {
      on_demand_base_capacity                  = var.on_demand_base
      on_demand_percentage_above_base_capacity = 100 - var.spot_percent
      spot_allocation_strategy                 = "price-capacity-optimized"
    }
    launch_template {
      launch_template_specification {
        launch_template_id = aws_launch_template.this.id
        version            = aws_launch_template.this.latest_version
      }
      dynamic "override" {
        for_each = var.instance_types
        content {
          instance_type = override.value
        }
      }
    }
  }

  # A machine is in service once its role answers (boot/boot.sh); one whose boot fails says so, or says nothing in time,
  # and is replaced. So an instance refresh with a bad release stops at its first machine, and is rolled back.
  initial_lifecycle_hook {
    name                 = "boot"
    lifecycle_transition = "autoscaling:EC2_INSTANCE_LAUNCHING"
    heartbeat_timeout    = 900
    default_result       = "ABANDON"
  }

  # The machine drains itself when it reads in its metadata that it is to go (packaging/aws/rekindle-drain), and ends
  # the wait.
  initial_lifecycle_hook {
    name                 = "drain"
    lifecycle_transition = "autoscaling:EC2_INSTANCE_TERMINATING"
    heartbeat_timeout    = var.drain_seconds
    default_result       = "CONTINUE"
  }

  instance_refresh {
    strategy = "Rolling"
    preferences {
      min_healthy_percentage = 100
      max_healthy_percentage = 150
      auto_rollback          = true
      skip_matching          = true
    }
  }

  dynamic "tag" {
    for_each = merge(var.tags, { Name = local.full_name, "rekindle:role" = var.role })
    content {
      key                 = tag.key
      value               = tag.value
      propagate_at_launch = false
    }
  }

  lifecycle {
    ignore_changes = [desired_capacity]
  }
}

# Memory is what runs out first. The schedulers publish how much of it is promised (packaging/aws/rekindle-cloudwatch).
resource "aws_autoscaling_policy" "memory" {
  count                  = var.memory_target_percent == null ? 0 : 1
  name                   = "${local.full_name}-memory"
  autoscaling_group_name = aws_autoscaling_group.this.name
  policy_type            = "TargetTrackingScaling"
  target_tracking_configuration {
    target_value = var.memory_target_percent
    customized_metric_specification {
      namespace   = "Rekindle"
      metric_name = "WorkerMemoryReserved"
      statistic   = "Average"
      unit        = "Percent"
      metric_dimension {
        name  = "Cluster"
        value = var.name
      }
    }
  }
}

resource "aws_autoscaling_policy" "cpu" {
  count                  = var.cpu_target_percent == null ? 0 : 1
  name                   = "${local.full_name}-cpu"
  autoscaling_group_name = aws_autoscaling_group.this.name
  policy_type            = "TargetTrackingScaling"
  target_tracking_configuration {
    target_value = var.cpu_target_percent
    predefined_metric_specification {
      predefined_metric_type = "ASGAverageCPUUtilization"
    }
  }
}
