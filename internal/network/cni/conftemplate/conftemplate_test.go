package conftemplate

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/errs"
)

// ptp is the template of kops and GKE nodes, in its form.
const ptp = `{"name": "pods", "cniVersion": "1.0.0", "plugins": [
  {"type": "ptp", "ipam": {"type": "host-local",
    "ranges": [{{range $i, $range := .PodCIDRRanges}}{{if $i}}, {{end}}[{"subnet": "{{$range}}"}]{{end}}],
    "routes": [{{range $i, $route := .Routes}}{{if $i}}, {{end}}{"dst": "{{$route}}"}{{end}}]}}]}`

func prefixes(all ...string) (list []netip.Prefix) {
	for _, p := range all {
		list = append(list, netip.MustParsePrefix(p))
	}
	return list
}

func TestValues(t *testing.T) {
	for _, c := range []struct {
		ranges []netip.Prefix
		want   Values
	}{
		{prefixes("10.1.0.0/24"), Values{"10.1.0.0/24", []string{"10.1.0.0/24"}, []string{"0.0.0.0/0"}}},
		{prefixes("fd00::/64"), Values{"fd00::/64", []string{"fd00::/64"}, []string{"::/0"}}},
		{prefixes("fd00::/64", "10.1.0.0/24"), Values{"fd00::/64", []string{"fd00::/64", "10.1.0.0/24"}, []string{"0.0.0.0/0", "::/0"}}},
	} {
		if diff := cmp.Diff(c.want, ValuesOf(c.ranges)); diff != "" {
			t.Errorf("%v (-want +got):\n%s", c.ranges, diff)
		}
	}
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "template")
	if err := os.WriteFile(file, []byte(ptp), 0o600); err != nil {
		t.Fatal(err)
	}
	template, err := Load(file)
	if err != nil {
		t.Fatal(err)
	}
	confs := filepath.Join(dir, "net.d")
	for i, want := range []bool{true, false} {
		changed, err := template.Write(confs, ValuesOf(prefixes("10.1.0.0/24", "fd00::/64")))
		if err != nil || changed != want {
			t.Errorf("write %d: changed %v, %v", i, changed, err)
		}
	}
	got, err := os.ReadFile(filepath.Join(confs, File))
	for _, part := range []string{`[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]`, `{"dst": "0.0.0.0/0"}, {"dst": "::/0"}`} {
		if err != nil || !strings.Contains(string(got), part) {
			t.Errorf("no %s in %s, %v", part, got, err)
		}
	}
	if entries, err := os.ReadDir(confs); err != nil || len(entries) != 1 {
		t.Errorf("%v, %v: want the configuration alone", entries, err)
	}
}

// TestBadTemplates: each is refused when berth starts, with its file and what is wrong.
func TestBadTemplates(t *testing.T) {
	for text, want := range map[string]string{
		"{{.PodCIDR":           ":1: unclosed action",
		"\n{{.Subnet}}":        ":2:2: executing",
		`{"name": "pods"}`:     "no plugins",
		"{{.PodCIDR}}":         "makes no valid CNI configuration for the pod CIDRs [192.0.2.0/24 2001:db8::/64]",
		`{"plugins": [{"type"`: "makes no valid CNI configuration",
		`{"cniVersion": "1.0.0", "plugins": [{"type": "ptp"}]}`: "no name",
	} {
		file := filepath.Join(t.TempDir(), "template")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Load(file)
		if !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), file) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if _, err := Load("/absent/template"); err == nil || !strings.Contains(err.Error(), "/absent/template") {
		t.Errorf("an absent file: %v", err)
	}
}
