package provider

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider/command"
	"github.com/berthrun/berth/internal/errs"
)

// List finds containers by the label of the cluster, running or not.
func (e *CLI) List(ctx context.Context, cluster string) ([]Node, error) {
	filter := "label=" + plan.LabelCluster
	if cluster != "" {
		filter += "=" + cluster
	}
	return e.nodes(ctx, filter)
}

// nodes are the containers that a filter of `ps` finds, sorted by name.
func (e *CLI) nodes(ctx context.Context, filter string) ([]Node, error) {
	ids, err := e.ids(ctx, filter)
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	all, err := e.inspect(ctx, ids...)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

func (e *CLI) ids(ctx context.Context, filter string) ([]string, error) {
	ids, err := command.Words(ctx, e.run, "ps", "-aq", "--no-trunc", "--filter", filter)
	if err != nil {
		return nil, fmt.Errorf("cannot list containers of %s: %w", e.name, err)
	}
	return ids, nil
}

// inspect reads containers. One that is gone meanwhile is left out.
func (e *CLI) inspect(ctx context.Context, names ...string) ([]Node, error) {
	out, err := command.Output(ctx, e.run, append([]string{"container", "inspect"}, names...)...)
	if errs.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("cannot read containers of %s: %w", e.name, err)
	}
	all, unread := readContainers(out)
	if err == nil || unread != nil || len(all) > 0 || len(names) < 2 {
		return all, unread
	}
	// nerdctl reports none if one is gone.
	for _, name := range names {
		one, err := e.inspect(ctx, name)
		if err != nil {
			return nil, err
		}
		all = append(all, one...)
	}
	return all, nil
}

