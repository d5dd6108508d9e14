package provider

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/berthrun/berth/internal/cluster/provider/command"
	"github.com/berthrun/berth/internal/errs"
)

// attempts is how many subnets are tried before a network is given up.
const attempts = 5

// EnsureNetwork finds the network, or creates one: with IPv6 if the engine and the host support it.
func (e *CLI) EnsureNetwork(ctx context.Context, name string) (Network, error) {
	network, err := e.network(ctx, name)
	if !errors.Is(err, errs.NotFound) {
		return network, err
	}
	made, err := e.makeNetwork(ctx, name)
	if err != nil {
		return Network{}, fmt.Errorf("cannot make the network %s with %s: %w", name, e.name, err)
	}
	// Another process may have created a network of the name at the same time.
	network, err = e.network(ctx, name)
	network.Made = made && err == nil
	return network, err
}

// network reads a network; of several of one name, which older dockers allow, it keeps
// the one with most containers.
func (e *CLI) network(ctx context.Context, name string) (Network, error) {
	if e.namesakes {
		if err := e.removeNamesakes(ctx, name); err != nil {
			return Network{}, err
		}
	}
	out, err := command.Output(ctx, e.run, "network", "inspect", name)
	if err != nil {
		return Network{}, fmt.Errorf("cannot read the network %s: %w", name, err)
	}
	all, err := readNetworks(out)
	switch {
	case err != nil:
		return Network{}, fmt.Errorf("failed to get subnets of the network %s: %w", name, err)
	case len(all) == 0:
		return Network{}, fmt.Errorf("the network %s: %w", name, errs.NotFound)
	case len(all[0].subnets) == 0:
		return Network{}, fmt.Errorf("failed to get subnets: the network %s has none; is it one of another driver than bridge?: %w", name, errs.State)
	}
	n := e.describe(name, all[0])
	if n.StableV6 && e.declares6 {
		n.StableV6 = e.declared6(ctx, name)
	}
	return n, nil
}

// declared6 reports whether a network's CNI configuration lets containers choose their IPv6
// addresses. Where it does not, --ip6 is taken and has no effect.
func (e *CLI) declared6(ctx context.Context, name string) bool {
	out, err := command.Output(ctx, e.run, "network", "inspect", "--mode=native", name)
	if err != nil {
		return false
	}
	var networks []struct {
		CNI struct {
			Plugins []struct {
				Type         string          `json:"type"`
				Capabilities map[string]bool `json:"capabilities"`
			} `json:"plugins"`
		}
	}
	if json.Unmarshal(out, &networks) != nil || len(networks) != 1 {
		return false
	}
	for _, plugin := range networks[0].CNI.Plugins {
		if plugin.Type == "bridge" {
			return plugin.Capabilities["ips"]
		}
	}
	return false
}

// describe says which addresses may be chosen. An engine that demands a user-defined IPv4 subnet
// shows that only when it refuses an address; kind's network has no such subnet, and neither has one
// that berth created where every subnet that it knows is taken.
func (e *CLI) describe(name string, read inspectedNetwork) Network {
	n := Network{Name: name, Subnets: read.subnets}
	if e.stableFrom != "" && e.version.LessThan(version.MustParseGeneric(e.stableFrom)) {
		return n
	}
	for _, subnet := range read.subnets {
		if subnet.Addr().Is4() {
			n.StableV4 = !e.subnet4 || read.labels[LabelNetwork] == "true" && read.labels[LabelPool] != "true"
		} else {
			n.StableV6 = e.stable6
		}
	}
	return n
}

// makeNetwork tries subnets until one is free. A network gets the IPv6 subnet that kind gives to
// its name. made is false if another process has created the network at the same time.
func (e *CLI) makeNetwork(ctx context.Context, name string) (made bool, err error) {
	flags := append([]string{"network", "create", "-d=bridge", "--label", LabelNetwork + "=true"}, e.networkFlags...)
	if mtu := e.ownMTU(ctx); mtu > 0 {
		flags = append(flags, "-o", "com.docker.network.driver.mtu="+strconv.Itoa(mtu))
	}
	ipv6, four := true, e.freeSubnets4(name)
	for try := range attempts {
		call := slices.Clone(flags)
		switch {
		// The last try leaves the choice to docker: this process may not see the routes of the engine's host.
		case e.subnet4 && try < min(len(four), attempts-1):
			call = append(call, "--subnet", four[try].String())
		case e.subnet4:
			call = append(call, "--label", LabelPool+"=true")
		}
		if ipv6 {
			call = append(call, "--ipv6", "--subnet", subnet6(name, try).String())
		}
		_, err := command.Output(ctx, e.run, append(call, name)...)
		switch {
		case err == nil, sameName(err):
			return err == nil, nil
		case ipv6 && noIPv6(err):
			ipv6 = false
			// Try again without IPv6. The IPv4 subnet was not the cause.
			if _, err = command.Output(ctx, e.run, append(call[:slices.Index(call, "--ipv6")], name)...); err == nil || sameName(err) {
				return err == nil, nil
			}
			if !overlaps(err) {
				return false, err
			}
		case !overlaps(err):
			return false, err
		}
	}
	return false, fmt.Errorf("exhausted attempts trying to find a non-overlapping subnet: %w", errs.Exhausted)
}

