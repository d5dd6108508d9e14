package provisioner

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthrun/berth/internal/cluster/storage"
)

// memory is an API in memory, with a node "a" and a class.
type memory struct {
	mode    storagev1.VolumeBindingMode
	claims  map[string]*corev1.PersistentVolumeClaim
	volumes map[string]*corev1.PersistentVolume
	events  map[string]string
	// fails is the name of a call that fails once.
	fails string
}

var errMemory = errors.New("the API has a bad day")

func (m *memory) fail(call string) error {
	if m.fails == call {
		m.fails = ""
		return errMemory
	}
	return nil
}

func absent(name string) error { return apierrors.NewNotFound(schema.GroupResource{}, name) }

func (m *memory) Class(_ context.Context, name string) (*storagev1.StorageClass, error) {
	if name != storage.Class {
		return nil, absent(name)
	}
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, VolumeBindingMode: &m.mode, MountOptions: []string{"noatime"}}, m.fail("class")
}

func (m *memory) Node(_ context.Context, name string) (*corev1.Node, error) {
	if name != "a" && name != "b" {
		return nil, absent(name)
	}
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: "host-" + name}}}, nil
}

func (m *memory) UpdateClaim(_ context.Context, c *corev1.PersistentVolumeClaim) error {
	m.claims[c.Name] = c
	return m.fail("update claim")
}

func (m *memory) CreateVolume(_ context.Context, v *corev1.PersistentVolume) error {
	if err := m.fail("create volume"); err != nil {
		return err
	}
	if m.volumes[v.Name] != nil {
		return apierrors.NewAlreadyExists(schema.GroupResource{}, v.Name)
	}
	m.volumes[v.Name] = v
	return nil
}

func (m *memory) UpdateVolume(_ context.Context, v *corev1.PersistentVolume) error {
	if err := m.fail("update volume"); err != nil {
		return err
	}
	if m.volumes[v.Name] == nil {
		return absent(v.Name)
	}
	m.volumes[v.Name] = v
	return nil
}

func (m *memory) DeleteVolume(_ context.Context, name string, uid types.UID) error {
	v := m.volumes[name]
	switch {
	case v == nil:
		return absent(name)
	case v.UID != uid:
		return apierrors.NewConflict(schema.GroupResource{}, name, nil)
	}
	if err := m.fail("delete volume"); err != nil {
		return err
	}
	if len(v.Finalizers) == 0 {
		delete(m.volumes, name)
	}
	return nil
}

func (m *memory) CreateEvent(_ context.Context, e *corev1.Event) error {
	if m.events[e.Name] != "" {
		return apierrors.NewAlreadyExists(schema.GroupResource{}, e.Name)
	}
	m.events[e.Name] = e.Reason + ": " + e.Message
	return nil
}

// said returns all events.
func (m *memory) said() string {
	var all []string
	for _, text := range m.events {
		all = append(all, text)
	}
	return strings.Join(all, "\n")
}

// of returns a provisioner of the node "a", with a directory of its own.
func of(t *testing.T) (*provisioner, *memory, string) {
	t.Helper()
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	m := &memory{mode: storagev1.VolumeBindingWaitForFirstConsumer, claims: map[string]*corev1.PersistentVolumeClaim{}, volumes: map[string]*corev1.PersistentVolume{}, events: map[string]string{}}
	return newProvisioner("a", root, m, slog.New(slog.DiscardHandler)), m, dir
}

// claimOf returns a claim that the scheduler has assigned to a node.
func claimOf(node string) *corev1.PersistentVolumeClaim {
	class := storage.Class
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "data", Namespace: "db", UID: "u1", Annotations: map[string]string{annProvisioner: storage.Provisioner, annSelectedNode: node}},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
}

