package podyaml

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

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
		for _, set := range []bool{
			v.EmptyDir != nil, v.HostPath != nil, v.ConfigMap != nil, v.Secret != nil, v.DownwardAPI != nil,
			v.Projected != nil, v.PersistentVolumeClaim != nil, v.Ephemeral != nil, v.Image != nil,
		} {
			if set {
				sources++
			}
		}
		if sources != 1 {
			f.add(field, "a volume has one source, this has %d", sources)
			continue
		}
		b.validateSource(f, field, v)
	}
}

func (b *Bundle) validateSource(f *faults, field string, v *corev1.Volume) {
	switch {
	case v.EmptyDir != nil:
		b.validateEmptyDir(f, field+".emptyDir", v)
	case v.HostPath != nil:
		if !path.IsAbs(v.HostPath.Path) {
			f.add(field+".hostPath.path", "%q is not absolute", v.HostPath.Path)
		}
		if !slices.Contains(hostPathTypes(), *v.HostPath.Type) {
			f.add(field+".hostPath.type", "%q is unknown", *v.HostPath.Type)
		}
	case v.PersistentVolumeClaim != nil:
		for _, why := range validation.IsDNS1123Subdomain(v.PersistentVolumeClaim.ClaimName) {
			f.add(field+".persistentVolumeClaim.claimName", "%q: %s", v.PersistentVolumeClaim.ClaimName, why)
		}
	case v.Image != nil:
		if v.Image.Reference == "" {
			f.add(field+".image.reference", "it is empty")
		}
		validatePullPolicy(f, field+".image.pullPolicy", v.Image.PullPolicy)
	case isWritten(v):
		if _, err := b.volumeFiles(v, &Facts{}); err != nil {
			f.add(field, "%v", err)
		}
	}
}

func (b *Bundle) validateEmptyDir(f *faults, field string, v *corev1.Volume) {
	source := v.EmptyDir
	switch m := source.Medium; {
	case m == corev1.StorageMediumDefault, m == corev1.StorageMediumMemory:
	case strings.HasPrefix(string(m), string(corev1.StorageMediumHugePages)):
		if _, err := b.pageSize(v); err != nil {
			f.add(field+".medium", "%v", err)
		}
	default:
		f.add(field+".medium", "%q is not honoured", m)
	}
	if source.SizeLimit != nil && source.SizeLimit.Sign() < 0 {
		f.add(field+".sizeLimit", "it is negative")
	}
	if source.Mode != nil && (*source.Mode < 0 || *source.Mode > 0o7777) {
		f.add(field+".mode", "%o is no mode", *source.Mode)
	}
}

func hostPathTypes() []corev1.HostPathType {
	return []corev1.HostPathType{
		corev1.HostPathUnset, corev1.HostPathDirectoryOrCreate, corev1.HostPathDirectory, corev1.HostPathFileOrCreate,
		corev1.HostPathFile, corev1.HostPathSocket, corev1.HostPathCharDev, corev1.HostPathBlockDev,
	}
}

func validatePullPolicy(f *faults, field string, p corev1.PullPolicy) {
	switch p {
	case "", corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever:
	default:
		f.add(field, "%q is none of Always, IfNotPresent, Never", p)
	}
}

func (b *Bundle) validateMounts(f *faults, field string, c *corev1.Container) {
	for i := range c.VolumeMounts {
		m := &c.VolumeMounts[i]
		at := fmt.Sprintf("%s.volumeMounts[%d]", field, i)
		v := b.volume(m.Name)
		if v == nil {
			f.add(at+".name", "there is no volume %q", m.Name)
			continue
		}
		if m.MountPath == "" {
			f.add(at+".mountPath", "it is empty")
		}
		switch {
		case m.SubPath != "" && m.SubPathExpr != "":
			f.add(at+".subPathExpr", "subPath stands beside it: a mount has one of them")
		case m.SubPath != "" && !filepath.IsLocal(m.SubPath):
			f.add(at+".subPath", "%q leads out of the volume", m.SubPath)
		}
		validateMountModes(f, at, m, c)
		for n, option := range m.BindMountOptions {
			if !slices.Contains([]string{"noexec", "nodev", "nosuid"}, option) || v.Image != nil {
				f.add(fmt.Sprintf("%s.bindMountOptions[%d]", at, n), "%q is none of noexec, nodev, nosuid, or this is an image", option)
			}
		}
	}
}

func validateMountModes(f *faults, at string, m *corev1.VolumeMount, c *corev1.Container) {
	if p := m.MountPropagation; p != nil {
		switch *p {
		case corev1.MountPropagationNone, corev1.MountPropagationHostToContainer:
		case corev1.MountPropagationBidirectional:
			if !isTrue(c.SecurityContext.Privileged) {
				f.add(at+".mountPropagation", "Bidirectional is for privileged containers")
			}
		default:
			f.add(at+".mountPropagation", "%q is none of None, HostToContainer, Bidirectional", *p)
		}
	}
	r := m.RecursiveReadOnly
	if r == nil {
		return
	}
	switch *r {
	case corev1.RecursiveReadOnlyDisabled:
		return
	case corev1.RecursiveReadOnlyIfPossible, corev1.RecursiveReadOnlyEnabled:
	default:
		f.add(at+".recursiveReadOnly", "%q is none of Disabled, IfPossible, Enabled", *r)
	}
	if !m.ReadOnly || (m.MountPropagation != nil && *m.MountPropagation != corev1.MountPropagationNone) {
		f.add(at+".recursiveReadOnly", "it wants readOnly, and no mountPropagation")
	}
}
