# The regions, tables and rights of a team. Hosts and nodes are made by
# deploy/terraform; this configuration is applied afterwards, from anywhere
# that reaches a node.

terraform {
  required_version = ">= 1.11"
  required_providers {
    rhumb = {
      source = "rhumbdb/rhumb"
    }
  }
}

# Addresses and identity come from the context, as for the command line:
# rhumb context add prod --addr ... --ca ... --cert ... --key ...
provider "rhumb" {
  context = var.context
}

variable "context" {
  description = "Name of a context of the command line."
  type        = string
  default     = "prod"
}

variable "reporting_password" {
  description = "Password of the user that writes reports."
  type        = string
  sensitive   = true
  ephemeral   = true
}

variable "regions" {
  description = "Regions by name. Well-known ones need no location."
  type        = map(object({ latitude = optional(number), longitude = optional(number) }))
  default = {
    frankfurt = {}
    bern      = { latitude = 46.95, longitude = 7.45 }
  }
}

resource "rhumb_region" "all" {
  for_each  = var.regions
  name      = each.key
  latitude  = each.value.latitude
  longitude = each.value.longitude
}

resource "rhumb_table" "flights" {
  name        = "flights"
  colocate    = "/"
  history     = "24h"
  snapshot    = ["spatial", "ordered"]
  replicas    = 3
  min_in_sync = 2
}

resource "rhumb_role" "reporting" {
  name = "reporting"
}

resource "rhumb_grant" "flights" {
  role   = rhumb_role.reporting.name
  table  = rhumb_table.flights.name
  rights = ["read", "watch"]
}

resource "rhumb_grant" "reports" {
  role   = rhumb_role.reporting.name
  table  = rhumb_table.flights.name
  prefix = "report/"
  rights = ["read", "write", "delete"]
}

resource "rhumb_user" "reporting" {
  name                = "reporting"
  roles               = [rhumb_role.reporting.name]
  password_wo         = var.reporting_password
  password_wo_version = 1
}

data "rhumb_nodes" "all" {}

output "nodes_not_ready" {
  description = "IDs of nodes that do not serve."
  value       = [for n in data.rhumb_nodes.all.nodes : n.id if !n.ready]
}
