//go:build linux

// Command hostctl brings up hosts as network namespaces on this machine, runs commands on them and removes them. Package
// deploy/hosts describes a host; deploy/hosts/README.md has examples.
//
// The command is a thin layer over the package: each subcommand opens the fleet, calls one method
// and prints the result. Scripts and the local layer of Terraform use it; tests in Go call the
// package.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb/deploy/hosts"
)

func main() {
	// Hosts run this program under other names and with other arguments, which cobra must not see.
	hosts.TakeRole()
	root := &cobra.Command{
		Use:           "hostctl",
		Short:         "Bring up hosts as network namespaces on this machine",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	c := &cli{}
	// The variable serves scripts, which would otherwise repeat the flag in every line.
	state := os.Getenv("RHUMB_HOSTS")
	if state == "" {
		state = "/var/lib/rhumb-hosts"
	}
	root.PersistentFlags().StringVar(&c.state, "state", state, "state directory of the fleet; also from RHUMB_HOSTS")
	root.AddCommand(c.up(), c.add(), c.remove(), c.destroy(), c.list(), c.exec(), c.copy(), c.systemctl(), c.install(), c.firewall(),
		c.power("start", "Start a host that is down, with its enabled units", (*hosts.Host).Start),
		c.power("stop", "Stop the units of a host and then the host", (*hosts.Host).Stop),
		c.power("kill", "End all processes of a host at once, as a power cut does", (*hosts.Host).Kill))
	err := root.Execute()
	// The exit code of a command on a host becomes that of hostctl, without a message: the command has written its own.
	var code *exec.ExitError
	if errors.As(err, &code) {
		os.Exit(code.ExitCode())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "hostctl:", err)
		os.Exit(1)
	}
}

// cli holds the flags of all commands.
//
// Every command opens the fleet from its directory, so the program has no daemon, and hosts survive
// the end of the command that started them.
type cli struct{ state string }

// with opens the fleet for f. Commands that take long or only read release the lock before they run.
func (c *cli) with(f func(fleet *hosts.Fleet) error) error {
	fleet, release, err := hosts.Open(c.state)
	if err != nil {
		return err
	}
	defer release()
	return f(fleet)
}

// host returns a host and has released the lock.
//
// A command on a host may run for hours, and other commands must be able to use the fleet
// meanwhile.
func (c *cli) host(name string) (h *hosts.Host, err error) {
	err = c.with(func(fleet *hosts.Fleet) error {
		h, err = fleet.Host(name)
		return err
	})
	return h, err
}

// up brings up a fleet.
func (c *cli) up() *cobra.Command {
	var regions, others []string
	var nodes int
	var network string
	cmd := &cobra.Command{
		Use:   "up [--regions eu,us,ap] [--nodes 3] [--others NAME,...] [--network 10.77.0.0/16]",
		Short: "Bring up the hosts REGION-1 to REGION-N of each region; those that are up stay up",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// The zero prefix lets the fleet choose.
			var prefix netip.Prefix
			if network != "" {
				var err error
				if prefix, err = netip.ParsePrefix(network); err != nil {
					return err
				}
			}
			var specs []hosts.Spec
			// The names of the nodes are those that operators use in examples: eu-1, eu-2, us-1.
			for _, region := range regions {
				for n := 1; n <= nodes; n++ {
					specs = append(specs, hosts.Spec{Name: fmt.Sprintf("%s-%d", region, n), Region: region})
				}
			}
			for _, name := range others {
				specs = append(specs, hosts.Spec{Name: name})
			}
			// The lock is held until all hosts are up: a second call waits and then finds nothing to do.
			return c.with(func(fleet *hosts.Fleet) error {
				if err := fleet.Up(prefix, specs...); err != nil {
					return err
				}
				return printHosts(cmd.OutOrStdout(), fleet, "table")
			})
		},
	}
	cmd.Flags().StringSliceVar(&regions, "regions", nil, "regions")
	cmd.Flags().IntVar(&nodes, "nodes", 3, "hosts of each region")
	cmd.Flags().StringSliceVar(&others, "others", nil, "hosts in no region, such as authority and laptop")
	cmd.Flags().StringVar(&network, "network", "", "network of the fleet (default: the first free one from 10.77.0.0/16)")
	return cmd
}

