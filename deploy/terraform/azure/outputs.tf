output "founder" {
  description = "The node that creates the cluster."
  value       = module.core.founder
}

output "endpoints" {
  description = "Where clients reach each node."
  value       = module.core.endpoints
}

output "tokens_needed" {
  description = "Nodes that need a token, with the commands that create and install it."
  value       = module.core.tokens_needed
}

output "firewall" {
  description = "The rules, of which those to the authority are for the host that runs it."
  value       = module.core.firewall
}
