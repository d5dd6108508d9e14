package provisioner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthrun/berth/internal/cluster/storage"
)

// Annotations that Kubernetes and provisioners exchange.
const (
	annProvisioner     = "volume.kubernetes.io/storage-provisioner"
	annBetaProvisioner = "volume.beta.kubernetes.io/storage-provisioner"
	annSelectedNode    = "volume.kubernetes.io/selected-node"
	annProvisionedBy   = "pv.kubernetes.io/provisioned-by"
)

const (
	// annNode is the node that a volume is on: the node selector of the volume uses a label, whose
	// value may differ.
	annNode = "berth.run/node"
	// finalizer keeps a volume that somebody deletes until its directory is gone.
	finalizer = "berth.run/local-volume"
)

// claim serves a claim of this node, and reschedules a claim of a node that is gone.
func (p *provisioner) claim(ctx context.Context, c *corev1.PersistentVolumeClaim) error {
	asked := c.Annotations[annProvisioner]
	if asked == "" {
		asked = c.Annotations[annBetaProvisioner]
	}
	if asked != storage.Provisioner || c.Spec.VolumeName != "" || c.DeletionTimestamp != nil {
		return nil
	}
	switch node := c.Annotations[annSelectedNode]; node {
	case p.node:
		return p.serveClaim(ctx, c)
	case "":
		return p.checkBinding(ctx, c)
	default:
		return p.reschedule(ctx, c, node)
	}
}

// serveClaim creates directory and volume.
func (p *provisioner) serveClaim(ctx context.Context, c *corev1.PersistentVolumeClaim) error {
	if why := refusal(c); why != "" {
		p.recordEvent(ctx, claimEvent(c, corev1.EventTypeWarning, "ProvisioningFailed", why))
		return nil
	}
	class, err := p.class(ctx, c)
	if err != nil {
		return err
	}
	node, err := p.api.Node(ctx, p.node)
	if err != nil {
		return fmt.Errorf("cannot read the node %s: %w", p.node, err)
	}
	name := "pvc-" + string(c.UID)
	if err := p.makeDir(name); err != nil {
		p.recordEvent(ctx, claimEvent(c, corev1.EventTypeWarning, "ProvisioningFailed", err.Error()))
		return err
	}
	err = p.api.CreateVolume(ctx, volumeOf(c, class, node, name))
	if apierrors.IsAlreadyExists(err) {
		return nil // and is about to be bound
	}
	if err != nil {
		err = fmt.Errorf("cannot create the volume %s: %w", name, err)
		p.recordEvent(ctx, claimEvent(c, corev1.EventTypeWarning, "ProvisioningFailed", err.Error()))
		return err
	}
	p.log.Info("made", "volume", name, "claim", c.Namespace+"/"+c.Name)
	p.recordEvent(ctx, claimEvent(c, corev1.EventTypeNormal, "ProvisioningSucceeded", "made the volume "+name+" on "+p.node))
	return nil
}

func (p *provisioner) class(ctx context.Context, c *corev1.PersistentVolumeClaim) (*storagev1.StorageClass, error) {
	name := ""
	if c.Spec.StorageClassName != nil {
		name = *c.Spec.StorageClassName
	}
	class, err := p.api.Class(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("cannot read the StorageClass %q: %w", name, err)
	}
	return class, nil
}

// refusal says why a directory cannot serve a claim; "" if it can.
func refusal(c *corev1.PersistentVolumeClaim) string {
	if c.Spec.VolumeMode != nil && *c.Spec.VolumeMode == corev1.PersistentVolumeBlock {
		return storage.Provisioner + " makes directories and no block devices; want volumeMode: Filesystem"
	}
	for _, mode := range c.Spec.AccessModes {
		if !slices.Contains([]corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadWriteOncePod}, mode) {
			return fmt.Sprintf("%s cannot give %s: a directory is on one node; want ReadWriteOnce or ReadWriteOncePod", storage.Provisioner, mode)
		}
	}
	switch {
	case c.Spec.Selector != nil:
		return storage.Provisioner + " makes volumes for a claim, which have no labels; leave out its selector"
	case c.Spec.DataSource != nil || c.Spec.DataSourceRef != nil:
		return storage.Provisioner + " makes empty volumes only; leave out dataSource and dataSourceRef"
	}
	return ""
}

// checkBinding reports a class with which no node is ever chosen.
func (p *provisioner) checkBinding(ctx context.Context, c *corev1.PersistentVolumeClaim) error {
	class, err := p.class(ctx, c)
	if err != nil {
		return err
	}
	if mode := class.VolumeBindingMode; mode == nil || *mode == storagev1.VolumeBindingImmediate {
		p.recordEvent(ctx, claimEvent(c, corev1.EventTypeWarning, "ProvisioningFailed",
			fmt.Sprintf("no scheduler chooses the node of a volume of the StorageClass %s; want volumeBindingMode: WaitForFirstConsumer in it", class.Name)))
	}
	return nil
}

// reschedule lets the scheduler choose again if the chosen node is gone.
func (p *provisioner) reschedule(ctx context.Context, c *corev1.PersistentVolumeClaim, node string) error {
	gone, err := p.gone(ctx, node)
	if err != nil || !gone {
		return err
	}
	changed := c.DeepCopy()
	delete(changed.Annotations, annSelectedNode)
	err = p.api.UpdateClaim(ctx, changed)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // another node was faster, or the claim is gone
	}
	if err != nil {
		return fmt.Errorf("cannot take the claim %s/%s from the node %s, which is gone: %w", c.Namespace, c.Name, node, err)
	}
	p.recordEvent(ctx, claimEvent(c, corev1.EventTypeNormal, "ProvisioningReschedule", "the node "+node+" is gone; another one is chosen"))
	return nil
}

// gone reports whether the cluster has no such node any more.
func (p *provisioner) gone(ctx context.Context, node string) (bool, error) {
	_, err := p.api.Node(ctx, node)
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot read the node %s: %w", node, err)
	}
	return false, nil
}

// makeDir creates the directory of a volume, for any user that its pods run as.
func (p *provisioner) makeDir(name string) error {
	err := p.dir.Mkdir(name, 0o777)
	if errors.Is(err, fs.ErrExist) {
		err = nil
	}
	if err == nil {
		err = p.dir.Chmod(name, 0o777) // whatever the umask is
	}
	if err != nil {
		return fmt.Errorf("cannot make the directory of the volume: %w", err)
	}
	return nil
}

// volumeOf is the volume for a claim on a node.
func volumeOf(c *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, node *corev1.Node, name string) *corev1.PersistentVolume {
	policy, mode := corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeFilesystem
	if class.ReclaimPolicy != nil {
		policy = *class.ReclaimPolicy
	}
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Finalizers: []string{finalizer},
			Annotations: map[string]string{annProvisionedBy: storage.Provisioner, annNode: node.Name},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: c.Spec.Resources.Requests[corev1.ResourceStorage]},
			AccessModes:                   c.Spec.AccessModes,
			VolumeMode:                    &mode,
			PersistentVolumeReclaimPolicy: policy,
			StorageClassName:              class.Name,
			MountOptions:                  class.MountOptions,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: path.Join(storage.Dir, name)}},
			ClaimRef: &corev1.ObjectReference{
				APIVersion: "v1", Kind: claimKind, Namespace: c.Namespace, Name: c.Name, UID: c.UID, ResourceVersion: c.ResourceVersion,
			},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node.Labels[corev1.LabelHostname]},
				}},
			}}}},
		},
	}
}
