package kubeadm

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/patch"
)

// TestConfigurationIsThatOfKind: for each example and node, berth writes the same documents as kind
// v0.33, except for the differences that meant lists. testdata/kind has recordings of kind's
// documents.
func TestConfigurationIsThatOfKind(t *testing.T) {
	files, err := filepath.Glob("../testdata/examples/*.yaml")
	if err != nil || len(files) < 30 {
		t.Fatalf("%d examples: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			c, err := config.Load(file, text, config.Options{Dir: "/"})
			if err != nil {
				t.Fatal(err)
			}
			for version, nodes := range factsOf(t, file) {
				for i, n := range c.Nodes {
					want := nodes[c.ContainerName(n)]["/kind/kubeadm.conf"]
					compare(t, version+", "+n.Name, want, node(c, i, version), len(c.Nodes) == 1)
				}
			}
		})
	}
}

// factsOf returns the files that kind wrote, by version and node.
func factsOf(t *testing.T, example string) map[string]map[string]map[string]string {
	t.Helper()
	raw, err := os.ReadFile("../testdata/kind/" + strings.TrimSuffix(filepath.Base(example), ".yaml") + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var facts struct {
		Files map[string]map[string]map[string]string
	}
	if err := json.Unmarshal(raw, &facts); err != nil || len(facts.Files) < 2 {
		t.Fatalf("%d versions: %v", len(facts.Files), err)
	}
	return facts.Files
}

// node returns the i-th node with the data that kind had for the recording.
func node(c *config.Cluster, i int, version string) Node {
	entrance := c.BalancerName()
	if !c.HasBalancer() {
		for _, n := range c.Nodes {
			if n.Role == config.ControlPlane {
				entrance = c.ContainerName(n)
			}
		}
	}
	return Node{
		Cluster: c, Node: c.Nodes[i], Version: version, Engine: "podman", Endpoint: entrance + ":6443",
		IPv4:      netip.MustParseAddr(fmt.Sprintf("10.89.0.%d", i+2)),
		IPv6:      netip.MustParseAddr(fmt.Sprintf("fc00:f853:ccd:e793::%d", i+2)),
		CRISocket: ContainerdSocket, Token: "abcdef.0123456789abcdef", CgroupDriver: "systemd",
	}
}

func compare(t *testing.T, what, kinds string, n Node, single bool) {
	t.Helper()
	made, err := Config(n)
	if err != nil {
		t.Fatal(err)
	}
	want, got := parse(t, kinds), parse(t, made)
	for _, doc := range got {
		intended(doc, single)
	}
	for _, doc := range append(got, want...) {
		dropEmpty(doc)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s: kind's (-) and ours (+):\n%s", what, diff)
	}
}

// dropEmpty removes empty options, which have no effect.
func dropEmpty(doc patch.Doc) {
	for _, component := range []string{"controllerManager", "scheduler"} {
		fields, ok := doc[component].(map[string]any)
		if ok && (fields["extraArgs"] == nil || reflect.ValueOf(fields["extraArgs"]).Len() == 0) {
			delete(fields, "extraArgs")
		}
	}
}

// intended removes the differences that the documents' comments explain.
func intended(doc patch.Doc, single bool) {
	switch doc["kind"] {
	case "ClusterConfiguration":
		if doc["encryptionAlgorithm"] == "ECDSA-P256" {
			delete(doc, "encryptionAlgorithm")
		}
		server := doc["apiServer"].(map[string]any)
		if names := server["certSANs"].([]any); len(names) > 3 && names[1] == "0.0.0.0" {
			server["certSANs"] = names[:2]
		}
		for _, component := range []string{"controllerManager", "scheduler"} {
			fields := doc[component].(map[string]any)
			fields["extraArgs"] = meantArgs(fields["extraArgs"])
		}
	case "InitConfiguration":
		registration := doc["nodeRegistration"].(map[string]any)
		if taints, ok := registration["taints"].([]any); ok && single && len(taints) == 0 {
			delete(registration, "taints")
		}
	case "KubeletConfiguration":
		if doc["failCgroupV1"] == false {
			delete(doc, "failCgroupV1")
		}
	}
}

// meantArgs returns options without those that kind does not set, in either format.
func meantArgs(args any) any {
	ours := []string{"kube-api-qps", "kube-api-burst", "leader-elect-retry-period"}
	switch args := args.(type) {
	case map[string]any:
		for _, name := range ours {
			delete(args, name)
		}
	case []any:
		return slices.DeleteFunc(args, func(a any) bool {
			name, _ := a.(map[string]any)["name"].(string)
			return slices.Contains(ours, name)
		})
	}
	return args
}

func parse(t *testing.T, text string) []patch.Doc {
	t.Helper()
	docs, err := patch.Parse(text)
	if err != nil || len(docs) < 4 {
		t.Fatalf("%d documents: %v\n%s", len(docs), err, text)
	}
	return docs
}

// TestContainerdConfigurationIsThatOfKind: patches of containerd's file, too.
func TestContainerdConfigurationIsThatOfKind(t *testing.T) {
	const before = "version = 3\n[plugins.'io.containerd.cri.v1.images']\n  snapshotter = 'overlayfs'\n"
	for _, name := range []string{"containerd", "registry-certificates"} {
		file := "../testdata/examples/" + name + ".yaml"
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		c, err := config.Load(file, text, config.Options{})
		if err != nil {
			t.Fatal(err)
		}
		got, err := patch.TOML(before, c.ContainerdConfigPatches, c.ContainerdConfigPatchesJSON6902)
		if err != nil {
			t.Fatal(err)
		}
		want, err := patch.TOML(factsOf(t, file)["v1.37.0"]["kind-control-plane"]["/etc/containerd/config.toml"], nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: kind's (-) and ours (+):\n%s", name, diff)
		}
	}
}
