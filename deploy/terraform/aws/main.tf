module "core" {
  source    = "../core"
  regions   = var.regions
  replicas  = var.replicas
  operators = var.operators
  clients   = var.clients
  package   = var.package
  tokens    = var.tokens
  founded   = var.founded
  enrolled  = var.enrolled
  data_disk = { device = "/dev/nvme1n1" }
  addresses = { for name, ip in aws_eip.node : name => { advertise = ip.public_ip } }
}

locals {
  # A network and a subnet of each zone; the ordinal of a region and the place of a zone in its list never change.
  zones = merge([
    for region, r in module.core.regions : {
      for i, zone in r.zones : "${region}/${zone}" => { region = region, place = r.place, zone = zone, index = i }
    }
  ]...)

  # One rule of a security group admits one network.
  admitted = merge([
    for region, r in module.core.regions : merge([
      for name, rule in module.core.firewall : {
        for source, network in rule.networks : "${region}/${name}/${source}" => merge(rule, { region = region, place = r.place, name = name, network = network })
      } if rule.to == "node"
    ]...)
  ]...)
}

data "aws_ami" "node" {
  for_each    = module.core.regions
  region      = each.value.place
  owners      = [var.image.owner]
  most_recent = true
  filter {
    name   = "name"
    values = [var.image.name]
  }
  filter {
    name   = "architecture"
    values = [var.image.architecture]
  }
}

resource "aws_key_pair" "operators" {
  for_each        = module.core.regions
  region          = each.value.place
  key_name_prefix = "rhumb-"
  public_key      = var.public_key
}

resource "aws_vpc" "region" {
  for_each             = module.core.regions
  region               = each.value.place
  cidr_block           = cidrsubnet("10.0.0.0/8", 8, each.value.ordinal)
  enable_dns_hostnames = true
  tags                 = { Name = "rhumb-${each.key}" }
}

resource "aws_internet_gateway" "region" {
  for_each = module.core.regions
  region   = each.value.place
  vpc_id   = aws_vpc.region[each.key].id
}

resource "aws_route_table" "region" {
  for_each = module.core.regions
  region   = each.value.place
  vpc_id   = aws_vpc.region[each.key].id
  route {
    cidr_block = "0.0.0.0/0"
    gateway_id = aws_internet_gateway.region[each.key].id
  }
}

resource "aws_subnet" "zone" {
  for_each          = local.zones
  region            = each.value.place
  vpc_id            = aws_vpc.region[each.value.region].id
  availability_zone = each.value.zone
  cidr_block        = cidrsubnet(aws_vpc.region[each.value.region].cidr_block, 8, each.value.index)
}

resource "aws_route_table_association" "zone" {
  for_each       = local.zones
  region         = each.value.place
  subnet_id      = aws_subnet.zone[each.key].id
  route_table_id = aws_route_table.region[each.value.region].id
}

resource "aws_security_group" "node" {
  for_each    = module.core.regions
  region      = each.value.place
  name_prefix = "rhumb-node-"
  description = "Nodes of Rhumb"
  vpc_id      = aws_vpc.region[each.key].id
}

resource "aws_vpc_security_group_ingress_rule" "node" {
  for_each          = local.admitted
  region            = each.value.place
  security_group_id = aws_security_group.node[each.value.region].id
  description       = each.value.name
  ip_protocol       = each.value.protocol
  from_port         = each.value.port
  to_port           = each.value.port
  cidr_ipv4         = strcontains(each.value.network, ":") ? null : each.value.network
  cidr_ipv6         = strcontains(each.value.network, ":") ? each.value.network : null
}

resource "aws_vpc_security_group_egress_rule" "node" {
  for_each          = module.core.regions
  region            = each.value.place
  security_group_id = aws_security_group.node[each.key].id
  description       = "peers, authority, packages and clocks"
  ip_protocol       = "-1"
  cidr_ipv4         = "0.0.0.0/0"
}

# Addresses exist before machines, because the files of a machine contain addresses of others.
resource "aws_eip" "node" {
  for_each = module.core.nodes
  region   = each.value.place
  domain   = "vpc"
  tags     = { Name = "rhumb-${each.key}" }
}

resource "aws_instance" "node" {
  for_each               = module.core.nodes
  region                 = each.value.place
  ami                    = data.aws_ami.node[each.value.region].id
  instance_type          = coalesce(each.value.instance, var.instance)
  subnet_id              = aws_subnet.zone["${each.value.region}/${each.value.zone}"].id
  vpc_security_group_ids = [aws_security_group.node[each.value.region].id]
  key_name               = aws_key_pair.operators[each.value.region].key_name
  user_data              = module.core.cloud_init[each.key]
  tags                   = { Name = "rhumb-${each.key}" }

  metadata_options {
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  root_block_device {
    encrypted = true
  }

  # In the machine from its first boot on, as /dev/nvme1n1. It outlives the machine.
  ebs_block_device {
    device_name           = "/dev/sdf"
    volume_type           = "gp3"
    volume_size           = coalesce(each.value.disk_gib, var.disk_gib)
    encrypted             = true
    delete_on_termination = false
  }

  # A newer image or other user data must not replace a machine with data.
  lifecycle {
    ignore_changes = [ami, user_data]
  }
}

resource "aws_eip_association" "node" {
  for_each      = module.core.nodes
  region        = each.value.place
  allocation_id = aws_eip.node[each.key].id
  instance_id   = aws_instance.node[each.key].id
}

# Nodes and regions leave the cluster before their machines go. Rules are of one node each, and a node that is removed needs its rules until
# it has left, as it needs its way to the internet.
module "leave" {
  source     = "../leave"
  nodes      = keys(module.core.nodes)
  regions    = keys(module.core.regions)
  endpoints  = values(module.core.endpoints)
  operator   = var.operator
  depends_on = [aws_instance.node, aws_eip_association.node, aws_vpc_security_group_ingress_rule.node, aws_vpc_security_group_egress_rule.node, aws_route_table_association.zone]
}
