package network

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berthrun/berth/internal/cli/podyaml/document"
	"github.com/berthrun/berth/internal/cli/podyaml/podspec"
)

// ValidateHosts checks hostAliases.
func ValidateHosts(f *document.Faults, spec *corev1.PodSpec) {
	for i, alias := range spec.HostAliases {
		field := fmt.Sprintf("spec.hostAliases[%d]", i)
		checkIP(f, field+".ip", alias.IP)
		for n, name := range alias.Hostnames {
			checkDomain(f, fmt.Sprintf("%s.hostnames[%d]", field, n), name)
		}
	}
}

// ValidateHostname checks the pod's hostname: a name that does not fit the kernel's field would be
// another one.
func ValidateHostname(f *document.Faults, pod *corev1.Pod) {
	spec := &pod.Spec
	if override := spec.HostnameOverride; override != nil {
		checkDomain(f, "spec.hostnameOverride", *override)
		if spec.HostNetwork || podspec.IsTrue(spec.SetHostnameAsFQDN) {
			f.Add("spec.hostnameOverride", "it cannot be combined with hostNetwork or setHostnameAsFQDN")
		}
	}
	if name := Hostname(pod); len(name) > maxHostname+1 {
		f.Add("spec.setHostnameAsFQDN", "%q is longer than the %d characters of a hostname", name, maxHostname+1)
	}
}

func checkIP(f *document.Faults, field, text string) {
	if _, err := netip.ParseAddr(text); err != nil {
		f.Add(field, "%q is not an IP address", text)
	}
}

func checkDomain(f *document.Faults, field, name string) {
	for _, why := range validation.IsDNS1123Subdomain(name) {
		f.Add(field, "%q: %s", name, why)
	}
}
