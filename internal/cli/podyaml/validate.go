package podyaml

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berthrun/berth/internal/cli/podyaml/document"
	"github.com/berthrun/berth/internal/cli/podyaml/network"
	"github.com/berthrun/berth/internal/cli/podyaml/podspec"
	"github.com/berthrun/berth/internal/cli/podyaml/pullsecret"
	"github.com/berthrun/berth/internal/cli/podyaml/resources"
	"github.com/berthrun/berth/internal/cli/podyaml/security"
	"github.com/berthrun/berth/internal/cli/podyaml/source"
)

// validate checks what the honoured fields must hold to each other.
func (b *Bundle) validate() error {
	f := document.Faults{Place: b.place}
	pod := b.Pod
	for _, why := range validation.IsDNS1123Subdomain(pod.Name) {
		f.Add("metadata.name", "%q: %s", pod.Name, why)
	}
	for _, why := range validation.IsDNS1123Label(pod.Namespace) {
		f.Add("metadata.namespace", "%q: %s", pod.Namespace, why)
	}
	if uid := string(pod.UID); strings.ContainsAny(uid, "/\x00 \n") || uid == "." || uid == ".." {
		f.Add("metadata.uid", "%q cannot be part of a path", uid)
	}
	if pod.Spec.Hostname != "" {
		for _, why := range validation.IsDNS1123Label(pod.Spec.Hostname) {
			f.Add("spec.hostname", "%q: %s", pod.Spec.Hostname, why)
		}
	}
	switch pod.Spec.RestartPolicy {
	case corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever:
	default:
		f.Add("spec.restartPolicy", "%q is none of Always, OnFailure, Never", pod.Spec.RestartPolicy)
	}
	if pod.Spec.Subdomain != "" {
		for _, why := range validation.IsDNS1123Label(pod.Spec.Subdomain) {
			f.Add("spec.subdomain", "%q: %s", pod.Spec.Subdomain, why)
		}
	}
	if pod.Spec.OS != nil && pod.Spec.OS.Name != corev1.Linux {
		f.Add("spec.os.name", "%q: this is Linux", pod.Spec.OS.Name)
	}
	if g := *pod.Spec.TerminationGracePeriodSeconds; g < 0 {
		f.Add("spec.terminationGracePeriodSeconds", "%d is negative", g)
	}
	if d := pod.Spec.ActiveDeadlineSeconds; d != nil && *d < 1 {
		f.Add("spec.activeDeadlineSeconds", "%d is not positive", *d)
	}
	if pod.Spec.Resources != nil {
		resources.Validate(&f, "spec.resources", pod.Spec.Resources, true)
	}
	network.ValidateHostname(&f, pod)
	network.ValidateDNS(&f, pod)
	network.ValidateHosts(&f, &pod.Spec)
	security.ValidatePod(&f, pod)
	b.validatePullSecrets(&f)
	b.validateVolumes(&f)
	if len(pod.Spec.Containers) == 0 {
		f.Add("spec.containers", "there is no container")
	}
	names := map[string]bool{}
	for i := range pod.Spec.InitContainers {
		b.validateContainer(&f, fmt.Sprintf("spec.initContainers[%d]", i), &pod.Spec.InitContainers[i], names)
	}
	for i := range pod.Spec.Containers {
		field := fmt.Sprintf("spec.containers[%d]", i)
		b.validateContainer(&f, field, &pod.Spec.Containers[i], names)
	}
	return f.Err()
}

func (b *Bundle) validateContainer(f *document.Faults, field string, c *corev1.Container, names map[string]bool) {
	for _, why := range validation.IsDNS1123Label(c.Name) {
		f.Add(field+".name", "%q: %s", c.Name, why)
	}
	if names[c.Name] {
		f.Add(field+".name", "%q is the name of two containers", c.Name)
	}
	names[c.Name] = true
	if c.Image == "" {
		f.Add(field+".image", "it is empty")
	}
	validateRestarts(f, field, c)
	validatePullPolicy(f, field+".imagePullPolicy", c.ImagePullPolicy)
	for i, p := range c.Ports {
		if p.ContainerPort < 1 || p.ContainerPort > 65535 || p.HostPort < 0 || p.HostPort > 65535 {
			f.Add(fmt.Sprintf("%s.ports[%d]", field, i), "a port is between 1 and 65535")
		}
		if b.Pod.Spec.HostNetwork && p.HostPort != p.ContainerPort {
			f.Add(fmt.Sprintf("%s.ports[%d].hostPort", field, i), "with hostNetwork it must be the containerPort")
		}
	}
	if _, err := b.Environment(c, &source.Node{}); err != nil {
		f.AddError(field+".", err)
	}
	resources.Validate(f, field+".resources", &c.Resources, false)
	b.validateMounts(f, field, c)
	security.ValidateContainer(f, field, c)
	b.validateLifecycle(f, field, c)
	switch c.TerminationMessagePolicy {
	case corev1.TerminationMessageReadFile, corev1.TerminationMessageFallbackToLogsOnError:
	default:
		f.Add(field+".terminationMessagePolicy", "%q is neither File nor FallbackToLogsOnError", c.TerminationMessagePolicy)
	}
	isSidecar := podspec.IsSidecar(c)
	isInit := strings.HasPrefix(field, "spec.initContainers")
	for name, probe := range map[string]*corev1.Probe{
		"livenessProbe": c.LivenessProbe, "readinessProbe": c.ReadinessProbe, "startupProbe": c.StartupProbe,
	} {
		switch {
		case probe == nil:
		case isInit && !isSidecar:
			f.Add(field+"."+name, "an init container that is not a sidecar has no probes")
		default:
			validateProbe(f, field+"."+name, name, probe, c)
		}
	}
}

// validateRestarts: Always makes a sidecar of an init container; a container's own
// policy goes before the pod's.
func validateRestarts(f *document.Faults, field string, c *corev1.Container) {
	if c.RestartPolicy == nil {
		if len(c.RestartPolicyRules) > 0 {
			f.Add(field+".restartPolicyRules", "they need a restartPolicy of the container")
		}
		return
	}
	switch *c.RestartPolicy {
	case corev1.ContainerRestartPolicyAlways, corev1.ContainerRestartPolicyOnFailure, corev1.ContainerRestartPolicyNever:
	default:
		f.Add(field+".restartPolicy", "%q is none of Always, OnFailure, Never", *c.RestartPolicy)
	}
	for i, rule := range c.RestartPolicyRules {
		at := fmt.Sprintf("%s.restartPolicyRules[%d]", field, i)
		if rule.Action != corev1.ContainerRestartRuleActionRestart && rule.Action != corev1.ContainerRestartRuleActionRestartAllContainers {
			f.Add(at+".action", "%q is unknown", rule.Action)
		}
		if rule.ExitCodes == nil {
			f.Add(at+".exitCodes", "there are none")
			continue
		}
		switch rule.ExitCodes.Operator {
		case corev1.ContainerRestartRuleOnExitCodesOpIn, corev1.ContainerRestartRuleOnExitCodesOpNotIn:
		default:
			f.Add(at+".exitCodes.operator", "%q is neither In nor NotIn", rule.ExitCodes.Operator)
		}
	}
}

func (b *Bundle) validatePullSecrets(f *document.Faults) {
	for i, ref := range b.Pod.Spec.ImagePullSecrets {
		s := b.Secrets[ref.Name]
		if s == nil {
			continue // noted when the pod runs
		}
		if _, err := pullsecret.Credentials(s); err != nil {
			f.Add(fmt.Sprintf("spec.imagePullSecrets[%d]", i), "%v", err)
		}
	}
}
