output "founder" {
  description = "The node that creates the cluster."
  value       = module.core.founder
}

output "endpoints" {
  description = "Where clients reach each node."
  value       = module.core.endpoints
}

output "tokens_needed" {
  description = "Nodes that need a token, with the command that creates it."
  value       = module.core.tokens_needed
}

output "firewall" {
  description = "The rules, of which those to the authority are for the host that runs it."
  value       = module.core.firewall
}
