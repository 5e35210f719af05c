# terraform_data is part of Terraform, so this module needs no provider and no network.
terraform {
  required_version = ">= 1.11"
}
