output "nodes" {
  description = "The nodes by name: region, ordinal, place, location, zone, instance, disk_gib, memory. It does not depend on addresses, so layers may create addresses for its keys."
  value       = local.nodes
}

output "regions" {
  description = "The regions by name: ordinal, place and zones. It does not depend on addresses."
  value       = { for name, r in var.regions : name => { ordinal = r.ordinal, place = coalesce(r.place, name), zones = r.zones } }
}

output "order" {
  description = "Regions in the order of their ordinals."
  value       = local.order
}

output "founder" {
  description = "The node that creates the cluster."
  value       = local.founder
}

output "joins" {
  description = "Names of the nodes that each node joins, without addresses."
  value       = local.joins
}

output "seeds" {
  description = "What each node joins, as HOST:PORT, and extra_seeds."
  value       = local.seeds
}

output "endpoints" {
  description = "Where clients reach each node, as HOST:PORT: the value of --addr, or of `rhumb context add --addr`."
  value       = local.endpoints
}

output "voters" {
  description = "Number of voters of the metadata that the cluster chooses, and how many regions may fail before they lose their majority."
  value       = { count = local.voters, regions_may_fail = local.regions_may_fail }
}

output "ports" {
  description = "The ports of every node and of the authority."
  value       = var.ports
}

output "firewall" {
  description = "Who may reach which port: to (node or authority), protocol, port, from (peers, clients or operators) and networks by node or by themselves."
  value       = local.firewall
}

output "config" {
  description = "/etc/rhumb/rhumb.yaml of each node. It contains no secret."
  value       = local.config
}

output "cloud_init" {
  description = "Cloud-init user data of each node. It contains the tokens that were given, so it is sensitive."
  value       = local.cloud_init
  sensitive   = true
}

output "tokens_needed" {
  description = "Nodes that need a token: create is the command that creates it at the authority, install the one that takes it on the host."
  value       = local.tokens_needed
}
