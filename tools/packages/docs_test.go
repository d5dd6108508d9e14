package main

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestManPages: each command has a page with its flags, and so have the supervisor and the
// configuration. Help, which is no command of its own, has none.
func TestManPages(t *testing.T) {
	o := fixture(t)
	o.out = t.TempDir()
	if err := os.Mkdir(filepath.Join(o.out, manDir), 0o755); err != nil {
		t.Fatal(err)
	}
	root := command{Use: "berth", Short: "A runtime", Commands: []command{
		{Use: "pod", Short: "Pods", Inherited: []option{{Name: "endpoint", Usage: "the socket", Type: "string", Default: "unix:///x"}}, Commands: []command{
			{Use: "run -f FILE", Short: "Run a pod", Long: "run runs a pod.", Runnable: true, Flags: []option{{Name: "detach", Shorthand: "d", Usage: "do not wait", Type: "bool", Default: "false", Bare: "true"}}},
		}},
		{Use: "help [command]", Runnable: true},
	}}
	if err := manPages(root, o); err != nil {
		t.Fatal(err)
	}
	page := func(name string) string {
		t.Helper()
		data, err := os.ReadFile(filepath.Join(o.out, manDir, name))
		if err != nil {
			t.Fatal(err)
		}
		r, err := gzip.NewReader(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for name, words := range map[string][]string{
		"berth.8.gz":            {".TH \"BERTH\" \"8\" \"Nov 2023\" \"berth 1.2.4-dev.5\"", "berth-pod(8)"},
		"berth-pod-run.8.gz":    {"berth pod run", "run runs a pod", "-d", "--detach", "do not wait", "--endpoint", "unix:///x"},
		"berth-supervisor.8.gz": {".TH \"BERTH-SUPERVISOR\" \"8\"", "selftest"},
		"berth.toml.5.gz":       {".TH \"BERTH.TOML\" \"5\"", "listen"},
	} {
		text := strings.ReplaceAll(page(name), `\-`, "-")
		for _, word := range words {
			if !strings.Contains(text, word) {
				t.Errorf("%s has no %q:\n%.600s", name, word, text)
			}
		}
	}
	if _, err := os.Stat(filepath.Join(o.out, manDir, "berth-help.8.gz")); err == nil {
		t.Error("help has a page")
	}
	if text := page("berth.8.gz"); strings.Contains(text, "help") && strings.Contains(text, "berth-help") {
		t.Errorf("a page refers to that of help:\n%s", text)
	}
	if got := manPage("x.8", []byte("# NAME\n"), time.Unix(0, 0).UTC(), o.version); !strings.Contains(string(got), "Jan 1970") {
		t.Errorf("the date of a page is not the release's:\n%s", got)
	}
}