// add adds one host, for callers that manage hosts one by one.
func (c *cli) add() *cobra.Command {
	var region, address string
	cmd := &cobra.Command{
		Use:   "add HOST [--region REGION] [--address ADDRESS]",
		Short: "Add a host to the fleet and start it",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.with(func(fleet *hosts.Fleet) error {
				spec := hosts.Spec{Name: args[0], Region: region}
				if address == "" {
					if err := fleet.Up(netip.Prefix{}, spec); err != nil {
						return err
					}
					return printHosts(cmd.OutOrStdout(), fleet, "table")
				}
				addr, err := netip.ParseAddr(address)
				if err != nil {
					return err
				}
				if err := fleet.AddAt(spec, addr); err != nil {
					return err
				}
				return printHosts(cmd.OutOrStdout(), fleet, "table")
			})
		},
	}
	cmd.Flags().StringVar(&region, "region", "", "region of the host")
	cmd.Flags().StringVar(&address, "address", "", "address of the host within the network of the fleet (default: the next free one)")
	return cmd
}

// remove removes one host.
func (c *cli) remove() *cobra.Command {
	return &cobra.Command{
		Use:   "rm HOST",
		Short: "End a host and remove its files",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return c.with(func(fleet *hosts.Fleet) error { return fleet.Remove(args[0]) })
		},
	}
}

// destroy removes the fleet.
func (c *cli) destroy() *cobra.Command {
	return &cobra.Command{
		Use:   "destroy",
		Short: "End all hosts of the fleet and remove its networks, mounts and files",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return c.with((*hosts.Fleet).Destroy)
		},
	}
}

// list prints the hosts.
func (c *cli) list() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:     "list [-o json]",
		Aliases: []string{"ls"},
		Short:   "List the hosts of the fleet",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.with(func(fleet *hosts.Fleet) error { return printHosts(cmd.OutOrStdout(), fleet, format) })
		},
	}
	cmd.Flags().StringVarP(&format, "output", "o", "table", "table or json")
	return cmd
}

// printHosts lists the hosts of a fleet.
func printHosts(w io.Writer, fleet *hosts.Fleet, format string) error {
	// Field names are part of the interface.
	type row struct {
		Name    string `json:"name"`
		Region  string `json:"region"`
		Address string `json:"address"`
		Up      bool   `json:"up"`
	}
	// Never null in JSON.
	rows := []row{}
	for _, h := range fleet.Hosts() {
		rows = append(rows, row{Name: h.Name(), Region: h.Region(), Address: h.Address().String(), Up: h.Up()})
	}
	// Both formats list the hosts in the order in which they were added.
	switch format {
	case "json":
		return json.NewEncoder(w).Encode(rows)
	case "table":
		t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
		fmt.Fprintln(t, "HOST\tREGION\tADDRESS\tSTATE")
		for _, r := range rows {
			state := "down"
			if r.Up {
				state = "up"
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", r.Name, r.Region, r.Address, state)
		}
		return t.Flush()
	}
	return fmt.Errorf("-o %s: want table or json", format)
}

// power returns a command that changes whether a host runs.
func (c *cli) power(verb, short string, act func(*hosts.Host) error) *cobra.Command {
	return &cobra.Command{
		Use:   verb + " HOST",
		Short: short,
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return c.with(func(fleet *hosts.Fleet) error {
				h, err := fleet.Host(args[0])
				if err != nil {
					return err
				}
				return act(h)
			})
		},
	}
}

// exec runs a command. It holds no lock while the command runs.
func (c *cli) exec() *cobra.Command {
	return &cobra.Command{
		Use:     "exec HOST -- COMMAND [ARG]...",
		Short:   "Run a command on a host as root; its exit code is that of hostctl",
		Example: "  hostctl exec eu-1 -- rhumb status",
		Args:    cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.run(cmd.Context(), args[0], args[1:]...)
		},
	}
}

// run runs a command on a host, with the standard streams of this process.
func (c *cli) run(ctx context.Context, name string, args ...string) error {
	h, err := c.host(name)
	if err != nil {
		return err
	}
	// cobra passes a nil context unless Execute had one.
	if ctx == nil {
		ctx = context.Background()
	}
	// Streams are passed on as they are, so that pipes and terminals work on hosts.
	command := h.Command(ctx, args[0], args[1:]...)
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	return command.Run()
}

