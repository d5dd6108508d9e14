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

// TestRenderIsReadAgain: each example, and a description with fields that only berth has, reads
// back as it was.
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
		// An older berth that lacks these fields can read a description that does not use them.
		if unused := string(rendered); strings.Contains(unused, "clientCert") || strings.Contains(unused, "clientKey") || strings.Contains(unused, "credentials") {
			t.Errorf("%s: fields that nothing is said of:\n%s", name, rendered)
		}
		if strings.HasPrefix(name, "dns-search") && (got.Networking.DNSSearch == nil || len(*got.Networking.DNSSearch) != len(*want.Networking.DNSSearch)) {
			t.Errorf("%s: no search domain became the host's", name)
		}
	}
}

func TestClashes(t *testing.T) {
	c, err := Load("f", []byte(kindHead+"networking: {ipFamily: dual}"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	for network, test := range map[string]struct {
		want   string
		inside bool
	}{
		"10.244.3.0/24":   {"networking.podSubnet: 10.244.0.0/16 overlaps 10.244.3.0/24, the network of podman; choose another", false},
		"10.244.0.0/16":   {"networking.podSubnet: 10.244.0.0/16 overlaps 10.244.0.0/16", false},
		"10.240.0.0/12":   {"networking.podSubnet", true},
		"fd00:10:96::/64": {"networking.serviceSubnet: fd00:10:96::/112 overlaps", true},
		"192.168.0.0/16":  {},
	} {
		all, err := c.Clashes([]netip.Prefix{netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix(network)})
		if err != nil || len(all) > 1 || (len(all) == 1) != (test.want != "") {
			t.Errorf("%s: %v, %v", network, all, err)
			continue
		}
		if test.want == "" {
			continue
		}
		if err := all[0].Refusal("the network of podman"); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), test.want) || all[0].Inside() != test.inside {
			t.Errorf("%s: %v; want %s", network, err, test.want)
		}
	}
	if all, err := c.Clashes([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}); err != nil || len(all) != 2 {
		t.Errorf("%v, %v; want both subnets", all, err)
	}
}
