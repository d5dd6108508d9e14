package podyaml

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// dns is nil where the host's DNS is the pod's as it stands. There is no cluster here,
// so ClusterFirst is the host's DNS, as for a kubelet without a cluster DNS. dnsConfig
// adds to it, and its options win.
func (b *Bundle) dns(facts *Facts) *runtimeapi.DNSConfig {
	spec := &b.Pod.Spec
	if spec.DNSPolicy != corev1.DNSNone && spec.DNSConfig == nil {
		return nil
	}
	dns := &runtimeapi.DNSConfig{}
	if spec.DNSPolicy != corev1.DNSNone && facts.HostDNS != nil {
		dns.Servers = slices.Clone(facts.HostDNS.Servers)
		dns.Searches = slices.Clone(facts.HostDNS.Searches)
		dns.Options = slices.Clone(facts.HostDNS.Options)
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

func (b *Bundle) validateDNS(f *faults) {
	spec := &b.Pod.Spec
	switch spec.DNSPolicy {
	case corev1.DNSNone:
		if spec.DNSConfig == nil || len(spec.DNSConfig.Nameservers) == 0 {
			f.add("spec.dnsConfig.nameservers", "dnsPolicy None wants one at least")
		}
	case corev1.DNSClusterFirst, corev1.DNSClusterFirstWithHostNet, corev1.DNSDefault:
	default:
		f.add("spec.dnsPolicy", "%q is unknown", spec.DNSPolicy)
	}
	if spec.DNSConfig == nil {
		return
	}
	for i, option := range spec.DNSConfig.Options {
		if option.Name == "" {
			f.add("spec.dnsConfig.options["+itoa(i)+"].name", "it is empty")
		}
	}
	for i, server := range spec.DNSConfig.Nameservers {
		checkIP(f, "spec.dnsConfig.nameservers["+itoa(i)+"]", server)
	}
}
