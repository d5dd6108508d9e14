package cri

import (
	"errors"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
)

func TestCheckCommand(t *testing.T) {
	for _, cmd := range [][]string{nil, {""}, {"sh", "-c", "a\x00b"}} {
		if err := checkCommand(cmd); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "cmd") {
			t.Errorf("%q: %v", cmd, err)
		}
	}
	if err := checkCommand([]string{"sh", ""}); err != nil {
		t.Error(err)
	}
}
