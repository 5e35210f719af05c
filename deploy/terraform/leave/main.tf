# What has to happen in the cluster before a host or a region goes. The objects do nothing when they are created. When they are
# destroyed, because a node or a region is not in the variable any more, they move everything away and remove the node. A layer makes
# this module depend on its hosts, so that Terraform destroys the hosts afterwards, and not at all if this fails.
#
# Destroy-time steps see their own object only, so the objects hold what the steps need: paths and names, no secret.

locals {
  tools = var.operator == null ? {} : {
    RHUMB     = var.operator.rhumb
    CA        = var.operator.ca
    CERT      = var.operator.cert
    KEY       = var.operator.key
    ENDPOINTS = join(",", var.endpoints)
    SCRIPTS   = abspath("${path.module}/scripts")
  }
}

resource "terraform_data" "node" {
  for_each = { for name in var.nodes : name => name if var.operator != null }
  input    = merge(local.tools, { NODE = each.key })
  provisioner "local-exec" {
    when        = destroy
    command     = "\"$SCRIPTS/node.sh\""
    environment = self.input
    quiet       = true
  }
}

# Regions depend on nodes, so a region leaves before its nodes do: the nodes of a region that is removed cannot leave one by one,
# because the last ones hold copies that no other node of the region could take.
resource "terraform_data" "region" {
  for_each   = { for name in var.regions : name => name if var.operator != null }
  depends_on = [terraform_data.node]
  input      = merge(local.tools, { REGION = each.key })
  provisioner "local-exec" {
    when        = destroy
    command     = "\"$SCRIPTS/region.sh\""
    environment = self.input
    quiet       = true
  }
}
