variable "regions" {
  description = "The regions of the cluster; see ../core/variables.tf, which checks them. place is a region of AWS, and zones are its availability zones."
  type        = any
}

variable "replicas" {
  description = "Copies of each range that tables keep in their home region."
  type        = number
  default     = 3
}

variable "operators" {
  description = "Networks of operators, such as 192.0.2.0/24."
  type        = list(string)
  default     = []
}

variable "clients" {
  description = "Networks of clients."
  type        = list(string)
  default     = []
}

variable "package" {
  description = "Debian package of Rhumb: url and sha256. Null if the image contains Rhumb."
  type        = object({ url = string, sha256 = string })
  default     = null
}

variable "tokens" {
  description = "Tokens to put into the user data, by node. Empty to hand them over on another way."
  type        = map(string)
  default     = {}
  sensitive   = true
}

variable "founded" {
  description = "True once the cluster exists."
  type        = bool
  default     = false
}

variable "enrolled" {
  description = "Nodes that have their identity, or \"*\" for all."
  type        = set(string)
  default     = []
}

variable "instance" {
  description = "Machine type of nodes whose region names none."
  type        = string
  default     = "m7g.large"
}

variable "disk_gib" {
  description = "Size of the disk for data, of nodes whose region names none."
  type        = number
  default     = 100
}

variable "image" {
  description = "Owner and name of the machine image, and its architecture. The image needs cloud-init."
  type        = object({ owner = string, name = string, architecture = string })
  default     = { owner = "136693071363", name = "debian-12-*", architecture = "arm64" }
}

variable "public_key" {
  description = "SSH key of the operators."
  type        = string
}

variable "operator" {
  description = "Paths on the machine that runs Terraform: the program rhumb, and the identity of an operator. With it, nodes and regions that are removed from the variables leave the cluster before their machines go. Null leaves that to people."
  type        = object({ rhumb = string, ca = string, cert = string, key = string })
  default     = null
}
