package podyaml

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// validate checks what the honoured fields must hold to each other.
func (b *Bundle) validate() error {
	f := faults{place: b.place}
	pod := b.Pod
	for _, why := range validation.IsDNS1123Subdomain(pod.Name) {
		f.add("metadata.name", "%q: %s", pod.Name, why)
	}
	for _, why := range validation.IsDNS1123Label(pod.Namespace) {
		f.add("metadata.namespace", "%q: %s", pod.Namespace, why)
	}
	if uid := string(pod.UID); strings.ContainsAny(uid, "/\x00 \n") || uid == "." || uid == ".." {
		f.add("metadata.uid", "%q cannot be part of a path", uid)
	}
	if pod.Spec.Hostname != "" {
		for _, why := range validation.IsDNS1123Label(pod.Spec.Hostname) {
			f.add("spec.hostname", "%q: %s", pod.Spec.Hostname, why)
		}
	}
	switch pod.Spec.RestartPolicy {
	case corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever:
	default:
		f.add("spec.restartPolicy", "%q is none of Always, OnFailure, Never", pod.Spec.RestartPolicy)
	}
	if pod.Spec.Subdomain != "" {
		for _, why := range validation.IsDNS1123Label(pod.Spec.Subdomain) {
			f.add("spec.subdomain", "%q: %s", pod.Spec.Subdomain, why)
		}
	}
	if pod.Spec.OS != nil && pod.Spec.OS.Name != corev1.Linux {
		f.add("spec.os.name", "%q: this is Linux", pod.Spec.OS.Name)
	}
	if g := *pod.Spec.TerminationGracePeriodSeconds; g < 0 {
		f.add("spec.terminationGracePeriodSeconds", "%d is negative", g)
	}
	if d := pod.Spec.ActiveDeadlineSeconds; d != nil && *d < 1 {
		f.add("spec.activeDeadlineSeconds", "%d is not positive", *d)
	}
	if pod.Spec.Resources != nil {
		validateResources(&f, "spec.resources", pod.Spec.Resources, true)
	}
	b.validateHostname(&f)
	b.validateDNS(&f)
	validateHosts(&f, &pod.Spec)
	b.validatePodSecurity(&f)
	b.validatePullSecrets(&f)
	b.validateVolumes(&f)
	if len(pod.Spec.Containers) == 0 {
		f.add("spec.containers", "there is no container")
	}
	names := map[string]bool{}
	for i := range pod.Spec.InitContainers {
		b.validateContainer(&f, fmt.Sprintf("spec.initContainers[%d]", i), &pod.Spec.InitContainers[i], names)
	}
	for i := range pod.Spec.Containers {
		field := fmt.Sprintf("spec.containers[%d]", i)
		b.validateContainer(&f, field, &pod.Spec.Containers[i], names)
	}
	return f.err()
}

func (b *Bundle) validateContainer(f *faults, field string, c *corev1.Container, names map[string]bool) {
	for _, why := range validation.IsDNS1123Label(c.Name) {
		f.add(field+".name", "%q: %s", c.Name, why)
	}
	if names[c.Name] {
		f.add(field+".name", "%q is the name of two containers", c.Name)
	}
	names[c.Name] = true
	if c.Image == "" {
		f.add(field+".image", "it is empty")
	}
	validateRestarts(f, field, c)
	validatePullPolicy(f, field+".imagePullPolicy", c.ImagePullPolicy)
	for i, p := range c.Ports {
		if p.ContainerPort < 1 || p.ContainerPort > 65535 || p.HostPort < 0 || p.HostPort > 65535 {
			f.add(fmt.Sprintf("%s.ports[%d]", field, i), "a port is between 1 and 65535")
		}
		if b.Pod.Spec.HostNetwork && p.HostPort != p.ContainerPort {
			f.add(fmt.Sprintf("%s.ports[%d].hostPort", field, i), "with hostNetwork it is the containerPort")
		}
	}
	if _, err := b.environment(c, &Facts{}); err != nil {
		f.addError(field+".", err)
	}
	validateResources(f, field+".resources", &c.Resources, false)
	b.validateMounts(f, field, c)
	b.validateSecurity(f, field, c)
	b.validateLifecycle(f, field, c)
	switch c.TerminationMessagePolicy {
	case corev1.TerminationMessageReadFile, corev1.TerminationMessageFallbackToLogsOnError:
	default:
		f.add(field+".terminationMessagePolicy", "%q is neither File nor FallbackToLogsOnError", c.TerminationMessagePolicy)
	}
	isSidecar := IsSidecar(c)
	isInit := strings.HasPrefix(field, "spec.initContainers")
	for name, probe := range map[string]*corev1.Probe{
		"livenessProbe": c.LivenessProbe, "readinessProbe": c.ReadinessProbe, "startupProbe": c.StartupProbe,
	} {
		switch {
		case probe == nil:
		case isInit && !isSidecar:
			f.add(field+"."+name, "an init container that is no sidecar has no probes")
		default:
			validateProbe(f, field+"."+name, name, probe, c)
		}
	}
}

