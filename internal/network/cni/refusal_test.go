package cni

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRefusedConfigurations: a configuration with which each ADD would fail does not come into use. The fault names file
// and field, and what was in use stays so.
func TestRefusedConfigurations(t *testing.T) {
	const ipam = `"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]]}`
	list := func(version, name, plugins string) string {
		return `{"cniVersion":"` + version + `","name":"` + name + `","plugins":[` + plugins + `]}`
	}
	good := `{"type":"bridge",` + ipam + `}`
	for name, c := range map[string]struct {
		content string
		want    []string
	}{
		"a version that does not exist": {list("9.9.9", "n", good), []string{"field cniVersion", `"9.9.9"`, "1.1.0"}},
		"a version of two numbers":      {list("1.0", "n", good), []string{"field cniVersion", `"1.0"`}},
		"a name":                        {list("1.0.0", "bad name", good), []string{"field name"}},
		"an mtu":                        {list("1.0.0", "n", `{"type":"bridge","mtu":"1400",`+ipam+`}`), []string{"plugins[0].mtu", "bridge", "string"}},
		"a subnet that is a number":     {list("1.0.0", "n", `{"type":"bridge","ipam":{"type":"host-local","subnet":10}}`), []string{"plugins[0]", "host-local", "number"}},
		"a prefix of 33 bits":           {list("1.0.0", "n", `{"type":"ptp","ipam":{"type":"host-local","subnet":"10.99.0.0/33"}}`), []string{"plugins[0]", "10.99.0.0/33"}},
		"a range of no address":         {list("1.0.0", "n", `{"type":"ptp","ipam":{"type":"host-local","subnet":"10.99.0.0/31"}}`), []string{"plugins[0]", "host-local", "10.99.0.0"}},
		"a route":                       {list("1.0.0", "n", `{"type":"ptp","ipam":{"type":"host-local","subnet":"10.99.0.0/24","routes":[{"dst":"default"}]}}`), []string{"plugins[0]", "default"}},
		"ranges that overlap":           {list("1.0.0", "n", `{"type":"ptp","ipam":{"type":"host-local","ranges":[[{"subnet":"10.9.0.0/16"}],[{"subnet":"10.9.1.0/24"}]]}}`), []string{"plugins[0]", "overlaps"}},
		"a rate":                        {list("1.0.0", "n", good+`,{"type":"bandwidth","ingressRate":"fast"}`), []string{"plugins[1].ingressRate", "bandwidth"}},
		"a rate without a burst":        {list("1.0.0", "n", good+`,{"type":"bandwidth","ingressRate":1000}`), []string{"plugins[1]", "burst"}},
		"a bridge for addresses":        {list("1.0.0", "n", `{"type":"bridge","ipam":{"type":"bridge"}}`), []string{"plugins[0].ipam.type", "bridge is not an IPAM plugin"}},
		"a ptp for addresses":           {list("1.0.0", "n", `{"type":"ptp","ipam":{"type":"ptp"}}`), []string{"plugins[0].ipam.type", "ptp is not an IPAM plugin"}},
		"no IPAM":                       {list("1.0.0", "n", `{"type":"ptp"}`), []string{"plugins[0]", "ipam.type is missing"}},
		"a chain without a beginning":   {list("1.0.0", "n", `{"type":"portmap"}`), []string{"plugins[0]", "portmap", "before it"}},
		"a plugin newer than the list":  {list("0.3.1", "n", good+`,{"type":"firewall"}`), []string{"field cniVersion", "firewall", "0.3.1"}},
		"a list of plugins of a type":   {list("1.0.0", "n", `{"type":"tuning","sysctl":["a"]}`), []string{"plugins[0]"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := newNetDir(t)
			n, err := New(t.Context(), Config{ConfDir: d.dir, BinDirs: []string{t.TempDir()}, RootDir: t.TempDir(), MaxNetworks: 1})
			if err != nil {
				t.Fatal(err)
			}
			defer n.Close()
			d.write("10-a.conflist", c.content)
			confs, err := n.confs.current()
			if len(confs) != 0 || err == nil {
				t.Fatalf("%d configurations are in use, %v", len(confs), err)
			}
			for _, want := range append(c.want, d.path("10-a.conflist")) {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v does not have %q", err, want)
				}
			}
			d.write("10-a.conflist", list("1.0.0", "good", good))
			wantInUse(t, n.confs, "good", "good")
			d.write("10-a.conflist", c.content)
			wantInUse(t, n.confs, "refused again", "good", d.path("10-a.conflist"), "stays in use")
		})
	}
}

// TestAcceptedConfigurations: what only a call brings is no fault of a configuration, and neither is what berth does not know.
func TestAcceptedConfigurations(t *testing.T) {
	for name, plugins := range map[string]string{
		"ranges of the node":      `{"type":"bridge","capabilities":{"ipRanges":true},"ipam":{"type":"host-local"}}`,
		"limits of the pod":       `{"type":"ptp","ipam":{"type":"host-local","subnet":"10.1.0.0/24"}},{"type":"bandwidth","capabilities":{"bandwidth":true}}`,
		"ports of the pod":        `{"type":"ptp","ipam":{"type":"host-local","subnet":"10.1.0.0/24"}},{"type":"portmap","capabilities":{"portMappings":true}},{"type":"tuning"},{"type":"firewall"}`,
		"an unknown plugin":       `{"type":"mine","mtu":"1400","ipam":{"type":"bridge"}}`,
		"an unknown IPAM plugin":  `{"type":"bridge","ipam":{"type":"mine","subnet":10}}`,
		"an option berth has not": `{"type":"bridge","mtu":"1400","newOption":1,"ipam":{"type":"host-local","subnet":"10.1.0.0/24"}}`,
	} {
		d := newNetDir(t)
		n, err := New(t.Context(), Config{ConfDir: d.dir, BinDirs: []string{t.TempDir()}, RootDir: t.TempDir(), MaxNetworks: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		d.write("10-a.conflist", `{"cniVersion":"1.0.0","name":"n","plugins":[`+plugins+`]}`)
		if _, err := n.confs.current(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestNamedPipeIsNoConfiguration: a named pipe, whose reader would wait, is a fault of the directory.
func TestNamedPipeIsNoConfiguration(t *testing.T) {
	d := newNetDir(t)
	c := d.confs(1)
	d.write("10-a.conflist", listNamed("a"))
	wantInUse(t, c, "a file", "a")
	pipe := d.path("01-x.conflist")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	wantInUse(t, c, "with a named pipe", "a", pipe, "not a regular file")
}
