package config

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
)

const edited = ourHead + `name: dev
nodes: [{image: "a:1"}, {role: worker, image: "b:1"}, {role: worker, name: worker3}]
pools: [{name: web, count: 2}]
`

func containers(c *Cluster) string {
	var names []string
	for _, n := range c.Nodes {
		names = append(names, c.ContainerName(n))
	}
	return strings.Join(names, " ")
}

func TestWith(t *testing.T) {
	c, err := Load("f", []byte(edited), Options{})
	if err != nil {
		t.Fatal(err)
	}
	c.FromKind, c.Balanced = true, true
	const all = "dev-control-plane dev-worker dev-worker3"
	for want, a := range map[string]Addition{
		all + " dev-worker2 dev-worker4 dev-web dev-web2": {Count: 2},
		all + " dev-control-plane2 dev-web dev-web2":      {Count: 1, Role: ControlPlane},
		all + " dev-db dev-db2 dev-web dev-web2":          {Count: 2, Name: "db", Image: "c:1", Labels: map[string]string{"a": "b"}},
		all + " dev-web dev-web2 dev-web3":                {Count: 1, Pool: "web"},
	} {
		got, err := c.With(a)
		if err != nil || containers(got) != want || !got.FromKind || !got.Balanced {
			t.Errorf("%+v: %v %q, want %q", a, err, containers(got), want)
			continue
		}
		image := map[string]string{"": "b:1", string(ControlPlane): "a:1"}[string(a.Role)]
		if a.Image != "" {
			image = a.Image
		}
		if n := got.Nodes[3]; n.Pool == "" && (n.Image != image || n.Labels["a"] != a.Labels["a"]) {
			t.Errorf("%+v became %+v, want image %s", a, n, image)
		}
	}
	if len(c.Nodes) != 5 || c.Pools[0].Size() != 2 {
		t.Errorf("what was edited is %+v", c)
	}
	for want, a := range map[string]Addition{
		"0 nodes":                      {},
		"has no pool \"db\"":           {Count: 1, Pool: "db"},
		"are like its others":          {Count: 1, Pool: "web", Role: Worker},
		`"dev-worker": is the name of`: {Count: 1, Name: "worker"},
		"is not an image name":         {Count: 1, Image: "A B"},
		"has at most 63":               {Count: 1, Name: strings.Repeat("a", 60)},
	} {
		if _, err := c.With(a); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", a, err, want)
		}
	}
}

func TestWithout(t *testing.T) {
	c, err := Load("f", []byte(edited), Options{})
	if err != nil {
		t.Fatal(err)
	}
	for names, want := range map[string]string{
		"dev-worker":                      "dev-control-plane dev-worker3 dev-web dev-web2",
		"dev-web2 dev-worker3":            "dev-control-plane dev-worker dev-web",
		"dev-web dev-web2 dev-worker":     "dev-control-plane dev-worker3",
		"dev-worker dev-worker3 dev-web2": "dev-control-plane dev-web",
	} {
		got, err := c.Without(strings.Fields(names))
		if err != nil || containers(got) != want {
			t.Errorf("without %s: %v %q, want %q", names, err, containers(got), want)
			continue
		}
		again, err := got.With(Addition{Count: 1, Name: "x"})
		if err != nil || !slices.Contains(strings.Fields(containers(again)), "dev-x") {
			t.Errorf("without %s, and one more: %v", names, err)
		}
	}
	for names, want := range map[string]error{"dev-worker2": errs.NotFound, "dev-web": errs.Invalid, "worker": errs.NotFound} {
		if _, err := c.Without(strings.Fields(names)); !errors.Is(err, want) {
			t.Errorf("without %s: %v, want %v", names, err, want)
		}
	}
	// The last control plane: edits run the same checks as any description.
	if got, err := c.Without([]string{"dev-control-plane"}); err == nil || !strings.Contains(err.Error(), "at least one control-plane node") {
		t.Errorf("without a control plane: %v, %v", got, err)
	}
	alone, err := Load("f", []byte(ourHead+"name: dev\n"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := alone.Without([]string{"dev-control-plane"}); err == nil || !strings.Contains(err.Error(), "berth cluster delete") {
		t.Errorf("without any node: %v", err)
	}
}
