package cni

import (
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network"
)

func TestRate(t *testing.T) {
	for text, want := range map[string]uint64{"1k": 1000, "1M": 1e6, "10Gi": 10 << 30, "1P": 1e15} {
		if got, _, err := network.Bandwidth(map[string]string{network.AnnotationIngress: text}); err != nil || got != want {
			t.Errorf("%s: %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "1", "999", "2P", "-1M", "fast", "1E33333330", "1e-33333330", "e9", "1e9e9"} {
		if _, _, err := network.Bandwidth(map[string]string{network.AnnotationIngress: text}); !errors.Is(err, errs.Invalid) {
			t.Errorf("%q: %v, want kind Invalid", text, err)
		}
	}
}

func TestRuntimeConfRefusesInjectedArguments(t *testing.T) {
	rec := &record{Attachment: network.Attachment{SandboxID: "id", Namespace: "a;K8S_POD_NAME=b"}}
	if _, err := runtimeConf(rec); !errors.Is(err, errs.Invalid) {
		t.Errorf("%v, want kind Invalid", err)
	}
}

func TestCurrentFollowsTheDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "net.d")
	c := &confs{dir: dir, max: 1, log: slog.New(slog.DiscardHandler)}
	list := func(name string) string {
		return `{"cniVersion":"1.0.0","name":"` + name + `","plugins":[{"type":"x"}]}`
	}
	want := func(when, name string) {
		t.Helper()
		got, err := c.current()
		switch {
		case name == "" && (!errors.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), "cni config not initialized")):
			t.Errorf("%s: %v, %v, want Unavailable", when, got, err)
		case name != "" && (err != nil || len(got) != 1 || got[0].list.Name != name):
			t.Errorf("%s: %v, %v, want %s", when, got, err, name)
		}
	}
	write := func(name, content string) {
		t.Helper()
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want("no directory", "")
	write("20-b.conflist", list("b"))
	want("one list", "b")
	write("10-a.conflist", list("a"))
	want("an earlier one", "a")
	write("05-half.conflist", `{"name":"half","plug`)
	write("06-empty.conflist", `{"name":"empty","cniVersion":"1.0.0","plugins":[]}`)
	write("07-typeless.conflist", `{"name":"typeless","cniVersion":"1.0.0","plugins":[{}]}`)
	write("08-readme.txt", list("readme"))
	want("invalid ones before it", "a")
	write("09-single.conf", `{"cniVersion":"0.3.1","name":"single","type":"x"}`)
	want("a single plugin", "single")
	write("09-single.conf", `{"cniVersion":"0.3.1","name":"renamed","type":"x"}`)
	want("changed in place", "renamed")
	if err := os.Rename(dir, dir+".old"); err != nil {
		t.Fatal(err)
	}
	want("the directory moved away", "")
	write("30-new.conflist", list("new"))
	want("a new directory", "new")
}

// TestBytesAreComplete: the record for DEL also contains plugins from separate files.
func TestBytesAreComplete(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "net"), 0o755),
		os.WriteFile(filepath.Join(dir, "10.conflist"), []byte(`{"cniVersion":"1.1.0","name":"net","disableGC":true,"plugins":[{"type":"a","x":1}]}`), 0o644),
		os.WriteFile(filepath.Join(dir, "net", "b.conf"), []byte(`{"type":"b","y":[2]}`), 0o644)); err != nil {
		t.Fatal(err)
	}
	c := &confs{dir: dir, max: 1, log: slog.New(slog.DiscardHandler)}
	found, err := c.current()
	if err != nil {
		t.Fatal(err)
	}
	got := found[0]
	const want = `{"cniVersion":"1.1.0","disableGC":true,"loadOnlyInlinedPlugins":true,"name":"net","plugins":[{"type":"a","x":1},{"type":"b","y":[2]}]}`
	if string(got.list.Bytes) != want {
		t.Errorf("bytes\n%s\nwant\n%s", got.list.Bytes, want)
	}
}

func TestResultOf(t *testing.T) {
	for name, c := range map[string]struct{ answer, want string }{
		"the pod's interface only": {`{"cniVersion":"1.0.0","interfaces":[{"name":"eth0"},{"name":"eth0","sandbox":"/ns"},{"name":"net1","sandbox":"/ns"}],
			"ips":[{"address":"10.0.0.1/24","interface":0},{"address":"fd00::2/64","interface":1},{"address":"10.0.0.2/24","interface":1},{"address":"10.9.0.2/24","interface":2}]}`, "10.0.0.2 fd00::2"},
		"addresses of no interface": {`{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.2/24"}]}`, "10.0.0.2"},
		"none":                      {`{"cniVersion":"1.0.0"}`, ""},
	} {
		var answer types100.Result
		if err := json.Unmarshal([]byte(c.answer), &answer); err != nil {
			t.Fatal(err)
		}
		got, err := readResult([]types.Result{&answer}, IPv4First)
		if c.want == "" {
			if err == nil {
				t.Errorf("%s: no error", name)
			}
			continue
		}
		var ips []string
		for _, ip := range got.IPs {
			ips = append(ips, ip.String())
		}
		if err != nil || strings.Join(ips, " ") != c.want || len(got.CNI) == 0 {
			t.Errorf("%s: %v, %v, want %s", name, ips, err, c.want)
		}
	}
}
