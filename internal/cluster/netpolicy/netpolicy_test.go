package netpolicy_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/berthrun/berth/internal/cluster/netpolicy"
	"github.com/berthrun/berth/internal/cluster/storage"
	"github.com/berthrun/berth/internal/errs"
)

// TestManifest: each document has a kind that Kubernetes knows, no unknown fields, and the names that
// the programs use. The account may read what policies need, and nothing else.
func TestManifest(t *testing.T) {
	text, err := netpolicy.Manifest("[fd00::1]:6443")
	if err != nil {
		t.Fatal(err)
	}
	var account corev1.ServiceAccount
	var role rbacv1.ClusterRole
	var binding rbacv1.ClusterRoleBinding
	var set appsv1.DaemonSet
	into := []any{&account, &role, &binding, &set}
	docs := strings.Split(text, "\n---\n")
	if len(docs) != len(into) {
		t.Fatalf("%d documents", len(docs))
	}
	for i, doc := range docs {
		if err := yaml.UnmarshalStrict([]byte(doc), into[i]); err != nil {
			t.Errorf("document %d: %v", i, err)
		}
	}
	if binding.RoleRef.Name != role.Name || binding.Subjects[0].Name != account.Name || binding.Subjects[0].Namespace != account.Namespace {
		t.Errorf("%+v", binding)
	}
	for _, rule := range role.Rules {
		if !slices.Equal(rule.Verbs, []string{"list", "watch"}) || slices.Contains(rule.Resources, "secrets") || strings.Contains(strings.Join(rule.Resources, ""), "*") {
			t.Errorf("%+v", rule)
		}
	}
	spec := set.Spec.Template.Spec
	container := spec.Containers[0]
	if spec.ServiceAccountName != account.Name || !spec.HostNetwork || container.Image != storage.Image || container.SecurityContext.Privileged != nil {
		t.Errorf("%+v", spec)
	}
	env := map[string]string{}
	for _, e := range container.Env {
		env[e.Name] = e.Value
	}
	if env["KUBERNETES_SERVICE_HOST"] != "fd00::1" || env["KUBERNETES_SERVICE_PORT"] != "6443" {
		t.Errorf("%v", env)
	}
	if _, err := netpolicy.Manifest("nothing"); !errors.Is(err, errs.Invalid) {
		t.Error(err)
	}
}
