package provisioner

import (
	"context"
	"fmt"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berthrun/berth/internal/cluster/storage"
	"github.com/berthrun/berth/internal/errs"
)

// volume removes a volume whose claim is gone: the directory first, because nothing names it once
// the volume is gone. The directory of a removed node is gone with the node.
func (p *provisioner) volume(ctx context.Context, v *corev1.PersistentVolume) error {
	if v.Annotations[annProvisionedBy] != storage.Provisioner || v.Status.Phase != corev1.VolumeReleased ||
		v.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete {
		return nil
	}
	node := v.Annotations[annNode]
	if node != p.node {
		if gone, err := p.gone(ctx, node); err != nil || !gone {
			return err
		}
	} else if err := p.removeDir(v); err != nil {
		p.recordEvent(ctx, volumeEvent(v, corev1.EventTypeWarning, "VolumeFailedDelete", err.Error()))
		return err
	}
	if err := p.release(ctx, v); err != nil {
		return fmt.Errorf("cannot delete the volume %s: %w", v.Name, err)
	}
	p.log.Info("removed", "volume", v.Name, "node", node)
	return nil
}

// removeDir removes the directory of a volume, and nothing outside of it, whatever path the volume
// has.
func (p *provisioner) removeDir(v *corev1.PersistentVolume) error {
	if v.Spec.Local == nil {
		return nil
	}
	at := path.Clean(v.Spec.Local.Path)
	if path.Dir(at) != storage.Dir {
		return fmt.Errorf("the volume %s is at %s, which is none of %s; remove what is there and the finalizer %s by hand: %w", v.Name, at, storage.Dir, finalizer, errs.Invalid)
	}
	if err := p.dir.RemoveAll(path.Base(at)); err != nil {
		return fmt.Errorf("cannot remove the directory of the volume %s: %w", v.Name, err)
	}
	return nil
}

// release removes the finalizer, and deletes the volume.
func (p *provisioner) release(ctx context.Context, v *corev1.PersistentVolume) error {
	if slices.Contains(v.Finalizers, finalizer) {
		changed := v.DeepCopy()
		changed.Finalizers = slices.DeleteFunc(changed.Finalizers, func(f string) bool { return f == finalizer })
		if err := p.api.UpdateVolume(ctx, changed); err != nil {
			return ignoreNotFound(err)
		}
	}
	return ignoreNotFound(p.api.DeleteVolume(ctx, v.Name, v.UID))
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
