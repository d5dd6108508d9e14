package podyaml

import corev1 "k8s.io/api/core/v1"

// Defaults of the Pod API that matter here.
const (
	defaultGraceSeconds  = 30
	defaultVolumeMode    = 0o644
	defaultPeriodSeconds = 10
	defaultTimeout       = 1
	defaultFailures      = 3
)

func setDefaults(pod *corev1.Pod) {
	if pod.Namespace == "" {
		pod.Namespace = corev1.NamespaceDefault
	}
	spec := &pod.Spec
	if spec.RestartPolicy == "" {
		spec.RestartPolicy = corev1.RestartPolicyAlways
	}
	if spec.DNSPolicy == "" {
		spec.DNSPolicy = corev1.DNSClusterFirst
	}
	if spec.TerminationGracePeriodSeconds == nil {
		spec.TerminationGracePeriodSeconds = new(int64(defaultGraceSeconds))
	}
	if spec.SecurityContext == nil {
		spec.SecurityContext = &corev1.PodSecurityContext{}
	}
	for i := range spec.Volumes {
		setVolumeDefaults(&spec.Volumes[i])
	}
	for _, list := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			setContainerDefaults(&list[i], spec.HostNetwork)
		}
	}
}

func setVolumeDefaults(v *corev1.Volume) {
	if v.ConfigMap != nil && v.ConfigMap.DefaultMode == nil {
		v.ConfigMap.DefaultMode = new(int32(defaultVolumeMode))
	}
	if v.Secret != nil && v.Secret.DefaultMode == nil {
		v.Secret.DefaultMode = new(int32(defaultVolumeMode))
	}
	if v.DownwardAPI != nil && v.DownwardAPI.DefaultMode == nil {
		v.DownwardAPI.DefaultMode = new(int32(defaultVolumeMode))
	}
	if v.Projected != nil && v.Projected.DefaultMode == nil {
		v.Projected.DefaultMode = new(int32(defaultVolumeMode))
	}
	if v.HostPath != nil && v.HostPath.Type == nil {
		v.HostPath.Type = new(corev1.HostPathUnset)
	}
	// A volume without a source is an emptyDir.
	if v.VolumeSource == (corev1.VolumeSource{}) {
		v.EmptyDir = &corev1.EmptyDirVolumeSource{}
	}
}

func setContainerDefaults(c *corev1.Container, hostNetwork bool) {
	if c.SecurityContext == nil {
		c.SecurityContext = &corev1.SecurityContext{}
	}
	if c.TerminationMessagePath == "" {
		c.TerminationMessagePath = corev1.TerminationMessagePathDefault
	}
	if c.TerminationMessagePolicy == "" {
		c.TerminationMessagePolicy = corev1.TerminationMessageReadFile
	}
	for i := range c.Ports {
		if c.Ports[i].Protocol == "" {
			c.Ports[i].Protocol = corev1.ProtocolTCP
		}
		if hostNetwork && c.Ports[i].HostPort == 0 {
			c.Ports[i].HostPort = c.Ports[i].ContainerPort
		}
	}
	for _, probe := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		if probe == nil {
			continue
		}
		probe.PeriodSeconds = orDefault(probe.PeriodSeconds, defaultPeriodSeconds)
		probe.TimeoutSeconds = orDefault(probe.TimeoutSeconds, defaultTimeout)
		probe.SuccessThreshold = orDefault(probe.SuccessThreshold, 1)
		probe.FailureThreshold = orDefault(probe.FailureThreshold, defaultFailures)
		setHTTPDefaults(probe.HTTPGet)
	}
	if c.Lifecycle == nil {
		return
	}
	for _, handler := range []*corev1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
		if handler != nil {
			setHTTPDefaults(handler.HTTPGet)
		}
	}
}

func setHTTPDefaults(get *corev1.HTTPGetAction) {
	if get == nil {
		return
	}
	if get.Scheme == "" {
		get.Scheme = corev1.URISchemeHTTP
	}
	if get.Path == "" {
		get.Path = "/"
	}
}

func orDefault(value, otherwise int32) int32 {
	if value == 0 {
		return otherwise
	}
	return value
}
