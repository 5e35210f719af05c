// Program terraform-provider-rhumb manages what lies inside a Rhumb cluster with Terraform:
// regions, tables, users, roles and grants. Hosts and nodes are made by deploy/terraform.
package main

import (
	"context"
	"flag"
	"log"

	"github.com/hashicorp/terraform-plugin-framework/provider"
	"github.com/hashicorp/terraform-plugin-framework/providerserver"
)

// address is the name under which configurations require the provider.
const address = "registry.terraform.io/rhumbdb/rhumb"

// version is the version of the release, set with -ldflags "-X main.version=…".
var version = "dev"

// main serves the provider to the Terraform process that started it. Terraform talks to it by gRPC
// over a local socket and ends it after each run.
func main() {
	debug := flag.Bool("debug", false, "print how Terraform can attach to this process, and wait for it")
	flag.Parse()
	err := providerserver.Serve(context.Background(), func() provider.Provider { return &rhumbProvider{} }, providerserver.ServeOpts{Address: address, Debug: *debug})
	if err != nil {
		log.Fatal(err)
	}
}
