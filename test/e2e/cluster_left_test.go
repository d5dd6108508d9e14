//go:build e2e

package e2e

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/require"
)

// nothingLeft: of the cluster, with the engine, in the host's network and in the kubeconfig.
func (h *clusterHost) nothingLeft(name string) {
	h.t.Helper()
	if h.nodes != "" {
		if left, err := os.ReadDir(h.nodes); err != nil || len(left) > 0 {
			h.t.Errorf("left of nodes: %v, %v", left, err)
		}
	} else {
		h.nothingWithEngine()
	}
	if h.namespace != "" {
		h.noWayLeft()
	}
	if text, err := os.ReadFile(h.kubeconfig); err != nil || strings.Contains(string(text), name) {
		h.t.Errorf("the kubeconfig has %s, %v", text, err)
	}
}

// nothingWithEngine: it has no containers, no volumes and no network of clusters.
func (h *clusterHost) nothingWithEngine() {
	h.t.Helper()
	// It stays, as kind has it, but for one that a create that failed has made.
	if out, err := h.try(nil, h.engine, "network", "rm", "kind"); err != nil && !strings.Contains(out, "not found") && !strings.Contains(out, "o such network") && !strings.Contains(out, "no network") {
		h.t.Errorf("the network cannot be removed: %v: %s", err, out)
	}
	for _, args := range [][]string{{"ps", "-aq"}, {"volume", "ls", "-q"}, {"network", "ls", "-q", "--filter", "name=kind"}} {
		if left := h.run(append([]string{h.engine}, args...)...); left != "" {
			h.t.Errorf("%s %s: %s", h.engine, args[0], left)
		}
	}
}

// noWayLeft: the network that the engine has for itself is as it was before.
func (h *clusterHost) noWayLeft() {
	h.t.Helper()
	// The kernel takes links away some time after their namespace. nerdctl leaves all of them to
	// it, and a namespace stays while a connection of it has words for a node that is gone.
	within, begun := 10*time.Second, time.Now()
	if h.engine == "nerdctl" {
		within = 5 * time.Minute
	}
	var left []string
	for deadline := begun.Add(require.Patience(within)); ; time.Sleep(50 * time.Millisecond) {
		left = slices.DeleteFunc(h.ways(), func(way string) bool { return slices.Contains(h.before, way) || h.stays(way) })
		if len(left) == 0 || time.Now().After(deadline) {
			break
		}
	}
	if len(left) > 0 {
		h.t.Errorf("left in the host's network:\n%s", strings.Join(left, "\n"))
		return
	}
	h.t.Logf("the network is as before after %s", time.Since(begun).Round(100*time.Millisecond))
}

var (
	// counted is what a rule says of the packets that it has seen.
	counted = regexp.MustCompile(`counter packets \d+ bytes \d+ ?`)
	// leads is a rule that names an address or a port.
	leads = regexp.MustCompile(`\d+\.\d+\.\d+\.\d+|[0-9a-f]+::|dport`)
)

// ways are the links, routes and rules of the network that the engine is in.
func (h *clusterHost) ways() []string {
	h.t.Helper()
	var all []string
	for line := range strings.Lines(h.run("ip", "-brief", "link")) {
		name, _, _ := strings.Cut(strings.Fields(line)[0], "@")
		all = append(all, "link "+name)
	}
	for _, family := range []string{"-4", "-6"} {
		for line := range strings.Lines(h.run("ip", family, "route")) {
			all = append(all, "route "+strings.TrimSpace(line))
		}
	}
	for line := range strings.Lines(h.run("nft", "list", "ruleset")) {
		if leads.MatchString(line) {
			all = append(all, "rule "+strings.TrimSpace(counted.ReplaceAllString(line, "")))
		}
	}
	return all
}

// stays tells of what an engine leaves of any container: nerdctl rules that masquerade IPv6, since it
// removes those of IPv4 alone, and berth the bridge that all its pods share.
func (h *clusterHost) stays(way string) bool {
	switch h.engine {
	case "nerdctl":
		return strings.HasPrefix(way, "rule ip6 ")
	case "berth":
		return strings.Contains(way, " br-")
	}
	return false
}