// sameName: another process made the network first.
func sameName(err error) bool {
	return command.Says(err, "network already exists", "network with name", "already used: network", "network name is already used")
}

// noIPv6: the tool, the engine or the kernel has no IPv6.
func noIPv6(err error) bool {
	return command.Says(err, "unknown flag: --ipv6", "is ipv6 enabled in the kernel", "Cannot read IPv6 setup for bridge",
		"iptables failed: ip6tables", "IPv6 is disabled", "ipv6 is disabled")
}

// overlaps: the subnet is taken.
func overlaps(err error) bool {
	return command.Says(err, "is already used on the host or by another config", "is being used by a network interface",
		"is already being used by a cni configuration", "Pool overlaps with other one on this address space", "networks have overlapping",
		"overlaps with other one on this address space")
}

// ownMTU is that of the engine's default network, 0 where it says none.
func (e *CLI) ownMTU(ctx context.Context) int {
	if !e.mtu {
		return 0
	}
	out, err := command.Output(ctx, e.run, "network", "inspect", "bridge", "-f", `{{ index .Options "com.docker.network.driver.mtu" }}`)
	if err != nil {
		return 0
	}
	mtu, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		return 0
	}
	return mtu
}

// removeNamesakes leaves one network of a name. Every process that finds several keeps
// the same one: that with most containers, and of those the first by ID.
func (e *CLI) removeNamesakes(ctx context.Context, name string) error {
	ids, err := command.Words(ctx, e.run, "network", "ls", "--no-trunc", "--filter", "name=^"+regexp.QuoteMeta(name)+"$", "--format", "{{.ID}}")
	if err != nil {
		return fmt.Errorf("cannot list networks of %s: %w", e.name, err)
	}
	if len(ids) < 2 {
		return nil
	}
	out, err := command.Output(ctx, e.run, append([]string{"network", "inspect"}, ids...)...)
	if err != nil && !errors.Is(err, errs.NotFound) {
		return fmt.Errorf("cannot read the networks called %s: %w", name, err)
	}
	all, err := readNetworks(out)
	if err != nil {
		return err
	}
	slices.SortFunc(all, func(a, b inspectedNetwork) int {
		if a.containers != b.containers {
			return b.containers - a.containers
		}
		return strings.Compare(a.id, b.id)
	})
	for _, extra := range all[1:] {
		if _, err := command.Output(ctx, e.run, "network", "rm", extra.id); err != nil && !errors.Is(err, errs.NotFound) {
			return fmt.Errorf("cannot remove one of %d networks called %s: %w", len(all), name, err)
		}
	}
	return nil
}

// RemoveNetwork removes a network of EnsureNetwork. Most engines refuse if a container is still on
// it.
func (e *CLI) RemoveNetwork(ctx context.Context, name string) error {
	out, err := command.Output(ctx, e.run, "network", "inspect", name)
	if err != nil {
		return errs.IgnoreNotFound(err)
	}
	all, err := readNetworks(out)
	if err != nil || len(all) == 0 || all[0].labels[LabelNetwork] != "true" {
		return err
	}
	if e.networkRmIgnoresStopped {
		if on, err := e.ids(ctx, "network="+name); err != nil || len(on) > 0 {
			return err
		}
	}
	_, err = command.Output(ctx, e.run, "network", "rm", name)
	if command.Says(err, "has active endpoints", "network is being used", "is in use by", "has associated containers") {
		return nil
	}
	if err = errs.IgnoreNotFound(err); err != nil {
		return fmt.Errorf("cannot remove the network %s: %w", name, err)
	}
	return nil
}
