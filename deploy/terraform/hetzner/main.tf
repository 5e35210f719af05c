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
  addresses = { for name, ip in hcloud_primary_ip.node : name => { advertise = ip.ip_address } }
}

resource "hcloud_ssh_key" "operators" {
  name       = "rhumb-operators"
  public_key = var.public_key
}

# A machine starts with a firewall without rules, which admits nobody, so that no machine is ever open. The firewall with the rules is
# attached to it afterwards: those rules change only after nodes have left, so they depend on machines and not the reverse.
resource "hcloud_firewall" "closed" {
  name = "rhumb-closed"
}

resource "hcloud_firewall_attachment" "node" {
  firewall_id = hcloud_firewall.node.id
  server_ids  = [for name, server in hcloud_server.node : server.id]
}

# A firewall admits several networks per rule; core lists none but those that it means.
resource "hcloud_firewall" "node" {
  depends_on = [module.leave]
  name       = "rhumb-node"
  dynamic "rule" {
    for_each = { for name, rule in module.core.firewall : name => rule if rule.to == "node" }
    content {
      description = rule.key
      direction   = "in"
      protocol    = rule.value.protocol
      port        = tostring(rule.value.port)
      source_ips  = values(rule.value.networks)
    }
  }
}

# Machines of one group are on different hosts. A group has at most ten machines.
resource "hcloud_placement_group" "region" {
  for_each = toset([for n in values(module.core.nodes) : "${n.region}-${floor((n.ordinal - 1) / 10)}"])
  name     = "rhumb-${each.key}"
  type     = "spread"
}

# Addresses exist before machines, because the files of a machine contain addresses of others.
resource "hcloud_primary_ip" "node" {
  for_each      = module.core.nodes
  name          = "rhumb-${each.key}"
  location      = each.value.place
  type          = "ipv4"
  assignee_type = "server"
  auto_delete   = false
}

resource "hcloud_server" "node" {
  for_each           = module.core.nodes
  name               = each.key
  location           = each.value.place
  server_type        = coalesce(each.value.instance, var.instance)
  image              = var.image
  ssh_keys           = [hcloud_ssh_key.operators.id]
  firewall_ids       = [hcloud_firewall.closed.id]
  placement_group_id = hcloud_placement_group.region["${each.value.region}-${floor((each.value.ordinal - 1) / 10)}"].id
  user_data          = module.core.cloud_init[each.key]

  public_net {
    ipv4         = hcloud_primary_ip.node[each.key].id
    ipv6_enabled = false
  }

  # A newer image or other user data must not replace a machine with data. The attachment adds a firewall.
  lifecycle {
    ignore_changes = [image, user_data, ssh_keys, firewall_ids]
  }
}

# Nodes and regions leave the cluster before their machines go.
module "leave" {
  source     = "../leave"
  nodes      = keys(module.core.nodes)
  regions    = keys(module.core.regions)
  endpoints  = values(module.core.endpoints)
  operator   = var.operator
  depends_on = [hcloud_server.node]
}
