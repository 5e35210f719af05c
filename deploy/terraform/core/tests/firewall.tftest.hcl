# Firewall rules are data: who may reach which port.
variables {
  regions = {
    eu = { ordinal = 1, location = { lat = 50.11, lon = 8.68 }, count = 3 }
    us = { ordinal = 2, location = { lat = 39.04, lon = -77.49 }, count = 3 }
    ap = { ordinal = 3, location = { lat = 1.29, lon = 103.85 }, count = 3 }
  }
  addresses = {
    eu-1 = { advertise = "10.77.1.1" }, eu-2 = { advertise = "10.77.1.2" }, eu-3 = { advertise = "10.77.1.3" }
    us-1 = { advertise = "10.77.2.1" }, us-2 = { advertise = "10.77.2.2" }, us-3 = { advertise = "10.77.2.3" }
    ap-1 = { advertise = "10.77.3.1" }, ap-2 = { advertise = "10.77.3.2" }, ap-3 = { advertise = "10.77.3.3" }
  }
  operators = ["192.0.2.0/24"]
  clients   = ["198.51.100.0/24", "2001:db8::/32"]
}

run "rules" {
  command = plan
  assert {
    condition     = join(" ", keys(output.firewall)) == "clients-main nodes-authority operators-admin operators-main operators-shell operators-ssh peers-gossip peers-heartbeat peers-main peers-probe"
    error_message = "there are ten rules"
  }
  assert {
    condition     = toset([for r in values(output.firewall) : r.port if r.from == "clients"]) == toset([7600])
    error_message = "clients reach the main port only"
  }
  assert {
    condition     = toset([for r in values(output.firewall) : r.port if r.from == "operators" && r.to == "node"]) == toset([22, 7600, 7603])
    error_message = "operators reach the main port, the admin port and SSH"
  }
  assert {
    condition     = toset([for r in values(output.firewall) : "${r.protocol} ${r.port}" if r.from == "peers" && r.to == "node"]) == toset(["tcp 7600", "tcp 7601", "tcp 7602", "udp 7602"])
    error_message = "peers reach main, heartbeats and gossip"
  }
  assert {
    condition     = toset([for r in values(output.firewall) : r.from if r.to == "node" && contains([7601, 7602], r.port)]) == toset(["peers"])
    error_message = "heartbeats and gossip are for peers only"
  }
  assert {
    condition     = output.firewall["peers-probe"].protocol == "udp"
    error_message = "gossip probes by UDP"
  }
  assert {
    condition     = output.firewall["nodes-authority"].to == "authority" && output.firewall["nodes-authority"].port == 7605
    error_message = "nodes reach the authority"
  }
  assert {
    condition     = length(output.firewall["peers-main"].networks) == 9 && output.firewall["peers-main"].networks["ap-3"] == "10.77.3.3/32"
    error_message = "every node is a source of its own"
  }
  assert {
    condition     = join(" ", values(output.firewall["clients-main"].networks)) == "198.51.100.0/24 2001:db8::/32"
    error_message = "clients may be IPv6 networks"
  }
  assert {
    condition     = !anytrue([for r in values(output.firewall) : anytrue([for n in values(r.networks) : endswith(n, "/0")])])
    error_message = "no rule admits everybody"
  }
}

run "nobody_by_default" {
  command = plan
  variables {
    clients   = []
    operators = []
  }
  assert {
    condition     = alltrue([for r in values(output.firewall) : r.from == "peers"])
    error_message = "without networks there is no rule for clients or operators"
  }
  assert {
    condition     = alltrue([for r in values(output.firewall) : length(r.networks) > 0])
    error_message = "no rule is empty"
  }
}