// TestVolumeOfAClaim: the provisioner creates the directory of a claim, and removes it with the
// claim.
func TestVolumeOfAClaim(t *testing.T) {
	p, m, dir := of(t)
	for range 2 {
		if err := p.claim(t.Context(), claimOf("a")); err != nil {
			t.Fatal(err)
		}
	}
	v := m.volumes["pvc-u1"]
	if v == nil || len(m.events) != 1 || !strings.Contains(m.said(), "ProvisioningSucceeded") {
		t.Fatalf("%v, %v", m.volumes, m.events)
	}
	info, err := os.Stat(filepath.Join(dir, "pvc-u1"))
	if err != nil || info.Mode().Perm() != 0o777 {
		t.Errorf("the directory: %v, %v", info, err)
	}
	if v.Spec.Local.Path != "/var/lib/berth-volumes/pvc-u1" || v.Spec.ClaimRef.UID != "u1" || v.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete ||
		v.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0] != "host-a" || v.Spec.Capacity.Storage().String() != "1Gi" || v.Spec.MountOptions[0] != "noatime" {
		t.Errorf("%+v", v.Spec)
	}
	if err := os.MkdirAll(filepath.Join(dir, "pvc-u1", "deep", "er"), 0o700); err != nil {
		t.Fatal(err)
	}
	// The provisioner leaves bound claims and used volumes alone.
	bound := claimOf("a")
	bound.Spec.VolumeName = "pvc-u1"
	v.Status.Phase = corev1.VolumeBound
	if err := errors.Join(p.claim(t.Context(), bound), p.volume(t.Context(), v)); err != nil || len(m.volumes) != 1 {
		t.Errorf("%v, %v", err, m.volumes)
	}
	v.Status.Phase = corev1.VolumeReleased
	for _, fails := range []string{"update volume", "delete volume"} {
		m.fails = fails
		if err := p.volume(t.Context(), m.volumes["pvc-u1"]); !errors.Is(err, errMemory) {
			t.Errorf("%s: %v", fails, err)
		}
	}
	for range 2 {
		if err := p.volume(t.Context(), v); err != nil {
			t.Error(err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 || len(m.volumes) > 0 {
		t.Errorf("left: %v, %v, %v", left, m.volumes, err)
	}
}

// TestWhatIsNotOurs: claims and volumes of other provisioners and of other nodes do not change.
func TestWhatIsNotOurs(t *testing.T) {
	p, m, dir := of(t)
	for name, spoil := range map[string]func(c *corev1.PersistentVolumeClaim){
		"another provisioner": func(c *corev1.PersistentVolumeClaim) { c.Annotations[annProvisioner] = "other" },
		"another node":        func(c *corev1.PersistentVolumeClaim) { c.Annotations[annSelectedNode] = "b" },
		"no node yet":         func(c *corev1.PersistentVolumeClaim) { delete(c.Annotations, annSelectedNode) },
		"about to go":         func(c *corev1.PersistentVolumeClaim) { c.DeletionTimestamp = &metav1.Time{} },
	} {
		c := claimOf("a")
		spoil(c)
		if err := p.claim(t.Context(), c); err != nil || len(m.volumes)+len(m.claims)+len(m.events) > 0 {
			t.Errorf("%s: %v, %v, %v", name, err, m.volumes, m.events)
		}
	}
	if err := p.claim(t.Context(), claimOf("a")); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(v *corev1.PersistentVolume){
		"another provisioner": func(v *corev1.PersistentVolume) { v.Annotations[annProvisionedBy] = "other" },
		"another node":        func(v *corev1.PersistentVolume) { v.Annotations[annNode] = "b" },
		"to be kept": func(v *corev1.PersistentVolume) {
			v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		},
		"in use": func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeBound },
	} {
		v := m.volumes["pvc-u1"].DeepCopy()
		v.Status.Phase = corev1.VolumeReleased
		spoil(v)
		if err := p.volume(t.Context(), v); err != nil || len(m.volumes) != 1 {
			t.Errorf("%s: %v, %v", name, err, m.volumes)
		}
		if _, err := os.Stat(filepath.Join(dir, "pvc-u1")); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
}

// TestRefusals: a claim that a directory cannot satisfy is reported, and not retried.
func TestRefusals(t *testing.T) {
	block := corev1.PersistentVolumeBlock
	for want, spoil := range map[string]func(c *corev1.PersistentVolumeClaim, m *memory){
		"no block devices": func(c *corev1.PersistentVolumeClaim, _ *memory) { c.Spec.VolumeMode = &block },
		"cannot give ReadWriteMa": func(c *corev1.PersistentVolumeClaim, _ *memory) {
			c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
		},
		"leave out its selector": func(c *corev1.PersistentVolumeClaim, _ *memory) { c.Spec.Selector = &metav1.LabelSelector{} },
		"empty volumes only": func(c *corev1.PersistentVolumeClaim, _ *memory) {
			c.Spec.DataSource = &corev1.TypedLocalObjectReference{}
		},
		"WaitForFirstConsumer": func(c *corev1.PersistentVolumeClaim, m *memory) {
			delete(c.Annotations, annSelectedNode)
			m.mode = storagev1.VolumeBindingImmediate
		},
	} {
		p, m, dir := of(t)
		c := claimOf("a")
		spoil(c, m)
		for range 2 {
			if err := p.claim(t.Context(), c); err != nil {
				t.Errorf("%s: %v", want, err)
			}
		}
		if len(m.events) != 1 || !strings.Contains(m.said(), "ProvisioningFailed") || !strings.Contains(m.said(), want) || len(m.volumes) > 0 {
			t.Errorf("%s: %v, %v", want, m.events, m.volumes)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%s: left %v, %v", want, left, err)
		}
	}
}

// TestNodeIsGone: the claims of a removed node are rescheduled, and its volumes are deleted.
func TestNodeIsGone(t *testing.T) {
	p, m, _ := of(t)
	if err := p.claim(t.Context(), claimOf("gone")); err != nil {
		t.Fatal(err)
	}
	if c := m.claims["data"]; c == nil || c.Annotations[annSelectedNode] != "" || c.Annotations[annProvisioner] == "" {
		t.Errorf("%+v", c)
	}
	v := volumeOf(claimOf("a"), &storagev1.StorageClass{}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gone"}}, "pvc-u1")
	v.Status.Phase = corev1.VolumeReleased
	m.volumes[v.Name] = v
	if err := p.volume(t.Context(), v); err != nil || len(m.volumes) > 0 {
		t.Errorf("%v, %v", err, m.volumes)
	}
}

// TestPathOfAVolume: a volume object cannot make the provisioner use another directory than its
// own.
func TestPathOfAVolume(t *testing.T) {
	p, m, dir := of(t)
	if err := os.Mkdir(filepath.Join(dir, "other"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{"/etc", "/var/lib/berth-volumes", "/var/lib/berth-volumes/..", "/var/lib/berth-volumes/x/../../other", "other"} {
		v := volumeOf(claimOf("a"), &storagev1.StorageClass{}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, "pvc-u1")
		v.Status.Phase = corev1.VolumeReleased
		v.Spec.Local.Path = at
		if err := p.volume(t.Context(), v); err == nil || !strings.Contains(m.said(), "VolumeFailedDelete") {
			t.Errorf("%s: %v, %v", at, err, m.events)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "other")); err != nil {
		t.Error(err)
	}
}

// TestFailuresAreTriedAgain: failed calls are retried, and an existing directory is not an error.
func TestFailuresAreTriedAgain(t *testing.T) {
	p, m, _ := of(t)
	for _, fails := range []string{"class", "create volume"} {
		m.fails = fails
		if err := p.claim(t.Context(), claimOf("a")); !errors.Is(err, errMemory) {
			t.Errorf("%s: %v", fails, err)
		}
	}
	if err := p.claim(t.Context(), claimOf("a")); err != nil || len(m.volumes) != 1 {
		t.Errorf("%v, %v", err, m.volumes)
	}
}
