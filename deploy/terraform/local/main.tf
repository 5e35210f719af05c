module "core" {
  source    = "../core"
  regions   = { for name, r in var.regions : name => merge({ memory = var.memory }, r) }
  replicas  = var.replicas
  founded   = var.founded
  operators = ["${cidrhost(var.network, 1)}/32"]
  clients   = coalesce(var.clients, [var.network])
  addresses = { for name, n in module.core.nodes : name => { advertise = local.address[name] } }
}

locals {
  # A host's address is 10.N.<ordinal of the region>.<ordinal of the node>.
  address = {
    for name, n in module.core.nodes : name => cidrhost(cidrsubnet(var.network, 8, module.core.regions[n.region].ordinal), n.ordinal)
  }
  authority = cidrhost(var.network, 20)

  # The rules of a host in the form of hostctl.
  rules = {
    for target in ["node", "authority"] : target => [
      for name, rule in module.core.firewall : {
        name     = name
        protocol = rule.protocol
        ports    = [rule.port]
        sources  = values(rule.networks)
      } if rule.to == target
    ]
  }

  # What every script gets in its environment. Provisioners that destroy see their own object only, so the object holds it.
  tools = {
    HOSTCTL     = "${var.bin_dir}/hostctl"
    RHUMB       = "${var.bin_dir}/rhumb"
    RHUMB_HOSTS = var.state_dir
    NETWORK     = var.network
    UNITS       = abspath("${path.module}/../../systemd")
    SCRIPTS     = abspath("${path.module}/scripts")
  }
}

# The network of the hosts.
resource "terraform_data" "fleet" {
  input = local.tools
  provisioner "local-exec" {
    command     = "\"$SCRIPTS/fleet.sh\" create"
    environment = self.input
    quiet       = true
  }
  provisioner "local-exec" {
    when        = destroy
    command     = "\"$SCRIPTS/fleet.sh\" destroy"
    environment = self.input
    quiet       = true
  }
}

# The host of the authority, which is no node: a node that is broken into cannot mint identities.
resource "terraform_data" "authority" {
  depends_on = [terraform_data.fleet]
  input      = merge(local.tools, { HOST = "authority", ADDRESS = local.authority, PORT = tostring(module.core.ports.authority) })
  provisioner "local-exec" {
    command     = "\"$SCRIPTS/authority.sh\" create"
    environment = self.input
    quiet       = true
  }
  provisioner "local-exec" {
    when        = destroy
    command     = "\"$SCRIPTS/host.sh\" destroy"
    environment = self.input
    quiet       = true
  }
}

# The certificate of the operator. Its key is in a file, never in the state.
resource "terraform_data" "operator" {
  depends_on = [terraform_data.authority]
  input      = merge(local.tools, { DIR = var.operator_dir })
  provisioner "local-exec" {
    command     = "\"$SCRIPTS/operator.sh\" create"
    environment = self.input
    quiet       = true
  }
  provisioner "local-exec" {
    when        = destroy
    command     = "\"$SCRIPTS/operator.sh\" destroy"
    environment = self.input
    quiet       = true
  }
}

# A machine with the program and without an identity.
resource "terraform_data" "host" {
  for_each   = module.core.nodes
  depends_on = [terraform_data.fleet]
  input      = merge(local.tools, { HOST = each.key, REGION = each.value.region, ADDRESS = local.address[each.key] })
  provisioner "local-exec" {
    command     = "\"$SCRIPTS/host.sh\" create"
    environment = self.input
    quiet       = true
  }
  provisioner "local-exec" {
    when        = destroy
    command     = "\"$SCRIPTS/host.sh\" destroy"
    environment = self.input
    quiet       = true
  }
}

# Nodes and regions leave the cluster before their hosts go. Firewalls depend on it: they admit a node until it has left.
module "leave" {
  source     = "../leave"
  depends_on = [terraform_data.host, terraform_data.operator]
  nodes      = keys(module.core.nodes)
  regions    = keys(module.core.regions)
  endpoints  = values(module.core.endpoints)
  operator = {
    rhumb = "${var.bin_dir}/rhumb"
    ca    = "${var.operator_dir}/ca.crt"
    cert  = "${var.operator_dir}/operator.crt"
    key   = "${var.operator_dir}/operator.key"
  }
}

# Replacing this object replaces the file of a running node. The node restarts, unless only the list of nodes to join has changed: that
# list is for nodes that are not members yet, and it changes when an older node is removed.
resource "terraform_data" "config" {
  for_each         = module.core.nodes
  triggers_replace = [module.core.config[each.key], terraform_data.host[each.key].id]
  provisioner "local-exec" {
    command     = "\"$SCRIPTS/config.sh\""
    environment = merge(local.tools, { HOST = each.key, CONFIG = module.core.config[each.key] })
    quiet       = true
  }
}

# Rules change with every new node. hostctl replaces them at once and keeps connections.
resource "terraform_data" "firewall" {
  depends_on       = [module.leave]
  for_each         = merge({ for name, host in terraform_data.host : name => host.id }, { authority = terraform_data.authority.id })
  triggers_replace = [local.rules[each.key == "authority" ? "authority" : "node"], each.value]
  provisioner "local-exec" {
    command     = "printf '%s' \"$RULES\" | \"$HOSTCTL\" firewall \"$HOST\" --rules -"
    environment = merge(local.tools, { HOST = each.key, RULES = jsonencode(local.rules[each.key == "authority" ? "authority" : "node"]) })
    quiet       = true
  }
}

# Hands the token over and starts the node. The token passes from host to host and is never in Terraform. New nodes start after
# all firewalls admit them.
resource "terraform_data" "node" {
  for_each         = module.core.nodes
  depends_on       = [terraform_data.firewall, terraform_data.config, terraform_data.authority]
  triggers_replace = [terraform_data.host[each.key].id]
  provisioner "local-exec" {
    command = "\"$SCRIPTS/node.sh\""
    environment = merge(local.tools, {
      HOST    = each.key
      FOUNDER = each.key == module.core.founder && !var.founded ? "--founder" : ""
    })
    quiet = true
  }
}
