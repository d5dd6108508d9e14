package host

import (
	"bufio"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/sys/sysfile"
)

// readDNS reads the name servers that pods can ask, of a host with this root directory. On a host with systemd-resolved
// these are in another file than /etc/resolv.conf, as kubeadm has it; then behindStub is true. It is nil for none.
func readDNS(root string) (dns *runtimeapi.DNSConfig, behindStub bool) {
	read := func(name string) *runtimeapi.DNSConfig {
		text, err := sysfile.ReadRegular(filepath.Join(root, name), maxEtcFile)
		if err != nil {
			return nil
		}
		return parseResolvConf(string(text))
	}
	dns = read("etc/resolv.conf")
	if slices.ContainsFunc(dns.GetServers(), isReachable) {
		return dns, false
	}
	if behind := read("run/systemd/resolve/resolv.conf"); slices.ContainsFunc(behind.GetServers(), isReachable) {
		return behind, true
	}
	return dns, false
}

// isReachable reports whether a name server is another one in a pod's network than the pod itself.
func isReachable(server string) bool {
	at, err := netip.ParseAddr(server)
	return err == nil && !at.IsLoopback()
}

// parseResolvConf reads from resolv.conf what pods get. The last search line counts.
func parseResolvConf(text string) *runtimeapi.DNSConfig {
	dns := &runtimeapi.DNSConfig{}
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) < 2 {
			continue
		}
		switch words[0] {
		case "nameserver":
			dns.Servers = append(dns.Servers, words[1])
		case "search", "domain":
			dns.Searches = words[1:]
		case "options":
			dns.Options = append(dns.Options, words[1:]...)
		}
	}
	return dns
}
