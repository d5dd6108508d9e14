package reload

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// TestLast: a refused reload is shown until an accepted one, and the keys that need a restart outlive it.
func TestLast(t *testing.T) {
	var last Last
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	shown := func() State {
		t.Helper()
		text, err := json.Marshal(last.State())
		if err != nil {
			t.Fatal(err)
		}
		state := Parse(map[string]string{"reload": string(text)})
		if !reflect.DeepEqual(state, last.State()) {
			t.Errorf("%s is read as %+v", text, state)
		}
		return state
	}
	if s := shown(); s.Refusal() != "" || s.Notices() != nil {
		t.Errorf("before the first reload: %+v", s)
	}
	last.Accept(at, []string{"network.mtu"})
	if s := shown(); s.Refusal() != "" || len(s.Notices()) != 1 || !strings.Contains(s.Notices()[0], "network.mtu") {
		t.Errorf("after a reload that needs a restart: %q", s.Notices())
	}
	last.Refuse(at, fmt.Errorf("a.toml:1: x: no such key\na.toml:2: y: no such key: %w", errs.Invalid))
	if s := shown(); s.Refusal() != "refused at 2026-01-02T03:04:05Z: a.toml:1: x: no such key; a.toml:2: y: no such key" || len(s.Notices()) != 2 {
		t.Errorf("after a refused reload: %q %q", s.Refusal(), s.Notices())
	}
	last.Accept(at, nil)
	if s := shown(); s.Notices() != nil {
		t.Errorf("after a good reload: %q", s.Notices())
	}
}

func TestRuntimeWithoutReloads(t *testing.T) {
	for _, text := range []string{"", "OK", "[]", "{}"} {
		if s := Parse(map[string]string{"reload": text}); s.Notices() != nil {
			t.Errorf("%q: %+v", text, s)
		}
	}
}
