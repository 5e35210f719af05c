locals {
  # Networks of one address from which nodes send, by node. The keys are known before the addresses are, so that layers can make
  # a resource for each of them in the first plan.
  peers = merge([
    for name in keys(local.nodes) : {
      for i, s in coalesce(var.addresses[name].sources, [var.addresses[name].advertise]) :
      (i == 0 ? name : "${name}/${i + 1}") => strcontains(s, ":") ? "${s}/128" : "${s}/32"
    }
  ]...)
  clients   = { for c in var.clients : c => c }
  operators = { for o in var.operators : o => o }

  # Who may reach which port. Layers turn every element into a rule of the provider and open nothing else. The heartbeat and gossip
  # ports are for peers only.
  firewall_all = {
    peers-main      = { to = "node", protocol = "tcp", port = var.ports.main, from = "peers", networks = local.peers }
    peers-heartbeat = { to = "node", protocol = "tcp", port = var.ports.heartbeat, from = "peers", networks = local.peers }
    peers-gossip    = { to = "node", protocol = "tcp", port = var.ports.gossip, from = "peers", networks = local.peers }
    peers-probe     = { to = "node", protocol = "udp", port = var.ports.gossip, from = "peers", networks = local.peers }
    clients-main    = { to = "node", protocol = "tcp", port = var.ports.main, from = "clients", networks = local.clients }
    operators-main  = { to = "node", protocol = "tcp", port = var.ports.main, from = "operators", networks = local.operators }
    operators-admin = { to = "node", protocol = "tcp", port = var.ports.admin, from = "operators", networks = local.operators }
    operators-ssh   = { to = "node", protocol = "tcp", port = 22, from = "operators", networks = local.operators }
    # A node that renews its certificate is a client of the authority, which itself reaches no node.
    nodes-authority = { to = "authority", protocol = "tcp", port = var.ports.authority, from = "peers", networks = local.peers }
    operators-shell = { to = "authority", protocol = "tcp", port = 22, from = "operators", networks = local.operators }
  }
  # A rule without networks would mean "everybody" to some providers, so it does not exist.
  firewall = { for name, rule in local.firewall_all : name => rule if length(rule.networks) > 0 }
}
