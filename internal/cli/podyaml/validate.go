package podyaml

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berthrun/berth/internal/errs"
)

// faults collects what is wrong, so that all of it is told at once.
type faults []error

func (f *faults) add(field, format string, args ...any) {
	*f = append(*f, fmt.Errorf("%s: %s: %w", field, fmt.Sprintf(format, args...), errs.Invalid))
}

// validate checks what the honoured fields must hold to each other.
func (b *Bundle) validate() error {
	var f faults
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
	b.validateDNS(&f)
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
		if pod.Spec.Containers[i].RestartPolicy != nil {
			f.add(field+".restartPolicy", "it is for initContainers")
		}
	}
	return errors.Join(f...)
}

// validateDNS: there is no cluster here, so ClusterFirst is the host's DNS, as for a
// kubelet without a cluster DNS.
func (b *Bundle) validateDNS(f *faults) {
	switch spec := &b.Pod.Spec; spec.DNSPolicy {
	case corev1.DNSNone:
		if spec.DNSConfig == nil || len(spec.DNSConfig.Nameservers) == 0 {
			f.add("spec.dnsConfig.nameservers", "dnsPolicy None wants one at least")
		}
	case corev1.DNSClusterFirst, corev1.DNSClusterFirstWithHostNet, corev1.DNSDefault:
		if spec.DNSConfig != nil {
			f.add("spec.dnsConfig", "it is honoured with dnsPolicy None only")
		}
	default:
		f.add("spec.dnsPolicy", "%q is unknown", spec.DNSPolicy)
	}
}

func (b *Bundle) validateVolumes(f *faults) {
	names := map[string]bool{}
	for i := range b.Pod.Spec.Volumes {
		v, field := &b.Pod.Spec.Volumes[i], fmt.Sprintf("spec.volumes[%d]", i)
		for _, why := range validation.IsDNS1123Label(v.Name) {
			f.add(field+".name", "%q: %s", v.Name, why)
		}
		if names[v.Name] {
			f.add(field+".name", "%q is the name of two volumes", v.Name)
		}
		names[v.Name] = true
		sources := 0
		for _, set := range []bool{v.EmptyDir != nil, v.HostPath != nil, v.ConfigMap != nil, v.Secret != nil} {
			if set {
				sources++
			}
		}
		if sources != 1 {
			f.add(field, "a volume has one source, this has %d", sources)
		}
		b.validateSource(f, field, v)
	}
}