// systemctl is short for exec HOST -- systemctl.
func (c *cli) systemctl() *cobra.Command {
	return &cobra.Command{
		Use:                "systemctl HOST start|stop|restart|reload|status|enable|... [UNIT]",
		Short:              "Run the host's systemctl: a stand-in for systemd's that runs units of services",
		Args:               cobra.MinimumNArgs(2),
		DisableFlagParsing: true, // flags are the host's
		RunE: func(cmd *cobra.Command, args []string) error {
			// Flags are not parsed, because all after the host are those of systemctl. Only this one may come first.
			if len(args) > 2 && args[0] == "--state" {
				c.state, args = args[1], args[2:]
			}
			return c.run(cmd.Context(), args[0], append([]string{"systemctl"}, args[1:]...)...)
		},
	}
}

// copy copies files in either direction.
func (c *cli) copy() *cobra.Command {
	return &cobra.Command{
		Use:     "cp FROM... TO",
		Short:   "Copy files between this machine and a host; HOST:PATH names a file of a host",
		Example: "  hostctl cp bin/rhumb eu-1:/usr/bin/\n  hostctl cp eu-1:/var/lib/rhumb/identity/ca.crt .",
		Args:    cobra.MinimumNArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			// Like cp, the last argument is the target of all others.
			to := args[len(args)-1]
			for _, from := range args[:len(args)-1] {
				if err := c.copyOne(from, to); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// copyOne copies one file or folder.
func (c *cli) copyOne(from, to string) error {
	if name, file, remote := strings.Cut(from, ":"); remote {
		h, err := c.host(name)
		if err != nil {
			return err
		}
		return h.CopyOut(file, to)
	}
	// A colon separates host and path, so that the syntax is that of scp.
	name, file, remote := strings.Cut(to, ":")
	if !remote {
		return fmt.Errorf("cp %s %s: neither is on a host; write HOST:PATH", from, to)
	}
	h, err := c.host(name)
	if err != nil {
		return err
	}
	return h.CopyIn(from, file)
}

// install installs a program and units without the package.
func (c *cli) install() *cobra.Command {
	var binary string
	var units []string
	cmd := &cobra.Command{
		Use:     "install HOST --binary FILE [--unit FILE]...",
		Short:   "Put a program into /usr/bin and units into /etc/systemd/system, and add the users of the units",
		Example: "  hostctl install eu-1 --binary bin/rhumb --unit deploy/systemd/rhumb.service",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			h, err := c.host(args[0])
			if err != nil {
				return err
			}
			return h.Install(cmd.Context(), binary, units)
		},
	}
	cmd.Flags().StringVar(&binary, "binary", "", "program, named rhumb on the host")
	cmd.Flags().StringSliceVar(&units, "unit", nil, "file of a unit")
	return cmd
}

// firewall applies rules, such as the output of the core module for Terraform.
func (c *cli) firewall() *cobra.Command {
	var file string
	var off bool
	cmd := &cobra.Command{
		Use:   "firewall HOST --rules FILE | --off",
		Short: "Replace the firewall of a host by rules in JSON; what no rule admits is dropped",
		Long: `Replace the firewall of a host by rules. FILE, or the standard input for "-", contains a JSON list of objects:

  [{"name": "clients", "protocol": "tcp", "ports": [7600], "sources": ["10.77.0.0/16"]}]

What no rule admits is dropped, except answers, pings and traffic of the host with itself.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			h, err := c.host(args[0])
			if err != nil {
				return err
			}
			// Without a table in the kernel, all traffic passes.
			if off {
				return h.NoFirewall()
			}
			rules, err := readRules(cmd.InOrStdin(), file)
			if err != nil {
				return err
			}
			return h.Firewall(rules)
		},
	}
	cmd.Flags().StringVar(&file, "rules", "", "file of rules")
	cmd.Flags().BoolVar(&off, "off", false, "remove the firewall")
	cmd.MarkFlagsOneRequired("rules", "off")
	cmd.MarkFlagsMutuallyExclusive("rules", "off")
	return cmd
}

// readRules reads rules and rejects fields that it does not know, which could be restrictions.
func readRules(in io.Reader, file string) (rules []hosts.Rule, err error) {
	if file != "-" {
		f, err := os.Open(path.Clean(file))
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	// A misspelt field would otherwise admit more than its author wanted.
	d := json.NewDecoder(in)
	d.DisallowUnknownFields()
	if err := d.Decode(&rules); err != nil {
		return nil, fmt.Errorf("rules of the firewall: %w", err)
	}
	return rules, nil
}
