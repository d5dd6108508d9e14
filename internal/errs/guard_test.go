package errs

import (
	"errors"
	"strings"
	"testing"
)

func TestGuardNamesTheWork(t *testing.T) {
	err := Guard("create container c1", func() error { panic("oh no") })
	if err == nil || !strings.Contains(err.Error(), "create container c1") || !strings.Contains(err.Error(), "oh no") {
		t.Errorf("a panic became %v", err)
	}
	if Kind(err) != nil {
		t.Errorf("its kind is %v, want none", Kind(err))
	}
	if err := Guard("stop", func() error { return State }); !errors.Is(err, State) {
		t.Errorf("an error became %v", err)
	}
	if err := Guard("stop", func() error { return nil }); err != nil {
		t.Errorf("success became %v", err)
	}
}
