package profile

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// TestWrite: each profile has a content, in the format of its kind. One of a time ends with the context.
func TestWrite(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, name := range Names() {
		var to bytes.Buffer
		if err := Write(ended, &to, Options{Name: name, Duration: time.Minute}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if name == Trace {
			if !strings.HasPrefix(to.String(), "go 1.") {
				t.Errorf("%s begins with %q", name, to.Bytes()[:min(16, to.Len())])
			}
			continue
		}
		unpacked, err := gzip.NewReader(&to)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if content, err := io.ReadAll(unpacked); err != nil || len(content) == 0 {
			t.Errorf("%s: %d bytes, %v", name, len(content), err)
		}
	}
}

func TestText(t *testing.T) {
	var to bytes.Buffer
	if err := Write(t.Context(), &to, Options{Name: "goroutine", Text: true}); err != nil || !strings.Contains(to.String(), "profile.TestText(") {
		t.Errorf("%v: %s", err, &to)
	}
}

func TestRefusals(t *testing.T) {
	for name, opts := range map[string]Options{
		"unknown":  {Name: "weather"},
		"none":     {},
		"too long": {Name: CPU, Duration: time.Hour},
		"negative": {Name: CPU, Duration: -1},
		"no text":  {Name: CPU, Text: true},
	} {
		if err := Write(t.Context(), io.Discard, opts); !errors.Is(err, errs.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
