package config

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/berthrun/berth/internal/errs"
)

// TestRenderIsReadAgain: of every example, and of what only berth's format has.
func TestRenderIsReadAgain(t *testing.T) {
	files, err := filepath.Glob("../testdata/examples/*.yaml")
	if err != nil || len(files) < 30 {
		t.Fatalf("%d examples: %v", len(files), err)
	}
	texts := map[string]string{"ours": ourHead + `name: dev
nodes: [{}, {role: worker, name: db, registries: [{host: quay.io}]}]
pools: [{name: web, count: 2, labels: {a: "1"}}, {name: gone, count: 0}]
registry: {enabled: true, port: 0}
registries: [{host: docker.io, mirrors: [{url: "https://m", ca: [a.pem]}]}]
`}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		texts[filepath.Base(file)] = string(text)
	}
	for name, text := range texts {
		want, err := Load(name, []byte(text), Options{Dir: "/d"})
		if err != nil {
			t.Fatal(err)
		}
		rendered, err := Render(want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Load(name, rendered, Options{Dir: "/elsewhere"})
		if err != nil {
			t.Errorf("%s: %v\n%s", name, err, rendered)
			continue
		}
		want.FromKind, want.Warnings, got.Warnings = false, nil, nil
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: %s\n%s", name, diff, rendered)
		}
		if strings.HasPrefix(name, "dns-search") && (got.Networking.DNSSearch == nil || len(*got.Networking.DNSSearch) != len(*want.Networking.DNSSearch)) {
			t.Errorf("%s: no search domain became the host's", name)
		}
	}
}

func TestOverlap(t *testing.T) {
	c, err := Load("f", []byte(kindHead+"networking: {ipFamily: dual}"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	for network, want := range map[string]string{
		"10.244.3.0/24":   "networking.podSubnet: 10.244.0.0/16 overlaps 10.244.3.0/24, the network of podman; choose another",
		"10.0.0.0/8":      "networking.podSubnet",
		"fd00:10:96::/64": "networking.serviceSubnet: fd00:10:96::/112 overlaps",
		"192.168.0.0/16":  "",
	} {
		err := c.Overlap([]netip.Prefix{netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix(network)}, "the network of podman")
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", network, err)
		case want != "" && (!errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v; want %s", network, err, want)
		}
	}
}
