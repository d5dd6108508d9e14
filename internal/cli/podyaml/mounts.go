package podyaml

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/podyaml/document"
	"github.com/berthrun/berth/internal/cli/podyaml/podspec"
	"github.com/berthrun/berth/internal/cli/podyaml/security"
	"github.com/berthrun/berth/internal/cli/podyaml/source"
)

// SubPath is a part of a volume that containers can change: it must be found without
// following what they may have planted in it. It is bound to Target, which is what the
// container mounts.
type SubPath struct {
	Volume, Path, Target string
}

// mounts makes the mounts of a container whose environment has the given values.
func (b *Bundle) mounts(c *corev1.Container, attempt uint32, values map[string]string, facts *Facts) ([]*runtimeapi.Mount, []SubPath, error) {
	var mounts []*runtimeapi.Mount
	var subs []SubPath
	for i := range c.VolumeMounts {
		m := &c.VolumeMounts[i]
		sub, err := subPath(m, values)
		if err != nil {
			return nil, nil, &document.FieldError{Field: fmt.Sprintf("volumeMounts[%d].subPathExpr", i), Err: err}
		}
		v := podspec.Volume(b.Pod, m.Name)
		mount := &runtimeapi.Mount{
			ContainerPath: m.MountPath,
			// What we wrote for the pod is not for it to change.
			Readonly:     m.ReadOnly || source.IsWritten(v) || v.Image != nil || isReadOnlyClaim(v),
			MountOptions: m.BindMountOptions,
			Propagation:  propagation(m.MountPropagation),
			// As a kubelet has it: what is the host's keeps its labels.
			SelinuxRelabel: b.hostPath(v) == nil && v.Image == nil && !isReadOnlyClaim(v),
		}
		if m.RecursiveReadOnly != nil && mount.Readonly {
			mount.RecursiveReadOnly = *m.RecursiveReadOnly == corev1.RecursiveReadOnlyEnabled ||
				(*m.RecursiveReadOnly == corev1.RecursiveReadOnlyIfPossible && facts.RecursiveReadOnly)
		}
		switch {
		case v.Image != nil:
			mount.Image = &runtimeapi.ImageSpec{Image: v.Image.Reference, UserSpecifiedImage: v.Image.Reference}
			mount.ImageSubPath = sub
		case sub == "":
			mount.HostPath = b.volumePath(v, facts)
		case source.IsWritten(v):
			mount.HostPath = filepath.Join(b.volumePath(v, facts), sub)
		default:
			mount.HostPath = filepath.Join(facts.Dir, "subpaths", c.Name, strconv.FormatUint(uint64(attempt), 10), strconv.Itoa(i))
			subs = append(subs, SubPath{Volume: b.volumePath(v, facts), Path: sub, Target: mount.HostPath})
		}
		if v.Image == nil {
			mount.UidMappings, mount.GidMappings = security.IDMappings(b.Pod, facts.security()), security.IDMappings(b.Pod, facts.security())
		}
		mounts = append(mounts, mount)
	}
	return mounts, subs, nil
}

// subPath is what a mount takes of its volume, "" for all of it. A variable that is not
// set is a fault: else its mount would be another than the file's author means.
func subPath(m *corev1.VolumeMount, values map[string]string) (string, error) {
	if m.SubPathExpr == "" {
		return m.SubPath, nil
	}
	var missing error
	text := source.ExpandFunc(m.SubPathExpr, func(name string) (string, bool) {
		value, there := values[name]
		if !there {
			missing = errors.Join(missing, fmt.Errorf("variable %q is not set", name))
		}
		return value, there
	})
	if missing == nil && !filepath.IsLocal(text) {
		missing = fmt.Errorf("%q leads out of the volume", text)
	}
	return text, missing
}

func propagation(mode *corev1.MountPropagationMode) runtimeapi.MountPropagation {
	if mode == nil {
		return runtimeapi.MountPropagation_PROPAGATION_PRIVATE
	}
	switch *mode {
	case corev1.MountPropagationHostToContainer:
		return runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER
	case corev1.MountPropagationBidirectional:
		return runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL
	}
	return runtimeapi.MountPropagation_PROPAGATION_PRIVATE
}

// ownMounts are those that a kubelet adds: the pod's hosts file, and the file for the
// container's termination message. A volume that the pod mounts there takes precedence.
func (b *Bundle) ownMounts(c *corev1.Container, attempt uint32, facts *Facts) []*runtimeapi.Mount {
	var mounts []*runtimeapi.Mount
	for path, source := range map[string]string{"/etc/hosts": HostsFile(facts.Dir), c.TerminationMessagePath: MessageFile(facts.Dir, c.Name, attempt)} {
		if path == "" || mountsAt(c, path) {
			continue
		}
		mounts = append(mounts, &runtimeapi.Mount{
			ContainerPath: path, HostPath: source, SelinuxRelabel: true,
			Readonly:    path == "/etc/hosts" && podspec.IsTrue(c.SecurityContext.ReadOnlyRootFilesystem),
			UidMappings: security.IDMappings(b.Pod, facts.security()), GidMappings: security.IDMappings(b.Pod, facts.security()),
		})
	}
	if len(mounts) == 2 && mounts[0].ContainerPath != "/etc/hosts" {
		mounts[0], mounts[1] = mounts[1], mounts[0]
	}
	return mounts
}

func mountsAt(c *corev1.Container, path string) bool {
	for i := range c.VolumeMounts {
		if strings.TrimRight(c.VolumeMounts[i].MountPath, "/") == path {
			return true
		}
	}
	return false
}

// HostsFile is the pod's hosts file.
func HostsFile(dir string) string { return filepath.Join(dir, "etc-hosts") }

// MessageFile is the file for the termination message of an attempt of a container.
func MessageFile(dir, container string, attempt uint32) string {
	return filepath.Join(dir, "messages", container, strconv.FormatUint(uint64(attempt), 10))
}
