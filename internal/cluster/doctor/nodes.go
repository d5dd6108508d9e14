package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/inventory"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/finding"
)

// running reports containers that do not run.
func (d *diagnosis) running(ctx context.Context) error {
	planes := 0
	for _, n := range d.nodes {
		if inventory.Role(n) == config.ControlPlane {
			planes++
		}
		if n.Running {
			continue
		}
		evidence := fmt.Sprintf("%s is %s, status %d", n.Name, n.State, n.ExitCode)
		var log strings.Builder
		if err := d.Provider.Logs(ctx, n.Name, &log); err == nil && strings.TrimSpace(log.String()) != "" {
			evidence += "; its log ends with: " + last(log.String(), 1)
		}
		d.add(finding.Problem, n.Name, evidence, "berth cluster start "+d.name)
	}
	if planes == 0 {
		d.add(finding.Problem, d.name, "no control plane is left of "+d.name, "berth cluster delete "+d.name+", and create")
	}
	return nil
}

// ports checks that stopped containers would get their ports.
func (d *diagnosis) ports(ctx context.Context) error {
	if d.Provider.Facts().Remote {
		return d.skip("the engine is on another host")
	}
	for _, n := range d.nodes {
		if n.Running {
			continue
		}
		for _, p := range n.Ports {
			if taken(ctx, p) {
				d.add(finding.Problem, n.Name, fmt.Sprintf("%s/%s, which leads to %s, is in use by somebody else", net.JoinHostPort(p.Listen, strconv.Itoa(p.Host)), p.Protocol, n.Name),
					fmt.Sprintf("find who it is and end it: ss -lnp 'sport = :%d'", p.Host))
			}
		}
	}
	return nil
}

// taken reports whether a port of this host is in use.
func taken(ctx context.Context, p plan.Port) bool {
	var lc net.ListenConfig
	var err error
	address := net.JoinHostPort(p.Listen, strconv.Itoa(p.Host))
	if p.Protocol == config.UDP {
		var conn net.PacketConn
		if conn, err = lc.ListenPacket(ctx, "udp", address); err == nil {
			conn.Close()
		}
	} else {
		var listener net.Listener
		if listener, err = lc.Listen(ctx, "tcp", address); err == nil {
			listener.Close()
		}
	}
	return errors.Is(err, syscall.EADDRINUSE)
}

// inEach runs a command in all running nodes at once, and passes the output on in the order of
// nodes.
func (d *diagnosis) inEach(ctx context.Context, script string, report func(n provider.Node, said string)) error {
	machines := d.machines()
	answers, failed := make([]string, len(machines)), make([]error, len(machines))
	var group sync.WaitGroup
	for i, n := range machines {
		group.Go(func() { answers[i], failed[i] = d.output(ctx, n.Name, script) })
	}
	group.Wait()
	for i, n := range machines {
		report(n, answers[i])
	}
	return errors.Join(failed...)
}

// unitsScript prints the state of a node's essential units, and of failed units.
const unitsScript = `for u in berth-supervisor.service berth.service containerd.service kubelet.service; do
  systemctl cat $u >/dev/null 2>&1 || continue
  echo "unit $u $(systemctl is-active $u) $(systemctl show --property=ConditionResult --value $u)"
done
systemctl list-units --failed --plain --no-legend | while read -r u rest; do
  echo "failed $u $(journalctl --unit=$u --lines=2 --output=cat --no-pager --quiet | tr '\n' ' ')"
done`

// units checks the units of kubelet and runtime, and reports any failed unit.
func (d *diagnosis) units(ctx context.Context) error {
	return d.inEach(ctx, unitsScript, func(n provider.Node, said string) {
		failed := map[string]bool{}
		for line := range strings.Lines(said) {
			what, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
			unit, words, _ := strings.Cut(rest, " ")
			if what != "failed" {
				continue
			}
			failed[unit] = true
			level := finding.Warning
			if essential(unit) {
				level = finding.Problem
			}
			evidence := fmt.Sprintf("%s: %s has failed", n.Name, unit)
			if words = strings.TrimSpace(words); words != "" {
				evidence += "; it said: " + words
			}
			d.add(level, n.Name, evidence, fmt.Sprintf("%s exec %s journalctl -u %s shows more; systemctl restart %[3]s in it tries again", d.Provider.Name(), n.Name, unit))
		}
		for line := range strings.Lines(said) {
			words := strings.Fields(line)
			if len(words) < 3 || words[0] != "unit" || failed[words[1]] || words[2] == "active" {
				continue
			}
			if words[2] == "inactive" && len(words) > 3 && words[3] == "no" {
				// It waits for files that are written when the cluster is created.
				d.add(finding.Problem, n.Name, fmt.Sprintf("%s: %s has not been set up", n.Name, words[1]), d.again())
				continue
			}
			d.add(finding.Problem, n.Name, fmt.Sprintf("%s: %s is %s", n.Name, words[1], words[2]), fmt.Sprintf("%s exec %s systemctl start %s", d.Provider.Name(), n.Name, words[1]))
		}
	})
}

// essential reports whether pods need a unit.
func essential(unit string) bool {
	switch unit {
	case "berth-supervisor.service", "berth.service", "containerd.service", "kubelet.service":
		return true
	}
	return false
}

// again is the advice for an incomplete cluster.
func (d *diagnosis) again() string {
	return fmt.Sprintf("the creation of the cluster was interrupted: berth cluster logs --name %s DIR saves its logs, berth cluster delete %[1]s and create build it again", d.name)
}

// nodeDisks checks the free space below /var of the nodes, in KiB.
func (d *diagnosis) nodeDisks(ctx context.Context) error {
	return d.inEach(ctx, "df --output=avail,size,iavail,itotal /var | tail -n 1", func(n provider.Node, said string) {
		var numbers [4]uint64
		for i, word := range strings.Fields(said) {
			if i < len(numbers) {
				numbers[i], _ = strconv.ParseUint(word, 10, 64) // "-" is unknown: 0
			}
		}
		const fix = "make room on the disk of the engine; all nodes share it"
		if level := full(numbers[0]<<10, numbers[1]<<10, leastFree); level != finding.OK {
			d.add(level, n.Name, fmt.Sprintf("%s: /var has %d MiB of %d MiB left", n.Name, numbers[0]>>10, numbers[1]>>10), fix)
		}
		if level := full(numbers[2], numbers[3], 1000); level != finding.OK {
			d.add(level, n.Name, fmt.Sprintf("%s: /var has room for %d of %d files left", n.Name, numbers[2], numbers[3]), fix)
		}
	})
}

// names checks that nodes find each other by the engine's DNS: the API's endpoint is a name.
func (d *diagnosis) names(ctx context.Context) error {
	endpoint := ""
	for _, n := range d.nodes {
		if role := inventory.Role(n); n.Running && (role == config.BalancerRole || role == config.ControlPlane && endpoint == "") {
			endpoint = n.Name
		}
	}
	if endpoint == "" {
		return d.skip("no control plane runs")
	}
	return d.inEach(ctx, "timeout 5 getent hosts "+endpoint+" || echo none; grep ^nameserver /etc/resolv.conf", func(n provider.Node, said string) {
		if strings.HasPrefix(said, "none") {
			servers := strings.Join(strings.Fields(strings.ReplaceAll(strings.TrimPrefix(said, "none"), "nameserver", "")), ", ")
			d.add(finding.Problem, n.Name, fmt.Sprintf("%s finds no address of %s; its name servers are %s", n.Name, endpoint, servers),
				"containers of a network find each other by the engine's DNS (aardvark-dns or dnsname for podman): install it, and create the network again")
		}
	})
}
