package berth

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cluster/plan"
)

// updateHosts writes the names and addresses of a cluster's nodes, and of the registry that all
// clusters share, into the hosts file of each node, which it has as /etc/hosts. It is called when
// nodes are added, removed, or get other addresses.
func (e *Provider) updateHosts(ctx context.Context) error {
	return e.alone(ctx, func() error {
		all, err := e.records("")
		if len(all) == 0 {
			return err
		}
		// A record that cannot be read does not prevent the start of other nodes; List reports it.
		var failed []error
		for _, r := range all {
			failed = append(failed, fill(filepath.Join(e.nodeDir(r.name()), hostsName), hosts(all, r.cluster())))
		}
		return errors.Join(failed...)
	})
}

// hosts is the hosts file of a cluster's nodes. It leaves out stopped containers that are not
// nodes: others may get their addresses.
func hosts(all []*record, cluster string) []byte {
	var text bytes.Buffer
	text.WriteString("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n# The nodes of the cluster, and what clusters share. `berth cluster` keeps this file.\n")
	for _, r := range all {
		if of := r.cluster(); of != cluster && of != plan.RegistryGroup || r.Stopped && !r.isNode() {
			continue
		}
		for _, a := range r.Addresses {
			fmt.Fprintf(&text, "%s\t%s\n", a, r.name())
		}
	}
	return text.Bytes()
}

// fill overwrites a file that a node has mounted: the node would not see another file of that name.
// A single write keeps readers from seeing half of it.
func fill(name string, text []byte) error {
	old, err := os.ReadFile(name)
	if err == nil && bytes.Equal(old, text) {
		return nil
	}
	file, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("cannot write a node's hosts: %w", err)
	}
	_, err = file.WriteAt(text, 0)
	err = errors.Join(err, file.Truncate(int64(len(text))), file.Close())
	if err != nil {
		return fmt.Errorf("cannot write a node's hosts: %w", err)
	}
	return nil
}

// resolvers are the files that may name the host's resolvers, in the kubelet's order.
func resolvers() []string { return []string{"etc/resolv.conf", "run/systemd/resolve/resolv.conf"} }

// dns is how a node resolves names: as the host does, with those of its resolvers that a node
// reaches, which excludes loopback addresses. Without any, it is the host at gateway. Usually no
// server listens there, so queries fail at once, but CoreDNS starts, which needs a server.
func dns(host fs.FS, gateway netip.Addr) *runtimeapi.DNSConfig {
	var config *runtimeapi.DNSConfig
	for _, name := range resolvers() {
		text, err := fs.ReadFile(host, name)
		if err != nil {
			continue
		}
		found := readResolvers(string(text))
		if config == nil || len(found.Servers) > 0 {
			config = found
		}
		if len(config.Servers) > 0 {
			return config
		}
	}
	if config == nil {
		config = &runtimeapi.DNSConfig{}
	}
	if gateway.IsValid() {
		config.Servers = []string{gateway.String()}
	}
	return config
}

// readResolvers reads a resolv.conf.
func readResolvers(text string) *runtimeapi.DNSConfig {
	config := &runtimeapi.DNSConfig{}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		switch words[0] {
		case "nameserver":
			if a, err := netip.ParseAddr(words[1]); err == nil && !a.IsLoopback() && a.Zone() == "" {
				config.Servers = append(config.Servers, words[1])
			}
		case "search", "domain":
			config.Searches = words[1:] // the last one counts
		case "options":
			config.Options = append(config.Options, words[1:]...)
		}
	}
	return config
}
