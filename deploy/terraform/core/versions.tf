# Every decision about a cluster is made here and needs no provider. The layers beside this module turn the decisions into machines.
terraform {
  required_version = ">= 1.11"
}
