package storage_test

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/yaml"

	"github.com/berthrun/berth/internal/cluster/storage"
)

// TestManifest: each document has a kind that Kubernetes knows, no unknown fields, and the names
// that the programs use.
func TestManifest(t *testing.T) {
	var class storagev1.StorageClass
	var account corev1.ServiceAccount
	var role rbacv1.ClusterRole
	var binding rbacv1.ClusterRoleBinding
	var set appsv1.DaemonSet
	into := []any{&class, &account, &role, &binding, &set}
	docs := strings.Split(storage.Manifest(), "\n---\n")
	if len(docs) != len(into) {
		t.Fatalf("%d documents", len(docs))
	}
	for i, doc := range docs {
		if err := yaml.UnmarshalStrict([]byte(doc), into[i]); err != nil {
			t.Errorf("document %d: %v", i, err)
		}
	}
	if class.Name != storage.Class || class.Provisioner != storage.Provisioner || *class.VolumeBindingMode != storagev1.VolumeBindingWaitForFirstConsumer ||
		*class.ReclaimPolicy != corev1.PersistentVolumeReclaimDelete || class.Annotations["storageclass.kubernetes.io/is-default-class"] != "true" {
		t.Errorf("%+v", class)
	}
	if binding.RoleRef.Name != role.Name || binding.Subjects[0].Name != account.Name || binding.Subjects[0].Namespace != account.Namespace {
		t.Errorf("%+v", binding)
	}
	for _, rule := range role.Rules {
		for _, verb := range append(rule.Verbs, rule.Resources...) {
			if strings.Contains(verb, "*") {
				t.Errorf("%+v allows everything", rule)
			}
		}
	}
	spec := set.Spec.Template.Spec
	container := spec.Containers[0]
	if spec.ServiceAccountName != account.Name || container.Image != storage.Image || container.VolumeMounts[1].MountPath != storage.Dir || spec.Volumes[1].HostPath.Path != storage.Dir {
		t.Errorf("%+v", spec)
	}
}
