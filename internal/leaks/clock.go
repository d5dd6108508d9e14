package leaks

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/berthrun/berth/internal/doctor"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/finding"
)

// Times of files are ahead of the clock by up to aheadWarning after a correction of the clock. One that is ahead of it by
// aheadProblem was written before the clock was lost: then certificates are not valid yet.
const (
	aheadWarning = 2 * time.Minute
	aheadProblem = 24 * time.Hour
)

// examineClock finds a clock that was set back: a machine without a battery begins in 1970 or at the time of its last
// image. It cannot be earlier than the files that berth has written.
func examineClock(_ context.Context, f *Facts, r *doctor.Report) error {
	var files []string
	for _, dir := range append(f.attachmentDirs(), f.sandboxDir(), f.containerDir(), filepath.Join(f.Root, "images"), filepath.Join(f.Root, "images", "snapshots")) {
		entries, err := os.ReadDir(dir)
		if err = errs.IgnoreNotExist(err); err != nil {
			return fmt.Errorf("cannot list %s: %w", dir, err)
		}
		for _, entry := range entries {
			if entry.Type().IsRegular() {
				files = append(files, filepath.Join(dir, entry.Name()))
			}
		}
	}
	var newest time.Time
	at := ""
	for _, file := range files {
		info, err := os.Lstat(file)
		if err != nil {
			continue // removed meanwhile
		}
		if info.ModTime().After(newest) {
			newest, at = info.ModTime(), file
		}
	}
	now := time.Now()
	ahead := newest.Sub(now)
	if at == "" || ahead < aheadWarning {
		return nil
	}
	level := finding.Warning
	if ahead >= aheadProblem {
		level = finding.Problem
	}
	r.Add(level, "clock", fmt.Sprintf("the clock says %s, and berth wrote %s at %s: the clock is slow by %s or more. Certificates of registries may not be valid yet, and ages of pods are wrong",
		now.UTC().Format(time.RFC3339), at, newest.UTC().Format(time.RFC3339), ahead.Round(time.Minute)),
		"timedatectl set-ntp true, or chronyc makestep; if the clock is right: touch "+at)
	return nil
}
