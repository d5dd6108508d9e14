package host

import (
	"bufio"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

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
