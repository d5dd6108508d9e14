package nri

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/adaptation"
)

// TestLogOfTheLibrary: a library that was built without WebAssembly plugins is no fault. Its other errors
// are logged.
func TestLogOfTheLibrary(t *testing.T) {
	var lines bytes.Buffer
	log := libraryLog{slog.New(slog.NewTextHandler(&lines, nil))}
	log.Errorf(t.Context(), "failed to initialize WASM support: %v", adaptation.ErrWasmDisabled)
	log.Errorf(t.Context(), "failed to initialize WASM support: %v", fmt.Errorf("at start: %w", adaptation.ErrWasmDisabled))
	if lines.Len() > 0 {
		t.Errorf("logged: %s", &lines)
	}
	log.Warnf(t.Context(), "failed to synchronize plugin %q: %v", "10-x", errors.New("it ended"))
	if got := lines.String(); !strings.Contains(got, "level=WARN") || !strings.Contains(got, "it ended") {
		t.Errorf("logged outside of a start: %q", got)
	}
	lines.Reset()
	log.Errorf(t.Context(), "failed to start plugin %q: %v", "10-x", errors.New("it ended"))
	if got := lines.String(); !strings.Contains(got, "level=ERROR") || !strings.Contains(got, `failed to start plugin \"10-x\": it ended`) {
		t.Errorf("logged: %q", got)
	}
}
