package podyaml

import (
	"fmt"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// HostsFile is the pod's hosts file.
func HostsFile(dir string) string { return filepath.Join(dir, "etc-hosts") }

// Names is an address with the names that it has.
type Names struct {
	IP    string
	Names []string
}

// Hosts makes the pod's hosts file, as a kubelet has it: of the host's own when the pod
// has the host's network, then hostAliases, and last the pods of the file's Services.
func (b *Bundle) Hosts(facts *Facts, services []Names) string {
	var out strings.Builder
	out.WriteString("# Managed by berth pod run.\n")
	spec := &b.Pod.Spec
	if spec.HostNetwork {
		out.WriteString(facts.HostHosts)
		if !strings.HasSuffix(facts.HostHosts, "\n") {
			out.WriteString("\n")
		}
	} else {
		out.WriteString("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" +
			"fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n")
		names := b.hostname()
		if fqdn := b.fqdn(); fqdn != "" && fqdn != names {
			names = fqdn + "\t" + strings.Split(names, ".")[0]
		}
		for _, ip := range facts.PodIPs {
			fmt.Fprintf(&out, "%s\t%s\n", ip, names)
		}
	}
	for _, alias := range spec.HostAliases {
		fmt.Fprintf(&out, "%s\t%s\n", alias.IP, strings.Join(alias.Hostnames, "\t"))
	}
	for _, entry := range services {
		fmt.Fprintf(&out, "%s\t%s\n", entry.IP, strings.Join(entry.Names, "\t"))
	}
	return out.String()
}

// fqdn is the pod's name in the Service that its subdomain names, "" for none.
func (b *Bundle) fqdn() string {
	if b.Pod.Spec.Subdomain == "" {
		return ""
	}
	return fmt.Sprintf("%s.%s.%s.svc.%s", b.shortHostname(), b.Pod.Spec.Subdomain, b.Pod.Namespace, clusterDomain)
}

func (b *Bundle) shortHostname() string {
	switch {
	case b.Pod.Spec.Hostname != "":
		return b.Pod.Spec.Hostname
	case len(b.Pod.Name) > maxHostname:
		return strings.TrimRight(b.Pod.Name[:maxHostname], "-.")
	}
	return b.Pod.Name
}

// maxHostname is where Kubernetes cuts a pod's name that serves as hostname, and what
// the kernel takes for one.
const maxHostname = 63

// hostname is what the pod's containers are called, "" for the host's name.
func (b *Bundle) hostname() string {
	spec := &b.Pod.Spec
	switch {
	case spec.HostNetwork:
		return ""
	case spec.HostnameOverride != nil:
		return *spec.HostnameOverride
	case isTrue(spec.SetHostnameAsFQDN) && spec.Subdomain != "":
		return b.fqdn()
	}
	return b.shortHostname()
}

func validateHosts(f *faults, spec *corev1.PodSpec) {
	for i, alias := range spec.HostAliases {
		field := fmt.Sprintf("spec.hostAliases[%d]", i)
		checkIP(f, field+".ip", alias.IP)
		for n, name := range alias.Hostnames {
			checkDomain(f, fmt.Sprintf("%s.hostnames[%d]", field, n), name)
		}
	}
}
