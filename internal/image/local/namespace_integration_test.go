//go:build integration

package local

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/berthrun/berth/internal/image"
)

// policies gives the store a directory of policies for namespaces, and returns it.
func (g *guarded) policies(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	rules := g.cfg.PullRules
	rules.PolicyDir = dir
	g.store.SetPullRules(rules)
	return dir
}

const acceptAll = `{"default": [{"type":"insecureAcceptAnything"}]}`

// TestPolicyOfANamespace: a namespace has its own policy instead of the node's, for pulls and for containers.
func TestPolicyOfANamespace(t *testing.T) {
	ctx := context.Background()
	g := newGuarded(t)
	dir := g.policies(t)
	strict := filepath.Join(dir, "strict.json")
	put(t, strict, must(t, g.policy))
	g.write(t, acceptAll)
	ref := g.host + "/team/app:v1"
	pull := func(namespace string) (string, error) {
		return g.store.PullFor(ctx, image.PullTarget{Namespace: namespace}, ref, image.Auth{}, nil)
	}
	_, err := pull("strict")
	refused(t, err, strict, "no signature was found")
	if sent := g.registry.Sent(g.img.Layers[0].Digest); sent > 0 {
		t.Errorf("%d bytes of a layer were fetched for a namespace that may not use the image", sent)
	}
	id, err := pull("open")
	if err != nil {
		t.Fatal(err)
	}

	// The image was pulled for another namespace.
	if err := g.store.Admit(ctx, "open", id, ref); err != nil {
		t.Error(err)
	}
	refused(t, g.store.Admit(ctx, "strict", id, ref), strict, "no signature was found", ref)
	g.sign(g.signer, g.img.Manifest.Digest)
	if err := g.store.Admit(ctx, "strict", id, ref); err != nil {
		t.Errorf("signed since: %v", err)
	}
	if _, err := pull("strict"); err != nil {
		t.Errorf("signed since: %v", err)
	}

	// A namespace may use what the node's policy rejects.
	g.write(t, `{"default": [{"type":"reject"}]}`)
	refused(t, g.store.Admit(ctx, "open", id, ref), g.policy, "reject")
	refused(t, g.store.Admit(ctx, "", id, ref), g.policy, "reject")
	if err := g.store.Admit(ctx, "strict", id, ref); err != nil {
		t.Error(err)
	}
	for namespace, file := range map[string]string{"strict": strict, "open": g.policy, "": g.policy} {
		e, err := g.store.Explain(ctx, image.PullTarget{Namespace: namespace}, ref, image.Auth{}, false)
		if err != nil || e.Admission.Policy.File != file {
			t.Errorf("the policy of namespace %q is shown as %+v, %v", namespace, e, err)
		}
	}
}

// TestWrongPoliciesOfNamespaces: what cannot be read refuses, and no name leads out of the directory.
func TestWrongPoliciesOfNamespaces(t *testing.T) {
	ctx := context.Background()
	g := newGuarded(t)
	dir := g.policies(t)
	g.write(t, acceptAll)
	id, err := g.pull("/team/app:v1")
	if err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(dir, "typo.json"), []byte(`{"default": [{"type":"reject"}], "typo": 1}`))
	if err := os.Symlink(filepath.Join(dir, "absent"), filepath.Join(dir, "gone.json")); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(filepath.Dir(dir), "outside.json"), []byte(acceptAll))
	decides := func(namespace string, parts ...string) {
		t.Helper()
		refused(t, g.store.Admit(ctx, namespace, id, ""), parts...)
		_, err := g.store.PullFor(ctx, image.PullTarget{Namespace: namespace}, g.host+"/team/app:v1", image.Auth{}, nil)
		refused(t, err, parts...)
	}
	decides("typo", "field typo: is unknown")
	decides("gone", "gone.json")
	decides("../outside", `"../outside" is not the name of a namespace`)
	decides("Team", `"Team" is not the name of a namespace`)
	if err := g.store.Admit(ctx, "other", id, ""); err != nil {
		t.Errorf("a namespace without a file: %v", err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	decides("other", "image.policy_dir", "namespace other", "no such file")
	if err := g.store.Admit(ctx, "", id, ""); err != nil {
		t.Errorf("without a namespace: %v", err)
	}
}

// TestPullsOfNamespacesAreNotShared: one that the policy refuses does not get the image of one that it accepts.
func TestPullsOfNamespacesAreNotShared(t *testing.T) {
	g := newGuarded(t)
	strict := filepath.Join(g.policies(t), "strict.json")
	put(t, strict, must(t, g.policy))
	g.write(t, acceptAll)
	var all sync.WaitGroup
	for i := range 8 {
		namespace := []string{"open", "strict"}[i%2]
		all.Go(func() {
			_, err := g.store.PullFor(t.Context(), image.PullTarget{Namespace: namespace}, g.host+"/team/app:v1", image.Auth{}, nil)
			if (err == nil) != (namespace == "open") || err != nil && !strings.Contains(fmt.Sprint(err), strict) {
				t.Errorf("%s: %v", namespace, err)
			}
		})
	}
	all.Wait()
}
