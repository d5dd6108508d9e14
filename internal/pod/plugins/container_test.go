package plugins

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/nri"
	"github.com/berthrun/berth/internal/pod/record"
)

// TestNothingKnownWithoutPlugins: without a plugin, no container is kept once it is created, or once
// its creation has failed.
func TestNothingKnownWithoutPlugins(t *testing.T) {
	host, err := nri.New(nri.Config{
		Socket: filepath.Join(t.TempDir(), "nri.sock"), Registration: time.Minute, Request: time.Minute,
		Version: "v1", Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	host.Unblock()
	for name, end := range map[string]func(*Plugins, *record.Container) error{
		"created": func(p *Plugins, rec *record.Container) error {
			p.CreatedContainer(t.Context(), rec)
			return nil
		},
		"failed": func(p *Plugins, rec *record.Container) error {
			return p.RemoveContainer(t.Context(), rec, func() error { return nil })
		},
		"failed, and its record stays": func(p *Plugins, rec *record.Container) error {
			if err := p.RemoveContainer(t.Context(), rec, func() error { return context.Canceled }); !errors.Is(err, context.Canceled) {
				t.Errorf("RemoveContainer: %v", err)
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := New(Options{Host: host, Log: slog.New(slog.DiscardHandler)})
			rec := &record.Container{ID: "c", SandboxID: "p"}
			if err := p.Adjustment(rec, &record.Sandbox{ID: "p"}).Apply(t.Context(), &specs.Spec{}, nil); err != nil {
				t.Fatal(err)
			}
			if p.containers["c"] == nil {
				t.Error("a container is not known while it is created")
			}
			if err := end(p, rec); err != nil {
				t.Error(err)
			}
			if len(p.containers) > 0 {
				t.Errorf("known: %v", p.containers)
			}
		})
	}
}
