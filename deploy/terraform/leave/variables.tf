variable "nodes" {
  description = "Names of the nodes, which stand in their certificates."
  type        = set(string)
}

variable "regions" {
  description = "Names of the regions."
  type        = set(string)
}

variable "endpoints" {
  description = "Where operators reach nodes, as HOST:PORT. Any node that stays is enough."
  type        = list(string)
}

variable "operator" {
  description = "Paths on the machine that runs Terraform: the program rhumb, and the identity of an operator. Null leaves removals to people."
  type        = object({ rhumb = string, ca = string, cert = string, key = string })
  default     = null
}
