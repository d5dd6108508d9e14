package sysquota

import (
	"errors"
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/berthrun/berth/internal/errs"
)

// TestSizes: the kernel reads and writes so many bytes.
func TestSizes(t *testing.T) {
	for name, size := range map[string][2]uintptr{
		"fsxattr": {unsafe.Sizeof(fsxattr{}), 28}, "dqblk": {unsafe.Sizeof(dqblk{}), 72}, "statv": {unsafe.Sizeof(statv{}), 160},
	} {
		if size[0] != size[1] {
			t.Errorf("%s has %d bytes, want %d", name, size[0], size[1])
		}
	}
}

// TestWithoutQuotas: procfs has neither projects nor quotas.
func TestWithoutQuotas(t *testing.T) {
	if err := CanLimit("/proc"); !errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), "mounted with the option prjquota") {
		t.Errorf("limits: %v", err)
	}
	if p, err := ProjectOf("/proc"); err != nil || p != (Project{}) {
		t.Errorf("project: %+v, %v", p, err)
	}
	if _, err := Of("/proc", 7); err == nil {
		t.Error("there is a quota of projects")
	}
	if err := CanCount("/proc/no-such-directory"); !errors.Is(err, os.ErrNotExist) || errors.Is(err, errs.Unsupported) {
		t.Errorf("of nothing: %v", err)
	}
}

// TestLimits: a limit of bytes limits the inodes, too.
func TestLimits(t *testing.T) {
	for bytes, want := range map[int64]dqblk{
		0:         {valid: 5},
		1 << 20:   {hardBlocks: 1024, hardInodes: 4096, valid: 5},
		1<<30 + 1: {hardBlocks: 1<<20 + 1, hardInodes: 1 << 18, valid: 5},
	} {
		if got := limitsOf(Quota{}, bytes); got != want {
			t.Errorf("%d bytes: %+v, want %+v", bytes, got, want)
		}
	}
	beside := dqblk{hardBlocks: 1024 + 8, hardInodes: 4096 + 5000, valid: 5}
	if got := limitsOf(Quota{Bytes: 8 << 10, Inodes: 5000}, 1<<20); got != beside {
		t.Errorf("beside what is used: %+v, want %+v", got, beside)
	}
}
