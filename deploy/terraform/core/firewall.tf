locals {
  # Addresses from which nodes send, as networks of one address.
  node_sources = {
    for name, a in var.addresses : name => [for s in coalesce(a.sources, [a.advertise]) : strcontains(s, ":") ? "${s}/128" : "${s}/32"]
  }
  peers = sort(distinct(flatten(values(local.node_sources))))

  # Who may reach which port. Layers turn every element into a rule of the provider and open nothing else. The heartbeat and gossip
  # ports are for peers only.
  firewall_all = {
    peers-main      = { to = "node", protocol = "tcp", port = var.ports.main, from = "peers", networks = local.peers }
    peers-heartbeat = { to = "node", protocol = "tcp", port = var.ports.heartbeat, from = "peers", networks = local.peers }
    peers-gossip    = { to = "node", protocol = "tcp", port = var.ports.gossip, from = "peers", networks = local.peers }
    peers-probe     = { to = "node", protocol = "udp", port = var.ports.gossip, from = "peers", networks = local.peers }
    clients-main    = { to = "node", protocol = "tcp", port = var.ports.main, from = "clients", networks = sort(var.clients) }
    operators-main  = { to = "node", protocol = "tcp", port = var.ports.main, from = "operators", networks = sort(var.operators) }
    operators-admin = { to = "node", protocol = "tcp", port = var.ports.admin, from = "operators", networks = sort(var.operators) }
    operators-ssh   = { to = "node", protocol = "tcp", port = 22, from = "operators", networks = sort(var.operators) }
    # A node that renews its certificate is a client of the authority, which itself reaches no node.
    nodes-authority = { to = "authority", protocol = "tcp", port = var.ports.authority, from = "peers", networks = local.peers }
    operators-shell = { to = "authority", protocol = "tcp", port = 22, from = "operators", networks = sort(var.operators) }
  }
  # A rule without networks would mean "everybody" to some providers, so it does not exist.
  firewall = { for name, rule in local.firewall_all : name => rule if length(rule.networks) > 0 }
}
