package berthapi_test

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/errs"
)

// TestProfile: root gets a profile of the daemon, others are refused.
func TestProfile(t *testing.T) {
	conn := connect(t, controlled(berthapi.JobControl{}).Register)
	var text bytes.Buffer
	err := conn.Berth.Profile(t.Context(), berthapi.ProfileRequest{Name: "goroutine", Text: true}, &text)
	if os.Getuid() != 0 {
		if !errors.Is(err, errs.State) || text.Len() > 0 {
			t.Errorf("a user gets %q, %v", &text, err)
		}
		return
	}
	if err != nil || !bytes.Contains(text.Bytes(), []byte("goroutine 1 [")) {
		t.Errorf("got %q, %v", &text, err)
	}
	if err := conn.Berth.Profile(t.Context(), berthapi.ProfileRequest{Name: "weather"}, &text); !errors.Is(err, errs.Invalid) {
		t.Errorf("an unknown profile: %v", err)
	}
}