func (b *Bundle) validateSource(f *faults, field string, v *corev1.Volume) {
	switch {
	case v.EmptyDir != nil:
		if m := v.EmptyDir.Medium; m != corev1.StorageMediumDefault && m != corev1.StorageMediumMemory {
			f.add(field+".emptyDir.medium", "%q is not honoured", m)
		}
		if v.EmptyDir.SizeLimit != nil && v.EmptyDir.Medium != corev1.StorageMediumMemory {
			f.add(field+".emptyDir.sizeLimit", "it is honoured with medium Memory only")
		}
	case v.HostPath != nil:
		if !path.IsAbs(v.HostPath.Path) {
			f.add(field+".hostPath.path", "%q is not absolute", v.HostPath.Path)
		}
	case v.ConfigMap != nil || v.Secret != nil:
		if _, err := b.volumeFiles(v); err != nil {
			f.add(field, "%v", err)
		}
	}
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
	if c.RestartPolicy != nil && *c.RestartPolicy != corev1.ContainerRestartPolicyAlways {
		f.add(field+".restartPolicy", "%q: only Always, which makes a sidecar, is honoured", *c.RestartPolicy)
	}
	switch c.ImagePullPolicy {
	case "", corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever:
	default:
		f.add(field+".imagePullPolicy", "%q is none of Always, IfNotPresent, Never", c.ImagePullPolicy)
	}
	for i, p := range c.Ports {
		if p.ContainerPort < 1 || p.ContainerPort > 65535 || p.HostPort < 0 || p.HostPort > 65535 {
			f.add(fmt.Sprintf("%s.ports[%d]", field, i), "a port is between 1 and 65535")
		}
		if b.Pod.Spec.HostNetwork && p.HostPort != p.ContainerPort {
			f.add(fmt.Sprintf("%s.ports[%d].hostPort", field, i), "with hostNetwork it is the containerPort")
		}
	}
	if _, err := b.environment(c, &Facts{}); err != nil {
		f.add(field+".env", "%v", err)
	}
	b.validateMounts(f, field, c)
	b.validateSecurity(f, field, c)
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

func (b *Bundle) validateMounts(f *faults, field string, c *corev1.Container) {
	for i, m := range c.VolumeMounts {
		at := fmt.Sprintf("%s.volumeMounts[%d]", field, i)
		v := b.volume(m.Name)
		if v == nil {
			f.add(at+".name", "there is no volume %q", m.Name)
			continue
		}
		if m.MountPath == "" {
			f.add(at+".mountPath", "it is empty")
		}
		if m.SubPath == "" {
			continue
		}
		if !filepath.IsLocal(m.SubPath) {
			f.add(at+".subPath", "%q leads out of the volume", m.SubPath)
		}
		// In a volume that containers write to, a link planted by one of them
		// could lead the mount anywhere on the host.
		if v.ConfigMap == nil && v.Secret == nil {
			f.add(at+".subPath", "it is honoured in configMap and secret volumes only")
		}
	}
}

func (b *Bundle) validateSecurity(f *faults, field string, c *corev1.Container) {
	sc := c.SecurityContext
	if sc.ProcMount != nil && *sc.ProcMount != corev1.DefaultProcMount && *sc.ProcMount != corev1.UnmaskedProcMount {
		f.add(field+".securityContext.procMount", "%q is unknown", *sc.ProcMount)
	}
	for at, p := range map[string]*corev1.SeccompProfile{
		field + ".securityContext.seccompProfile": sc.SeccompProfile,
		"spec.securityContext.seccompProfile":     b.Pod.Spec.SecurityContext.SeccompProfile,
	} {
		if p == nil {
			continue
		}
		switch p.Type {
		case corev1.SeccompProfileTypeRuntimeDefault, corev1.SeccompProfileTypeUnconfined:
		case corev1.SeccompProfileTypeLocalhost:
			if p.LocalhostProfile == nil || !path.IsAbs(*p.LocalhostProfile) {
				f.add(at+".localhostProfile", "it must be an absolute path")
			}
		default:
			f.add(at+".type", "%q is unknown", p.Type)
		}
	}
}

func validateProbe(f *faults, field, name string, p *corev1.Probe, c *corev1.Container) {
	actions := 0
	var port *intstr.IntOrString
	if p.Exec != nil {
		actions++
		if len(p.Exec.Command) == 0 {
			f.add(field+".exec.command", "it is empty")
		}
	}
	if p.HTTPGet != nil {
		actions++
		port = &p.HTTPGet.Port
		if p.HTTPGet.Scheme != corev1.URISchemeHTTP && p.HTTPGet.Scheme != corev1.URISchemeHTTPS {
			f.add(field+".httpGet.scheme", "%q is neither HTTP nor HTTPS", p.HTTPGet.Scheme)
		}
	}
	if p.TCPSocket != nil {
		actions++
		port = &p.TCPSocket.Port
	}
	if p.GRPC != nil {
		actions++
		port = new(intstr.FromInt32(p.GRPC.Port))
	}
	if actions != 1 {
		f.add(field, "a probe has one of exec, httpGet, tcpSocket, grpc; this has %d", actions)
	}
	if port != nil {
		if _, err := Port(c, *port); err != nil {
			f.add(field, "%v", err)
		}
	}
	if name != "readinessProbe" && p.SuccessThreshold != 1 {
		f.add(field+".successThreshold", "it must be 1")
	}
	if p.InitialDelaySeconds < 0 || p.PeriodSeconds < 0 || p.TimeoutSeconds < 0 || p.FailureThreshold < 0 || p.SuccessThreshold < 0 {
		f.add(field, "times and thresholds are not negative")
	}
}
