package handler

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor"
)

func program(t *testing.T, script string) *Handler {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return &Handler{Name: "x", Kind: OCI, Path: path}
}

func TestFind(t *testing.T) {
	table := Table{Handlers: map[string]Handler{"a": {Name: "a", Kind: OCI, Path: "/a"}, "b": {Name: "b", Kind: Builtin}}}
	if h, err := table.Find(""); err != nil || h.Program() != nil {
		t.Errorf("the default one: %+v %v", h, err)
	}
	if h, err := table.Find("b"); err != nil || h.Program() != nil || h.Check() != nil {
		t.Errorf("a builtin one: %+v %v", h, err)
	}
	_, err := table.Find("c")
	if !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), `unable to get OCI runtime: no runtime for "c" is configured (there are a, b)`) {
		t.Errorf("an unknown one: %v", err)
	}
	table.Default = "a"
	if h, err := table.Find(""); err != nil || h.Program().Path != "/a" {
		t.Errorf("another default one: %+v %v", h, err)
	}
	if list := table.List(); len(list) != 3 || list[0].Name != "" || list[0].Handler.Name != "a" || list[1].Name != "a" || list[2].Name != "b" {
		t.Errorf("list %+v", list)
	}
}

func TestFactsOfAProgram(t *testing.T) {
	const all = `{"mountOptions":["ro","rro"],"linux":{"namespaces":["mount","user"],"mountExtensions":{"idmap":{"enabled":true}}}}`
	answers := func(features string) string {
		return `case "$1" in --version) echo runtime 1.2; echo more;; features) ` + features + `;; esac`
	}
	for name, tc := range map[string]struct {
		script string
		want   Facts
		fault  string
	}{
		"all":        {answers("echo '" + all + "'"), Facts{Version: "runtime 1.2", RecursiveReadOnly: true, IDMapped: true}, ""},
		"old":        {answers(`echo '{"mountOptions":["rro"],"linux":{"namespaces":["user"]}}'`), Facts{Version: "runtime 1.2", RecursiveReadOnly: true}, ""},
		"nouserns":   {answers(`echo '{"linux":{"mountExtensions":{"idmap":{"enabled":true}}}}'`), Facts{Version: "runtime 1.2"}, ""},
		"nofeatures": {answers(`echo unknown command >&2; exit 1`), Facts{Version: "runtime 1.2"}, "unknown command"},
		"garbage":    {answers(`echo soup`), Facts{Version: "runtime 1.2"}, "the features of"},
		"nothing":    {`exit 0`, Facts{Broken: true}, "it answers nothing"},
		"fails":      {`echo broken >&2; exit 1`, Facts{Broken: true}, "broken"},
	} {
		t.Run(name, func(t *testing.T) {
			var p Prober
			got := p.Of(program(t, tc.script))
			fault := got.Fault
			got.Fault = ""
			if got != tc.want || (tc.fault == "") != (fault == "") || !strings.Contains(fault, tc.fault) || fault != "" && !strings.Contains(fault, `handler "x"`) {
				t.Errorf("%+v with fault %q, want %+v with %q", got, fault, tc.want, tc.fault)
			}
		})
	}
}

