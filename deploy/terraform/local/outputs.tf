output "founder" {
  description = "The node that creates the cluster."
  value       = module.core.founder
}

output "endpoints" {
  description = "Where clients reach each node."
  value       = module.core.endpoints
}

output "admin" {
  description = "Where operators reach the HTTP server of each node."
  value       = { for name, address in local.address : name => "${address}:${module.core.ports.admin}" }
}

output "context" {
  description = "The command that makes the context of the operator on this machine."
  value = join(" ", [
    "rhumb context add local --addr ${join(",", values(module.core.endpoints))}",
    "--ca ${var.operator_dir}/ca.crt --cert ${var.operator_dir}/operator.crt --key ${var.operator_dir}/operator.key",
  ])
}
