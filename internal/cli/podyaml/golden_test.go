package podyaml

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/podyaml/network"
	"github.com/berthrun/berth/internal/cli/podyaml/podspec"
	"github.com/berthrun/berth/internal/cli/podyaml/source"
	"github.com/berthrun/berth/internal/golden"
)

// TestGolden holds the whole translation of each file in testdata.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	more, moreErr := filepath.Glob("testdata/documented/*.yaml")
	if err := errors.Join(err, moreErr); err != nil || len(files) == 0 || len(more) == 0 {
		t.Fatalf("no test data: %v", err)
	}
	files = append(files, more...)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			got := translate(t, file)
			golden.Check(t, strings.TrimSuffix(file, ".yaml")+".golden.json", string(got))
		})
	}
}

func testFacts() *Facts {
	return &Facts{
		Dir: "/pods/u", LogDir: "/logs/u", ClaimDir: "/claims", SeccompDir: "/seccomp",
		PodIPs: []string{"10.88.0.5", "fd00::5"}, HostIPs: []string{"192.0.2.1"}, NodeName: "host",
		HostHosts: "127.0.0.1\tlocalhost\n",
		HostDNS:   &runtimeapi.DNSConfig{Servers: []string{"192.0.2.53"}, Searches: []string{"lan"}, Options: []string{"ndots:1", "rotate"}},
		Capacity:  source.Capacity{MilliCPU: 4000, Memory: 8 << 30, Storage: 100 << 30}, UserNamespace: 1 << 30, RecursiveReadOnly: true,
		ReadVolume: func(string, string) ([]byte, error) { return []byte("# file\nA='1'\n"), nil },
	}
}

func translate(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	m, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]any{}
	if len(m.Notes) > 0 {
		out["notes"] = m.Notes
	}
	for _, b := range m.Pods() {
		out["pod "+b.Pod.Name] = translatePod(t, b)
	}
	for _, s := range m.Services {
		var names []network.Names
		for i, b := range s.Pods {
			names = append(names, network.Names{IP: fmt.Sprintf("10.88.0.%d", i+5), Names: append(s.Names(), s.PodNames(b)...)})
		}
		out["service "+s.Name] = names
	}
	got, err := json.MarshalIndent(out, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(got, '\n')
}

func translatePod(t *testing.T, b *Bundle) map[string]any {
	t.Helper()
	facts := testFacts()
	out := map[string]any{
		"handler": b.Handler, "sandbox": b.Sandbox(facts), "keeper": b.ForegroundFields(),
		"hosts": strings.Split(b.Hosts(facts, nil), "\n"),
	}
	var err error
	if out["volumes"], err = b.Volumes(facts); err != nil {
		t.Fatal(err)
	}
	for _, c := range podspec.Containers(b.Pod) {
		made, err := b.Container(c, 2, facts)
		if err != nil {
			t.Fatal(err)
		}
		out["container "+c.Name] = made.Config
		if len(made.SubPaths) > 0 {
			out["sub paths of "+c.Name] = made.SubPaths
		}
	}
	return out
}