// Start starts containers, and waits for systemd of those that are nodes.
func (e *CLI) Start(ctx context.Context, names ...string) error {
	if len(names) == 0 {
		return nil
	}
	if _, err := command.Output(ctx, e.run, append([]string{"start"}, names...)...); err != nil {
		return fmt.Errorf("cannot start %s: %w", strings.Join(names, ", "), err)
	}
	started, err := e.inspect(ctx, names...)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, node := range started {
		if role := node.Labels[plan.LabelRole]; role == config.BalancerRole || role == plan.RegistryRole {
			continue // they have no systemd
		}
		group.Go(func() error {
			if err := e.ready(ctx, node.Name, node.started, DefaultWait); err != nil {
				return fmt.Errorf("cannot start %s: %w", node.Name, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// stopSeconds is how long systemd may take to end everything in a node.
const stopSeconds = "30"

// Stop stops containers.
func (e *CLI) Stop(ctx context.Context, names ...string) error {
	if len(names) == 0 {
		return nil
	}
	if _, err := command.Output(ctx, e.run, append([]string{"stop", "-t", stopSeconds}, names...)...); err != nil {
		return fmt.Errorf("cannot stop %s: %w", strings.Join(names, ", "), err)
	}
	return nil
}

// Delete removes containers and their volumes. It tries all.
func (e *CLI) Delete(ctx context.Context, names ...string) error {
	var all []error
	existing, err := e.names(ctx)
	if err != nil {
		return err
	}
	for _, name := range names {
		if slices.Contains(existing, name) {
			all = append(all, e.remove(ctx, e.names, name))
		}
		all = append(all, e.removeVolumes(ctx, LabelNode+"="+name))
	}
	if err := errors.Join(all...); err != nil {
		return fmt.Errorf("cannot delete %s: %w", strings.Join(names, ", "), err)
	}
	return nil
}

// Release removes containers, whose volumes stay. systemd first ends the programs that write to
// them.
func (e *CLI) Release(ctx context.Context, names ...string) error {
	existing, err := e.names(ctx)
	if err != nil {
		return err
	}
	var all []error
	for _, name := range names {
		if !slices.Contains(existing, name) {
			continue
		}
		if err := e.Stop(ctx, name); err != nil {
			all = append(all, err)
			continue
		}
		all = append(all, e.remove(ctx, e.names, name))
	}
	if err := errors.Join(all...); err != nil {
		return fmt.Errorf("cannot release %s: %w", strings.Join(names, ", "), err)
	}
	return nil
}

// names are those of all containers.
func (e *CLI) names(ctx context.Context) ([]string, error) {
	names, err := command.Words(ctx, e.run, "ps", "-a", "--format", "{{.Names}}")
	if err != nil {
		return nil, fmt.Errorf("cannot list containers of %s: %w", e.name, err)
	}
	return names, nil
}

// removals is how often the removal of a container is repeated if it exists again.
const removals = 3

// remove removes the containers that list returns, until they are gone: another process may have
// removed them, nerdctl reports no failure, and containerd's restart monitor may start a container
// that is being removed, unless it was stopped.
func (e *CLI) remove(ctx context.Context, list func(context.Context) ([]string, error), containers ...string) error {
	for try := 1; ; try++ {
		var said command.Tail
		if e.restartsKilled {
			_ = e.run.Run(ctx, command.Call{Args: append([]string{"stop", "-t", "0"}, containers...)}) // the removal reports errors
		}
		err := e.run.Run(ctx, command.Call{Args: e.removal(containers...), Stderr: &said})
		if err == nil && !e.rmAlwaysExitsZero {
			return nil
		}
		all, listed := list(ctx)
		if listed != nil {
			return errors.Join(err, listed)
		}
		containers = slices.DeleteFunc(slices.Clone(containers), func(c string) bool { return !slices.Contains(all, c) })
		switch {
		case len(containers) == 0:
			return nil
		case err != nil:
			return err
		case try == removals:
			return fmt.Errorf("%s rm left %s: %s: %w", e.name, strings.Join(containers, ", "), strings.Join(said.Lines(), "; "), errs.State)
		}
	}
}

// removal is the call that removes containers, running or not.
func (e *CLI) removal(names ...string) []string {
	args := []string{"rm", "-f", "-v"}
	if e.killFrom != "" && !e.version.LessThan(version.MustParseGeneric(e.killFrom)) {
		args = append(args, e.kill...)
	}
	return append(args, names...)
}

// DeleteCluster removes all objects with the label of the cluster.
func (e *CLI) DeleteCluster(ctx context.Context, cluster string) error {
	if cluster == "" {
		return fmt.Errorf("a cluster without a name is every cluster: %w", errs.Invalid)
	}
	if err := e.purge(ctx, plan.LabelCluster+"="+cluster); err != nil {
		return fmt.Errorf("cannot delete the cluster %s: %w", cluster, err)
	}
	return nil
}

// purge removes all containers and volumes that have a label.
func (e *CLI) purge(ctx context.Context, label string) error {
	list := func(ctx context.Context) ([]string, error) { return e.ids(ctx, "label="+label) }
	ids, err := list(ctx)
	if err == nil && len(ids) > 0 {
		err = e.remove(ctx, list, ids...)
	}
	return errors.Join(err, e.removeVolumes(ctx, label))
}

func (e *CLI) removeVolumes(ctx context.Context, label string) error {
	volumes, err := command.Words(ctx, e.run, "volume", "ls", "-q", "--filter", "label="+label)
	if err != nil {
		return fmt.Errorf("cannot list volumes of %s: %w", e.name, err)
	}
	var all []error
	for _, volume := range volumes {
		_, err := command.Output(ctx, e.run, "volume", "rm", volume)
		all = append(all, errs.IgnoreNotFound(err))
	}
	return errors.Join(all...)
}

// Endpoint is the address of this host that leads to a TCP port of a container. The error is
// errs.NotFound if none does. Of several, it is the one that was planned for the API, because the
// API's certificate may have no other: the cluster file may map more ports to it.
func (n Node) Endpoint(port int) (netip.AddrPort, error) {
	planned, _ := netip.ParseAddrPort(n.Labels[LabelAPI]) // or none was planned
	var best netip.AddrPort
	rank := -1
	for _, p := range n.Ports {
		if p.Container != port || p.Protocol != config.TCP {
			continue
		}
		address, err := netip.ParseAddr(p.Listen)
		if err != nil || p.Host <= 0 {
			continue
		}
		at, found := netip.AddrPortFrom(address, uint16(p.Host)), 0
		// Some engines report all addresses of one family as those of the other.
		if at.Port() == planned.Port() {
			found += 2
		}
		if at.Addr() == planned.Addr() {
			found++
		}
		if found > rank {
			best, rank = at, found
		}
	}
	if rank < 0 {
		return best, fmt.Errorf("no port of the host leads to port %d of %s: %w", port, n.Name, errs.NotFound)
	}
	return best, nil
}

// readContainers reads `container inspect` of any engine.
func readContainers(text []byte) ([]Node, error) {
	var raw []inspectedContainer
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, nil
	}
	if err := json.Unmarshal(text, &raw); err != nil {
		return nil, fmt.Errorf("the engine's report of containers is not a JSON list: %w", err)
	}
	var all []Node
	for _, r := range raw {
		n := Node{
			Name: strings.TrimPrefix(r.Name, "/"), ID: r.ID, Image: r.ImageName, Labels: r.Config.Labels,
			State: r.State.Status, Running: r.State.Running, ExitCode: r.State.ExitCode, started: r.State.StartedAt,
		}
		if n.Image == "" {
			n.Image = r.Config.Image
		}
		n.address(r)
		// A stopped container of docker has its ports in HostConfig only.
		for _, ports := range []json.RawMessage{r.NetworkSettings.Ports, r.HostConfig.PortBindings} {
			if len(n.Ports) == 0 {
				n.Ports = readPorts(ports)
			}
		}
		if len(n.Ports) == 0 && !n.Running {
			// nerdctl reports no ports of a stopped container.
			n.Ports = plannedPorts(n.Labels)
		}
		all = append(all, n)
	}
	return all, nil
}

// plannedPorts are the ports of LabelAPI and LabelRegistry.
func plannedPorts(labels map[string]string) []plan.Port {
	var all []plan.Port
	for label, container := range map[string]int{LabelAPI: plan.APIPort, LabelRegistry: plan.RegistryPort} {
		if at, err := netip.ParseAddrPort(labels[label]); err == nil && at.Port() > 0 {
			all = append(all, plan.Port{Listen: at.Addr().String(), Host: int(at.Port()), Container: container, Protocol: config.TCP})
		}
	}
	return all
}

type inspectedContainer struct {
	ID, Name, ImageName string
	Config              struct {
		Image  string
		Labels map[string]string
	}
	State struct {
		Status    string
		Running   bool
		ExitCode  int
		StartedAt string
	}
	HostConfig      struct{ PortBindings json.RawMessage }
	NetworkSettings struct {
		Ports    json.RawMessage
		Networks map[string]struct{ IPAddress, GlobalIPv6Address string }
		// Before networks had names.
		IPAddress, GlobalIPv6Address string
	}
}

// address finds the addresses that a container has, or those it will have.
func (n *Node) address(r inspectedContainer) {
	texts := []string{r.NetworkSettings.IPAddress, r.NetworkSettings.GlobalIPv6Address}
	for _, network := range r.NetworkSettings.Networks {
		texts = append(texts, network.IPAddress, network.GlobalIPv6Address)
	}
	found := labelled(r.Config.Labels)
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil {
			found = append(found, a)
		}
	}
	for _, a := range found {
		switch {
		case a.Is4() && !n.IPv4.IsValid():
			n.IPv4 = a
		case a.Is6() && !n.IPv6.IsValid():
			n.IPv6 = a
		}
	}
}

// readPorts reads ports: a map by "6443/tcp", or the list of podman before 2.0. Some
// versions have numbers where others have strings.
func readPorts(text json.RawMessage) []plan.Port {
	type binding struct {
		HostIP        string `json:"HostIp"`
		HostPort      any
		ContainerPort int
		Protocol      string
	}
	var all []plan.Port
	add := func(container int, protocol string, b binding) {
		host, err := strconv.Atoi(strings.TrimSuffix(fmt.Sprint(b.HostPort), ".0"))
		if err != nil || host <= 0 || host > math.MaxUint16 || container <= 0 || container > math.MaxUint16 {
			return // docker picks a port 0 when the container starts; others are none
		}
		listen := b.HostIP
		if listen == "" {
			listen = "0.0.0.0"
		}
		all = append(all, plan.Port{Listen: listen, Host: host, Container: container, Protocol: config.Protocol(strings.ToUpper(protocol))})
	}
	var byPort map[string][]binding
	var list []binding
	switch {
	case json.Unmarshal(text, &byPort) == nil:
		for key, bindings := range byPort {
			number, protocol, _ := strings.Cut(key, "/")
			container, err := strconv.Atoi(number)
			if err != nil {
				continue
			}
			if protocol == "" {
				protocol = "tcp"
			}
			for _, b := range bindings {
				add(container, protocol, b)
			}
		}
	case json.Unmarshal(text, &list) == nil:
		for _, b := range list {
			add(b.ContainerPort, b.Protocol, b)
		}
	}
	slices.SortFunc(all, func(a, b plan.Port) int {
		if a.Container != b.Container {
			return a.Container - b.Container
		}
		return strings.Compare(string(a.Protocol)+a.Listen, string(b.Protocol)+b.Listen)
	})
	return all
}
