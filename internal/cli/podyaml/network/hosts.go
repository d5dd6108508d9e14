// Package network makes what a pod has of its network beside addresses: hostname, hosts file, DNS
// and host ports.
package network

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthrun/berth/internal/cli/podyaml/podspec"
)

// ClusterDomain is what names end with in most clusters.
const ClusterDomain = "cluster.local"

// Names is an address with the names that it has.
type Names struct {
	IP    string
	Names []string
}

// Hosts makes the text of the pod's hosts file, as a kubelet has it: of the host's own when the pod
// has the host's network, then hostAliases, and last the pods of the file's Services.
func Hosts(pod *corev1.Pod, hostHosts string, podIPs []string, services []Names) string {
	var out strings.Builder
	out.WriteString("# Managed by berth pod run.\n")
	spec := &pod.Spec
	if spec.HostNetwork {
		out.WriteString(hostHosts)
		if !strings.HasSuffix(hostHosts, "\n") {
			out.WriteString("\n")
		}
	} else {
		out.WriteString("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" +
			"fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n")
		names := Hostname(pod)
		if fqdn := fqdn(pod); fqdn != "" && fqdn != names {
			names = fqdn + "\t" + strings.Split(names, ".")[0]
		}
		for _, ip := range podIPs {
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
func fqdn(pod *corev1.Pod) string {
	if pod.Spec.Subdomain == "" {
		return ""
	}
	return fmt.Sprintf("%s.%s.%s.svc.%s", shortHostname(pod), pod.Spec.Subdomain, pod.Namespace, ClusterDomain)
}

func shortHostname(pod *corev1.Pod) string {
	switch {
	case pod.Spec.Hostname != "":
		return pod.Spec.Hostname
	case len(pod.Name) > maxHostname:
		return strings.TrimRight(pod.Name[:maxHostname], "-.")
	}
	return pod.Name
}

// maxHostname is where Kubernetes cuts a pod's name that serves as hostname, and what
// the kernel takes for one.
const maxHostname = 63

// Hostname is what the pod's containers are called, "" for the host's name.
func Hostname(pod *corev1.Pod) string {
	spec := &pod.Spec
	switch {
	case spec.HostNetwork:
		return ""
	case spec.HostnameOverride != nil:
		return *spec.HostnameOverride
	case podspec.IsTrue(spec.SetHostnameAsFQDN) && spec.Subdomain != "":
		return fqdn(pod)
	}
	return shortHostname(pod)
}
