package plan

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/cluster/config"
)

const twoNodes = "nodes: [{}, {role: worker}]\n"

func shell(proxy string) Host {
	return Host{Engine: "podman", Env: map[string]string{"HTTPS_PROXY": proxy, "KIND_EXPERIMENTAL_CONTAINERD_SNAPSHOTTER": proxy}}
}

// bear returns the digests of a plan's containers. With older it returns them in the format of
// earlier versions of berth.
func bear(p *Plan, older bool) map[string]string {
	digests := map[string]string{}
	for _, c := range p.Containers {
		digests[c.Name] = c.Labels[LabelDigest]
		if older {
			digests[c.Name] = c.olderDigest()
		}
	}
	return digests
}

// TestOtherShell: a caller with another environment replaces no node.
func TestOtherShell(t *testing.T) {
	c := load(t, twoNodes)
	before := Make(c, shell("http://one:3128"))
	if diff := cmp.Diff(Changes{}, Make(c, shell("http://two:3128")).Against(bear(before, false), nil)); diff != "" {
		t.Error(diff)
	}
}

// TestOlderDigest: nodes that an earlier berth created are compared by the description that the
// cluster stores, from any shell.
func TestOlderDigest(t *testing.T) {
	made := bear(Make(load(t, twoNodes), shell("http://one:3128")), true)
	for name, digest := range made {
		if strings.HasPrefix(digest, digestForm) || len(digest) != 64 {
			t.Errorf("%s bore %q", name, digest)
		}
	}
	other := shell("http://two:3128")
	kept := Make(load(t, twoNodes), other)
	for text, want := range map[string]Changes{
		twoNodes: {},
		"nodes: [{}, {role: worker, extraPortMappings: [{containerPort: 1}]}]": {Replace: []int{1}},
		"nodes: [{}, {role: worker, image: \"other:1\"}]":                      {Replace: []int{1}},
	} {
		if diff := cmp.Diff(want, Make(load(t, text), other).Against(made, kept)); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
	}
	// Without a stored description, the nodes are unchanged if the environment is the same.
	if diff := cmp.Diff(Changes{}, Make(load(t, twoNodes), shell("http://one:3128")).Against(made, nil)); diff != "" {
		t.Error(diff)
	}
	// The previous version wrote this digest.
	const written = "031d9d3424472cb2c517d98191e6a83a4e179e46946478387a147f732c0df6ee"
	if got := made["berth-worker"]; got != written {
		t.Errorf("the digest of an earlier berth is %s, want %s", got, written)
	}
}

// TestDifferences: each field that causes a replacement is named.
func TestDifferences(t *testing.T) {
	before := Make(load(t, twoNodes), Host{})
	for text, want := range map[string]string{
		"role: worker": "",
		"role: worker, extraPortMappings: [{containerPort: 80, hostPort: 8080}]":         "extraPortMappings is 0.0.0.0:8080 to 80/TCP, and was none",
		"role: worker, image: \"other:1\"":                                               "image is other:1, and was localhost/berth/node:latest",
		"role: worker, extraMounts: [{hostPath: /a, containerPath: /b, readOnly: true}]": "extraMounts is /lib/modules:/lib/modules:ro /a:/b:ro, and was /lib/modules:/lib/modules:ro",
		"role: worker}]\nnetworking: {dnsSearch: [a, b]}\npools: [{name: web":            "networking.dnsSearch is a b, and was none",
	} {
		after := Make(load(t, "nodes: [{}, {"+text+"}]\n"), Host{})
		var got []string
		for _, d := range after.Differences(before, "berth-worker") {
			got = append(got, d.String())
		}
		if strings.Join(got, "; ") != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	// Two containers of one name seldom differ in these fields.
	worker := *before.find("berth-worker")
	for want, change := range map[string]func(*Container){
		"role is control-plane, and was worker": func(c *Container) { c.Role = "control-plane" },
		"pool is web, and was none":             func(c *Container) { c.Pool = "web" },
		"networking.apiServerPort is 127.0.0.1:7000 to 6443/TCP, and was none": func(c *Container) {
			c.Ports = []Port{{Listen: "127.0.0.1", Host: 7000, Container: APIPort, Protocol: config.TCP}}
		},
	} {
		after := worker
		change(&after)
		var got []string
		for _, d := range Differences(worker, after) {
			got = append(got, d.String())
		}
		if strings.Join(got, "; ") != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := before.Differences(before, "absent"); got != nil {
		t.Errorf("of no container: %v", got)
	}
}
