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

// nothingLeft checks that nothing of the cluster is left: in the engine, in the host's network and
// in the kubeconfig.
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
		h.noNetworkLeft()
	}
	if text, err := os.ReadFile(h.kubeconfig); err != nil || strings.Contains(string(text), name) {
		h.t.Errorf("the kubeconfig has %s, %v", text, err)
	}
}

// nothingWithEngine checks that the engine has no containers, volumes and network of clusters.
func (h *clusterHost) nothingWithEngine() {
	h.t.Helper()
	// The network stays, as with kind, except after a create that failed.
	if out, err := h.try(nil, h.engine, "network", "rm", "kind"); err != nil && !strings.Contains(out, "not found") && !strings.Contains(out, "o such network") && !strings.Contains(out, "no network") {
		h.t.Errorf("the network cannot be removed: %v: %s", err, out)
	}
	for _, args := range [][]string{{"ps", "-aq"}, {"volume", "ls", "-q"}, {"network", "ls", "-q", "--filter", "name=kind"}} {
		if left := h.run(append([]string{h.engine}, args...)...); left != "" {
			h.t.Errorf("%s %s: %s", h.engine, args[0], left)
		}
	}
}

// noNetworkLeft checks that the engine's network namespace is as it was before.
func (h *clusterHost) noNetworkLeft() {
	h.t.Helper()
	// The kernel removes links some time after their namespace. nerdctl leaves all of them to the
	// kernel, and a namespace stays while one of its connections has data for a removed node.
	within, begun := 10*time.Second, time.Now()
	if h.engine == "nerdctl" {
		within = 5 * time.Minute
	}
	var left []string
	for deadline := begun.Add(require.Patience(within)); ; time.Sleep(50 * time.Millisecond) {
		left = slices.DeleteFunc(h.networkState(), func(way string) bool { return slices.Contains(h.before, way) || h.expectedLeftover(way) })
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
	// counted matches a rule's packet counters.
	counted = regexp.MustCompile(`counter packets \d+ bytes \d+ ?`)
	// leads matches a rule that contains an address or a port.
	leads = regexp.MustCompile(`\d+\.\d+\.\d+\.\d+|[0-9a-f]+::|dport`)
)

// networkState returns the links, routes and rules of the engine's network namespace.
func (h *clusterHost) networkState() []string {
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

// expectedLeftover reports whether an engine leaves this after any container. nerdctl leaves rules
// that masquerade IPv6, because it removes only those of IPv4. berth leaves the bridge that all its
// pods share.
func (h *clusterHost) expectedLeftover(way string) bool {
	switch h.engine {
	case "nerdctl":
		return strings.HasPrefix(way, "rule ip6 ")
	case "berth":
		return strings.Contains(way, " br-")
	}
	return false
}