// validateRestarts: Always makes a sidecar of an init container; a container's own
// policy goes before the pod's.
func validateRestarts(f *faults, field string, c *corev1.Container) {
	if c.RestartPolicy == nil {
		if len(c.RestartPolicyRules) > 0 {
			f.add(field+".restartPolicyRules", "they want a restartPolicy of the container beside them")
		}
		return
	}
	switch *c.RestartPolicy {
	case corev1.ContainerRestartPolicyAlways, corev1.ContainerRestartPolicyOnFailure, corev1.ContainerRestartPolicyNever:
	default:
		f.add(field+".restartPolicy", "%q is none of Always, OnFailure, Never", *c.RestartPolicy)
	}
	for i, rule := range c.RestartPolicyRules {
		at := fmt.Sprintf("%s.restartPolicyRules[%d]", field, i)
		if rule.Action != corev1.ContainerRestartRuleActionRestart && rule.Action != corev1.ContainerRestartRuleActionRestartAllContainers {
			f.add(at+".action", "%q is unknown", rule.Action)
		}
		if rule.ExitCodes == nil {
			f.add(at+".exitCodes", "there are none")
			continue
		}
		switch rule.ExitCodes.Operator {
		case corev1.ContainerRestartRuleOnExitCodesOpIn, corev1.ContainerRestartRuleOnExitCodesOpNotIn:
		default:
			f.add(at+".exitCodes.operator", "%q is neither In nor NotIn", rule.ExitCodes.Operator)
		}
	}
}

// validateHostname: a name that does not fit the kernel's field would be another one.
func (b *Bundle) validateHostname(f *faults) {
	spec := &b.Pod.Spec
	if override := spec.HostnameOverride; override != nil {
		checkDomain(f, "spec.hostnameOverride", *override)
		if spec.HostNetwork || isTrue(spec.SetHostnameAsFQDN) {
			f.add("spec.hostnameOverride", "it goes with neither hostNetwork nor setHostnameAsFQDN")
		}
	}
	if name := b.hostname(); len(name) > maxHostname+1 {
		f.add("spec.setHostnameAsFQDN", "%q is longer than the %d characters of a hostname", name, maxHostname+1)
	}
}

func (b *Bundle) validatePullSecrets(f *faults) {
	for i, ref := range b.Pod.Spec.ImagePullSecrets {
		s := b.Secrets[ref.Name]
		if s == nil {
			continue // noted when the pod runs
		}
		if _, err := credentials(s); err != nil {
			f.add(fmt.Sprintf("spec.imagePullSecrets[%d]", i), "%v", err)
		}
	}
}

func checkIP(f *faults, field, text string) {
	if _, err := netip.ParseAddr(text); err != nil {
		f.add(field, "%q is no IP address", text)
	}
}

func checkDomain(f *faults, field, name string) {
	for _, why := range validation.IsDNS1123Subdomain(name) {
		f.add(field, "%q: %s", name, why)
	}
}

func itoa(i int) string { return strconv.Itoa(i) }
