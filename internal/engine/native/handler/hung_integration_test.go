//go:build integration

package handler

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/test/harness/hungfs"
)

// A program on a file system that hangs delays Status, a reload and the pods of its handler by a bounded time. What is
// known of it stays known.
func TestHungProgram(t *testing.T) {
	behind := program(t, `case "$1" in --version) echo runtime 1;; *) echo '{"mountOptions":["rro"]}';; esac`)
	at := filepath.Join(t.TempDir(), "dead")
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	disk := hungfs.Mount(t, filepath.Dir(behind.Path), at)
	h, unknown := *behind, *behind
	h.Path = filepath.Join(at, filepath.Base(behind.Path))
	unknown.Name, unknown.Path = "unknown", h.Path
	var p Prober
	if facts := p.Of(&h); facts.Fault != "" || !facts.RecursiveReadOnly {
		t.Fatalf("%+v", facts)
	}
	time.Sleep(1100 * time.Millisecond) // until the kernel does not know the attributes any more
	disk.Hang()
	within := func(limit time.Duration, what string, do func()) {
		t.Helper()
		began := time.Now()
		do()
		if took := time.Since(began); took > limit {
			t.Errorf("%s took %s", what, took)
		}
	}
	within(time.Second, "the last facts", func() {
		for range 20 {
			facts := p.Last(&h)
			if !facts.RecursiveReadOnly || !facts.Broken || !strings.Contains(facts.Fault, h.Path+": the file system has not answered") {
				t.Fatalf("%+v", facts)
			}
		}
		if facts := p.Last(&unknown); facts.RecursiveReadOnly || !strings.Contains(facts.Fault, h.Path+": the file system has not answered") {
			t.Errorf("of a program that is not known: %+v", facts)
		}
	})
	within(2*lookTimeout, "a reload and a pod", func() {
		p.All(Table{Handlers: map[string]Handler{"x": h, "unknown": unknown}})
		if facts := p.Now(t.Context(), &h); !facts.Broken {
			t.Errorf("%+v", facts)
		}
		if err := p.Check(t.Context(), &h); !errors.Is(err, errs.Unavailable) {
			t.Errorf("%v", err)
		}
	})
	disk.Answer()
	for p.Last(&h).Fault != "" {
		time.Sleep(10 * time.Millisecond)
	}
}
