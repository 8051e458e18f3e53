# Two balancers: the public one ends TLS before the gateways; the inner one passes TCP on to whichever scheduler
# answers.

resource "aws_lb" "public" {
  #checkov:skip=CKV2_AWS_28: a firewall for web applications is a matter of the functions behind it: attach one by its ARN (outputs.tf)
  #checkov:skip=CKV_AWS_150: var.deletion_protection, on by default
  name                       = "${var.name}-public"
  load_balancer_type         = "application"
  internal                   = false
  subnets                    = var.public_subnet_ids
  security_groups            = [var.security_groups["balancer"]]
  drop_invalid_header_fields = true
  enable_deletion_protection = var.deletion_protection
  # Longer than the longest timeout of a function (15 minutes): the gateway answers first, with a code.
  idle_timeout = 930

  access_logs {
    bucket  = var.log_bucket
    prefix  = "balancer"
    enabled = true
  }
}

resource "aws_lb_listener" "https" {
  load_balancer_arn = aws_lb.public.arn
  port              = 443
  protocol          = "HTTPS"
  ssl_policy        = "ELBSecurityPolicy-TLS13-1-2-2021-06"
  certificate_arn   = var.certificate_arn
  default_action {
    type             = "forward"
    target_group_arn = aws_lb_target_group.gateway.arn
  }
}

resource "aws_lb_listener" "redirect" {
  load_balancer_arn = aws_lb.public.arn
  port              = 80
  protocol          = "HTTP"
  default_action {
    type = "redirect"
    redirect {
      port        = "443"
      protocol    = "HTTPS"
      status_code = "HTTP_301"
    }
  }
}

resource "aws_lb_target_group" "gateway" {
  #checkov:skip=CKV_AWS_378: TLS ends at the balancer; gateways take connections from its security group alone
  name        = "${var.name}-gateway"
  vpc_id      = var.vpc_id
  port        = 8080
  protocol    = "HTTP"
  target_type = "instance"
  # What is in flight may take as long as a function may.
  deregistration_delay          = var.drain_seconds
  load_balancing_algorithm_type = "least_outstanding_requests"
  health_check {
    # Lives: a scheduler that is away for a moment must not take every gateway out, whose leases go on serving.
    path                = "/healthz"
    matcher             = "200"
    interval            = 10
    timeout             = 5
    healthy_threshold   = 2
    unhealthy_threshold = 3
  }
}

resource "aws_lb" "scheduler" {
  #checkov:skip=CKV_AWS_91: an inner balancer of TCP has no requests to log; the VPC's flow log has what was refused
  #checkov:skip=CKV_AWS_150: var.deletion_protection, on by default
  name                             = "${var.name}-scheduler"
  load_balancer_type               = "network"
  internal                         = true
  subnets                          = var.private_subnet_ids
  security_groups                  = [var.security_groups["scheduler-balancer"]]
  enable_cross_zone_load_balancing = true
  enable_deletion_protection       = var.deletion_protection
}

resource "aws_lb_listener" "scheduler" {
  load_balancer_arn = aws_lb.scheduler.arn
  port              = 8081
  protocol          = "TCP"
  default_action {
    type             = "forward"
    target_group_arn = aws_lb_target_group.scheduler.arn
  }
}

resource "aws_lb_target_group" "scheduler" {
  name                 = "${var.name}-scheduler"
  vpc_id               = var.vpc_id
  port                 = 8081
  protocol             = "TCP"
  target_type          = "instance"
  deregistration_delay = 30
  # So that a role is told at once when its scheduler is gone, and asks the other.
  connection_termination = true
  preserve_client_ip     = "false"
  health_check {
    protocol = "HTTP"
    # Of several schedulers the one that leads is ready. Where none is, all are asked.
    path                = "/readyz"
    matcher             = "200"
    interval            = 5
    timeout             = 3
    healthy_threshold   = 2
    unhealthy_threshold = 2
  }
}
