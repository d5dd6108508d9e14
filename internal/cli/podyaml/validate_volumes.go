package podyaml

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berthrun/berth/internal/cli/podyaml/document"
	"github.com/berthrun/berth/internal/cli/podyaml/podspec"
	"github.com/berthrun/berth/internal/cli/podyaml/resources"
	"github.com/berthrun/berth/internal/cli/podyaml/source"
)

func (b *Bundle) validateVolumes(f *document.Faults) {
	names := map[string]bool{}
	for i := range b.Pod.Spec.Volumes {
		v, field := &b.Pod.Spec.Volumes[i], fmt.Sprintf("spec.volumes[%d]", i)
		for _, why := range validation.IsDNS1123Label(v.Name) {
			f.Add(field+".name", "%q: %s", v.Name, why)
		}
		if names[v.Name] {
			f.Add(field+".name", "%q is the name of two volumes", v.Name)
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
			f.Add(field, "a volume has one source, this has %d", sources)
			continue
		}
		b.validateSource(f, field, v)
	}
}

func (b *Bundle) validateSource(f *document.Faults, field string, v *corev1.Volume) {
	switch {
	case v.EmptyDir != nil:
		b.validateEmptyDir(f, field+".emptyDir", v)
	case v.HostPath != nil:
		if !path.IsAbs(v.HostPath.Path) {
			f.Add(field+".hostPath.path", "%q is not absolute", v.HostPath.Path)
		}
		if !slices.Contains(hostPathTypes(), *v.HostPath.Type) {
			f.Add(field+".hostPath.type", "%q is unknown", *v.HostPath.Type)
		}
	case v.PersistentVolumeClaim != nil:
		for _, why := range validation.IsDNS1123Subdomain(v.PersistentVolumeClaim.ClaimName) {
			f.Add(field+".persistentVolumeClaim.claimName", "%q: %s", v.PersistentVolumeClaim.ClaimName, why)
		}
	case v.Image != nil:
		if v.Image.Reference == "" {
			f.Add(field+".image.reference", "it is empty")
		}
		validatePullPolicy(f, field+".image.pullPolicy", v.Image.PullPolicy)
	case source.IsWritten(v):
		if _, err := b.Files(v, &source.Node{}); err != nil {
			f.Add(field, "%v", err)
		}
	}
}

func (b *Bundle) validateEmptyDir(f *document.Faults, field string, v *corev1.Volume) {
	source := v.EmptyDir
	switch m := source.Medium; {
	case m == corev1.StorageMediumDefault, m == corev1.StorageMediumMemory:
	case strings.HasPrefix(string(m), string(corev1.StorageMediumHugePages)):
		if _, err := resources.PageSize(b.Pod, v); err != nil {
			f.Add(field+".medium", "%v", err)
		}
	default:
		f.Add(field+".medium", "%q is not honoured", m)
	}
	if source.SizeLimit != nil && source.SizeLimit.Sign() < 0 {
		f.Add(field+".sizeLimit", "it is negative")
	}
	if source.Mode != nil && (*source.Mode < 0 || *source.Mode > 0o7777) {
		f.Add(field+".mode", "%o is not a mode", *source.Mode)
	}
}

func hostPathTypes() []corev1.HostPathType {
	return []corev1.HostPathType{
		corev1.HostPathUnset, corev1.HostPathDirectoryOrCreate, corev1.HostPathDirectory, corev1.HostPathFileOrCreate,
		corev1.HostPathFile, corev1.HostPathSocket, corev1.HostPathCharDev, corev1.HostPathBlockDev,
	}
}

func validatePullPolicy(f *document.Faults, field string, p corev1.PullPolicy) {
	switch p {
	case "", corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever:
	default:
		f.Add(field, "%q is none of Always, IfNotPresent, Never", p)
	}
}

func (b *Bundle) validateMounts(f *document.Faults, field string, c *corev1.Container) {
	for i := range c.VolumeMounts {
		m := &c.VolumeMounts[i]
		at := fmt.Sprintf("%s.volumeMounts[%d]", field, i)
		v := podspec.Volume(b.Pod, m.Name)
		if v == nil {
			f.Add(at+".name", "there is no volume %q", m.Name)
			continue
		}
		if m.MountPath == "" {
			f.Add(at+".mountPath", "it is empty")
		}
		switch {
		case m.SubPath != "" && m.SubPathExpr != "":
			f.Add(at+".subPathExpr", "a mount has either subPath or subPathExpr")
		case m.SubPath != "" && !filepath.IsLocal(m.SubPath):
			f.Add(at+".subPath", "%q leads out of the volume", m.SubPath)
		}
		validateMountModes(f, at, m, c)
		for n, option := range m.BindMountOptions {
			if !slices.Contains([]string{"noexec", "nodev", "nosuid"}, option) || v.Image != nil {
				f.Add(fmt.Sprintf("%s.bindMountOptions[%d]", at, n), "%q is none of noexec, nodev, nosuid, or this is an image", option)
			}
		}
	}
}

func validateMountModes(f *document.Faults, at string, m *corev1.VolumeMount, c *corev1.Container) {
	if p := m.MountPropagation; p != nil {
		switch *p {
		case corev1.MountPropagationNone, corev1.MountPropagationHostToContainer:
		case corev1.MountPropagationBidirectional:
			if !podspec.IsTrue(c.SecurityContext.Privileged) {
				f.Add(at+".mountPropagation", "Bidirectional is for privileged containers")
			}
		default:
			f.Add(at+".mountPropagation", "%q is none of None, HostToContainer, Bidirectional", *p)
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
		f.Add(at+".recursiveReadOnly", "%q is none of Disabled, IfPossible, Enabled", *r)
	}
	if !m.ReadOnly || (m.MountPropagation != nil && *m.MountPropagation != corev1.MountPropagationNone) {
		f.Add(at+".recursiveReadOnly", "it needs readOnly, and no mountPropagation")
	}
}