// A program that did not answer is asked again when a pod needs it.
func TestFaultsPass(t *testing.T) {
	h := program(t, `[ -e "$0.well" ] || exit 1; echo '{}'`)
	var p Prober
	if facts := p.Of(h); !facts.Broken {
		t.Errorf("a program that fails: %+v", facts)
	}
	if err := os.WriteFile(h.Path+".well", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if facts := p.Of(h); !facts.Broken {
		t.Errorf("it was asked again at once: %+v", facts)
	}
	if facts := p.Now(t.Context(), h); facts.Broken || p.Of(h).Broken {
		t.Errorf("a program that has recovered: %+v", facts)
	}
}

// Features that were not known once are asked for again, a minute later at the earliest.
func TestUnknownFeaturesAreAskedForAgain(t *testing.T) {
	h := program(t, `echo asked >> "$0.asked"
case "$1" in --version) echo runtime 1.2;; *) [ -e "$0.well" ] || exit 1; echo '{"mountOptions":["rro"]}';; esac`)
	var p Prober
	if facts := p.Of(h); facts.Broken || facts.Fault == "" {
		t.Errorf("a program whose features fail: %+v", facts)
	}
	if err := os.WriteFile(h.Path+".well", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if p.Of(h); p.Now(t.Context(), h).RecursiveReadOnly || timesAsked(h) != 2 {
		t.Errorf("it was asked %d times in the first minute", timesAsked(h))
	}
	age(&p, faultLife)
	if facts := p.Of(h); facts.Fault != "" || !facts.RecursiveReadOnly {
		t.Errorf("a program whose features are known after a minute: %+v", facts)
	}
}

// Two handlers with one program have facts of their own: their arguments may change its answers.
func TestHandlersWithOneProgram(t *testing.T) {
	plain := program(t, `case "$1" in --all) echo '{"mountOptions":["rro"]}';; *) echo no such option >&2; exit 1;; esac`)
	all := *plain
	all.Name, all.Args = "y", []string{"--all"}
	var p Prober
	for range 2 {
		if facts := p.Of(plain); !facts.Broken || !strings.Contains(facts.Fault, `handler "x"`) {
			t.Errorf("without the argument: %+v", facts)
		}
		if facts := p.Of(&all); facts.Fault != "" || !facts.RecursiveReadOnly {
			t.Errorf("with the argument: %+v", facts)
		}
	}
	other := *plain
	other.Name = "z"
	if facts := p.Of(&other); !strings.Contains(facts.Fault, `handler "z"`) {
		t.Errorf("another name: %+v", facts)
	}
}

// Last has the facts of before while the program is asked again, also by concurrent callers and when it hangs.
func TestLastDoesNotWait(t *testing.T) {
	h := program(t, `echo asked >> "$0.asked"
if [ -e "$0.fifo" ]; then read line < "$0.fifo"; fi
case "$1" in --version) [ -e "$0.old" ] && echo runtime 2 || echo runtime 1;; *) echo '{"mountOptions":["rro"]}';; esac`)
	var p Prober
	want := p.Of(h)
	if want.Fault != "" || p.Last(h) != want {
		t.Fatalf("%+v", want)
	}
	if err := syscall.Mkfifo(h.Path+".fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(h.Path, time.Now(), time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if facts := p.Last(h); facts != want {
			t.Fatalf("while it is asked again: %+v, want %+v", facts, want)
		}
	}
	// The first answer waits until this opens the FIFO for it, and the second one finds none.
	fifo, err := os.OpenFile(h.Path+".fifo", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(h.Path+".fifo", h.Path+".old"); err != nil {
		t.Fatal(err)
	}
	if n := timesAsked(h); n != 3 {
		t.Errorf("it was asked %d times, 2 before its change", n)
	}
	if _, err := fifo.WriteString("go\n"); err != nil {
		t.Fatal(err)
	}
	fifo.Close()
	for p.Last(h).Version != "runtime 2" {
		if t.Context().Err() != nil || p.Last(h).Fault != "" {
			t.Fatalf("%+v", p.Last(h))
		}
		time.Sleep(time.Millisecond)
	}
}

// age lets the answers of all programs be older.
func age(p *Prober, by time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, a := range p.known {
		a.at = a.at.Add(-by)
		p.known[key] = a
	}
}

// timesAsked returns how often a program was run that adds a line "asked" to a file.
func timesAsked(h *Handler) int {
	data, _ := os.ReadFile(h.Path + ".asked")
	return strings.Count(string(data), "asked")
}

// FuzzFeatures: an answer that is refused gives no feature.
func FuzzFeatures(f *testing.F) {
	f.Add([]byte(`{"mountOptions":["rro"],"linux":{"namespaces":["user"],"mountExtensions":{"idmap":{"enabled":true}}}}`))
	f.Add([]byte(`{"linux":{"mountExtensions":{"idmap":{}}}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var facts Facts
		if err := facts.read(text); err != nil && facts != (Facts{}) {
			t.Errorf("%q is refused (%v), and has %+v", text, err, facts)
		}
	})
}

// A program is asked once, and again after it has changed. It may vanish, and come back.
func TestFactsFollowTheFile(t *testing.T) {
	h := program(t, `echo asked >> "$0.asked"; echo '{}'`)
	var p Prober
	for range 3 {
		p.All(Table{Handlers: map[string]Handler{"x": *h}})
	}
	if n := timesAsked(h); n != 2 { // --version and features
		t.Errorf("it was asked %d times", n)
	}
	away := h.Path + ".away"
	if err := os.Rename(h.Path, away); err != nil {
		t.Fatal(err)
	}
	if facts := p.Of(h); !facts.Broken || !strings.Contains(facts.Fault, h.Path) || !errors.Is(h.Check(), errs.Unavailable) ||
		!strings.HasPrefix(h.Check().Error(), fmt.Sprintf("unable to get OCI runtime: handler %q: ", h.Name)) {
		t.Errorf("a program that has gone: %+v", facts)
	}
	if err := os.Rename(away, h.Path); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(h.Path, time.Now(), time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if facts := p.Of(h); facts.Broken || timesAsked(h) != 4 {
		t.Errorf("a program that has come back: %+v, asked %d times", facts, timesAsked(h))
	}
	if err := os.Chmod(h.Path, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := h.Check(); err == nil || !strings.Contains(err.Error(), "is not an executable file") {
		t.Errorf("a program that cannot be executed: %v", err)
	}
}

// A runtime that is the sandbox is one of a shim.
func TestMakesSandbox(t *testing.T) {
	for kind, want := range map[Kind]bool{Shim: true, OCI: false, Builtin: false} {
		h := &Handler{Name: "x", Kind: kind, Path: "/a", IsSandbox: true}
		if got := h.MakesSandbox(); got != want {
			t.Errorf("%s: %v", kind, got)
		}
		if p := h.Program(); p != nil && p.IsSandbox != want {
			t.Errorf("%s: %+v", kind, p)
		}
	}
	for api, want := range map[bool]string{false: supervisor.ProtocolShim, true: supervisor.ProtocolSandbox} {
		h := &Handler{Name: "x", Kind: Shim, Path: "/a", IsSandbox: true, SandboxAPI: api}
		if p := h.Program(); p.Protocol != want || !p.IsSandbox {
			t.Errorf("%v: %+v", api, p)
		}
	}
	if (*Handler)(nil).MakesSandbox() {
		t.Error("berth itself")
	}
}

// A shim runs the OCI runtime that berth asks for features: that of berth's PATH, by its path.
func TestShimOptions(t *testing.T) {
	const shim = "/usr/bin/containerd-shim-runc-v2"
	dir := t.TempDir()
	for _, name := range []string{"runc", "crun"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
	for name, tc := range map[string]struct {
		shim          string
		options, want []string
	}{
		"none":      {shim, nil, []string{"BinaryName=" + dir + "/runc"}},
		"a name":    {shim, []string{"BinaryName=crun", "NoNewKeyring=true"}, []string{"NoNewKeyring=true", "BinaryName=" + dir + "/crun"}},
		"a path":    {shim, []string{"BinaryName=/opt/runc"}, []string{"BinaryName=/opt/runc"}},
		"not there": {shim, []string{"BinaryName=youki"}, []string{"BinaryName=youki"}},
		"of others": {"/usr/bin/containerd-shim-runsc-v1", []string{"ConfigPath=/a"}, []string{"ConfigPath=/a"}},
	} {
		if got := ShimOptions(tc.shim, tc.options); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
