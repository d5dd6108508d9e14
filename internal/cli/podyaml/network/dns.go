package network

import (
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/podyaml/document"
)

// DNS is the pod's configuration of DNS. host is that of the host, behindStub that the host's
// /etc/resolv.conf has another, which works in the host's network only. It is nil where that file
// is the pod's as it stands. There is no cluster here, so ClusterFirst is the host's DNS, as for a
// kubelet without a cluster DNS. dnsConfig adds to it, and its options win.
func DNS(pod *corev1.Pod, host *runtimeapi.DNSConfig, behindStub bool) *runtimeapi.DNSConfig {
	spec := &pod.Spec
	if spec.DNSPolicy != corev1.DNSNone && spec.DNSConfig == nil {
		if behindStub && !spec.HostNetwork {
			return host
		}
		return nil
	}
	dns := &runtimeapi.DNSConfig{}
	if spec.DNSPolicy != corev1.DNSNone && host != nil {
		dns.Servers = slices.Clone(host.Servers)
		dns.Searches = slices.Clone(host.Searches)
		dns.Options = slices.Clone(host.Options)
	}
	own := spec.DNSConfig
	dns.Servers = unique(append(dns.Servers, own.Nameservers...))
	dns.Searches = unique(append(dns.Searches, own.Searches...))
	for _, option := range own.Options {
		word := option.Name
		if option.Value != nil {
			word += ":" + *option.Value
		}
		dns.Options = slices.DeleteFunc(dns.Options, func(other string) bool { return optionName(other) == option.Name })
		dns.Options = append(dns.Options, word)
	}
	return dns
}

func optionName(word string) string {
	for i, r := range word {
		if r == ':' {
			return word[:i]
		}
	}
	return word
}

// unique keeps the first of equal words.
func unique(words []string) []string {
	var out []string
	for _, word := range words {
		if !slices.Contains(out, word) {
			out = append(out, word)
		}
	}
	return out
}

// ValidateDNS checks dnsPolicy and dnsConfig.
func ValidateDNS(f *document.Faults, pod *corev1.Pod) {
	spec := &pod.Spec
	switch spec.DNSPolicy {
	case corev1.DNSNone:
		if spec.DNSConfig == nil || len(spec.DNSConfig.Nameservers) == 0 {
			f.Add("spec.dnsConfig.nameservers", "dnsPolicy None needs at least one")
		}
	case corev1.DNSClusterFirst, corev1.DNSClusterFirstWithHostNet, corev1.DNSDefault:
	default:
		f.Add("spec.dnsPolicy", "%q is unknown", spec.DNSPolicy)
	}
	if spec.DNSConfig == nil {
		return
	}
	for i, option := range spec.DNSConfig.Options {
		if option.Name == "" {
			f.Add("spec.dnsConfig.options["+strconv.Itoa(i)+"].name", "it is empty")
		}
	}
	for i, server := range spec.DNSConfig.Nameservers {
		checkIP(f, "spec.dnsConfig.nameservers["+strconv.Itoa(i)+"]", server)
	}
}
