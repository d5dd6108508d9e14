package podyaml

import (
	"fmt"
	"path"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berthrun/berth/internal/cli/podyaml/document"
)

// bindClaims finds the volumes of the file that the pod's claims are bound to: the one
// that a claim names, or the first of the claim's storage class that is large enough.
// A claim without one is a directory of its name.
func (b *Bundle) bindClaims(docs *documents) error {
	b.claims = map[string]*corev1.PersistentVolume{}
	for i := range b.Pod.Spec.Volumes {
		source := b.Pod.Spec.Volumes[i].PersistentVolumeClaim
		if source == nil {
			continue
		}
		for _, claim := range docs.claims {
			if claim.Name != source.ClaimName || !sameNamespace(claim.Namespace, b.Pod.Namespace) {
				continue
			}
			volume, err := docs.bind(claim, b.Pod.Namespace)
			if err != nil {
				return err
			}
			if volume != nil {
				b.claims[claim.Name] = volume
			}
		}
	}
	return nil
}

// bind finds the volume of a claim in a namespace, nil where the claim gets a directory
// of its own.
func (d *documents) bind(claim *corev1.PersistentVolumeClaim, namespace string) (*corev1.PersistentVolume, error) {
	f := document.Faults{Place: d.places[claim]}
	if mode := claim.Spec.VolumeMode; mode != nil && *mode != corev1.PersistentVolumeFilesystem {
		f.Add("spec.volumeMode", "%q: only Filesystem is honoured", *mode)
		return nil, f.Err()
	}
	for _, volume := range d.volumes {
		if !matches(claim, namespace, volume) {
			continue
		}
		if hostDirectory(volume) == "" {
			f = document.Faults{Place: d.places[volume]}
			f.Add("spec", "only hostPath and local volumes, with an absolute path, are honoured")
			return nil, f.Err()
		}
		if at := volume.Spec.HostPath; at != nil && at.Type == nil {
			at.Type = new(corev1.HostPathUnset)
		}
		return volume, nil
	}
	if claim.Spec.VolumeName != "" {
		f.Add("spec.volumeName", "there is no PersistentVolume %q in the file", claim.Spec.VolumeName)
	}
	return nil, f.Err()
}

func matches(claim *corev1.PersistentVolumeClaim, namespace string, volume *corev1.PersistentVolume) bool {
	if claim.Spec.VolumeName != "" {
		return claim.Spec.VolumeName == volume.Name
	}
	if ref := volume.Spec.ClaimRef; ref != nil {
		return ref.Name == claim.Name && sameNamespace(ref.Namespace, namespace)
	}
	if mode := volume.Spec.VolumeMode; mode != nil && *mode != corev1.PersistentVolumeFilesystem {
		return false
	}
	if selector, err := metav1.LabelSelectorAsSelector(claim.Spec.Selector); claim.Spec.Selector != nil &&
		(err != nil || !selector.Matches(labels.Set(volume.Labels))) {
		return false
	}
	class := ""
	if claim.Spec.StorageClassName != nil {
		class = *claim.Spec.StorageClassName
	}
	wanted, offered := claim.Spec.Resources.Requests[corev1.ResourceStorage], volume.Spec.Capacity[corev1.ResourceStorage]
	return class == volume.Spec.StorageClassName && offered.Cmp(wanted) >= 0
}

// hostDirectory is where a volume lies on this host, "" for one that lies elsewhere.
func hostDirectory(volume *corev1.PersistentVolume) string {
	at := ""
	switch {
	case volume.Spec.HostPath != nil:
		at = volume.Spec.HostPath.Path
	case volume.Spec.Local != nil:
		at = volume.Spec.Local.Path
	}
	if !path.IsAbs(at) {
		return ""
	}
	return at
}

// claimPath is the directory of a claim: the volume's that it is bound to, or one that
// keeps what is in it when the pod goes.
func (b *Bundle) claimPath(name string, facts *Facts) string {
	if volume := b.claims[name]; volume != nil {
		return hostDirectory(volume)
	}
	return path.Join(facts.ClaimDir, fmt.Sprintf("%s_%s", b.Pod.Namespace, name))
}

// hostPath is the path of the host that a volume of the pod is: a hostPath, also one that a claim
// is bound to. It is nil for other volumes.
func (b *Bundle) hostPath(v *corev1.Volume) *corev1.HostPathVolumeSource {
	if v.PersistentVolumeClaim == nil {
		return v.HostPath
	}
	volume := b.claims[v.PersistentVolumeClaim.ClaimName]
	if volume == nil {
		return nil
	}
	return volume.Spec.HostPath
}

// isReadOnlyClaim reports whether a volume is a claim that the pod cannot write to. As a kubelet has it, the pod
// changes neither its group nor its labels.
func isReadOnlyClaim(v *corev1.Volume) bool {
	return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ReadOnly
}
