package child

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// TestProcessorTimeIsBounded: a layer gets processor time for its entries and bytes.
func TestProcessorTimeIsBounded(t *testing.T) {
	p := &progress{}
	name := "dir/slow"
	p.at.Store(&name)
	p.entries.Store(3)
	p.bytes.Store(5)
	want := cpuBase + 3*cpuEntry + 5*cpuByte
	if got := p.allowed(); got != want {
		t.Errorf("%s are allowed, want %s", got, want)
	}
	stuck := make(chan struct{})
	defer close(stuck)
	hang := func() (Result, error) { <-stuck; return Result{}, nil }
	_, err := p.within(func() time.Duration { return want + 1 }, hang)
	if !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), `"dir/slow"`) || !strings.Contains(err.Error(), "3 entries with 5 bytes") {
		t.Errorf("error %v", err)
	}
	result, err := p.within(func() time.Duration { return want }, func() (Result, error) { return Result{Size: 7}, nil })
	if err != nil || result.Size != 7 {
		t.Errorf("%+v, %v", result, err)
	}
	if ownCPU() <= 0 {
		t.Error("this process has taken no time")
	}
}
