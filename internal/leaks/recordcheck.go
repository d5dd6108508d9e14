package leaks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/doctor"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/finding"
	"github.com/berthrun/berth/internal/store"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// RecordChecks are the checks of what berth has written: its records, the opposite of leaks, which are objects without one,
// and the lock, the times and the databases beside them.
func RecordChecks() []doctor.Check[*Facts] {
	return []doctor.Check[*Facts]{
		{
			Info: doctor.Info{ID: "daemon", Title: "berth's process", Reads: "the lock of berth's state directory, the process that has it, and its answer on the CRI socket"},
			Look: examineDaemon,
		},
		{
			Info: doctor.Info{ID: "clock", Title: "clock", Reads: "the clock, and the times of berth's records and databases"},
			Look: examineClock,
		},
		{
			Info: doctor.Info{ID: "image-files", Title: "files of the image store", Reads: "both databases, the directories and the lists of lost images and of imported archives in `images` below berth's root"},
			Look: examineImageFiles,
		},
		{
			Info: doctor.Info{
				ID: "records", Title: "records",
				Reads: "records of sandboxes, containers and attachments, and the network namespaces and cgroups that they name; the directories `quarantine` below berth's root",
			},
			Look: examineRecords,
		},
		{
			Info: doctor.Info{ID: "network-detach", Title: "pods that cannot be detached", Reads: "records of attachments to networks of CNI plugins whose last DEL has failed"},
			Look: examineDetach,
		},
	}
}

// fault is what is wrong with one record.
type fault struct {
	level                 finding.Level
	file                  string
	object, evidence, fix string
}

// examineRecords reports what is wrong with a record, and still is after settle: the daemon writes records, and removes
// objects, at any time.
func examineRecords(ctx context.Context, f *Facts, r *doctor.Report) error {
	if err := f.quarantine(r); err != nil {
		return err
	}
	found, err := f.recordFaults()
	if err != nil || len(found) == 0 {
		return err
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(settle):
	}
	again, err := f.recordFaults()
	if err != nil {
		return err
	}
	for _, one := range again {
		if slices.ContainsFunc(found, func(earlier fault) bool { return earlier.file == one.file && earlier.object == one.object }) {
			r.Add(one.level, one.object, one.evidence, one.fix)
		}
	}
	return nil
}

// quarantine reports records and databases that an earlier start of berth could not read.
func (f *Facts) quarantine(r *doctor.Report) error {
	for _, dir := range []string{"pods", "network", "network/cni", "network/builtin", "images"} {
		at := filepath.Join(f.Root, dir, "quarantine")
		entries, err := os.ReadDir(at)
		if err = errs.IgnoreNotExist(err); err != nil {
			return fmt.Errorf("cannot list the quarantine: %w", err)
		}
		if len(entries) == 0 {
			continue
		}
		var names []string
		for _, entry := range entries[:min(len(entries), 3)] {
			names = append(names, entry.Name())
		}
		if more := len(entries) - len(names); more > 0 {
			names = append(names, fmt.Sprintf("%d more", more))
		}
		r.Add(finding.Warning, at, fmt.Sprintf("files that an earlier start of berth could not read are in %s: %s", at, strings.Join(names, ", ")),
			"berth's log says what is wrong with each; remove the directory when you do not need them any more")
	}
	return nil
}

// sandboxRecord is what the check needs of the record of a sandbox.
type sandboxRecord struct {
	State  string
	Config json.RawMessage
	Engine struct {
		NetNS        string
		CgroupParent string
	}
}

// ready is the state of a sandbox whose objects must all be there: its teardown records another one first.
const ready = "ready"

// recordFaults looks at each record once.
func (f *Facts) recordFaults() ([]fault, error) {
	var all []fault
	for _, kind := range []struct{ dir, what, remove string }{
		{f.sandboxDir(), "sandbox", "berth pod rm --force "},
		{f.containerDir(), "container", "berth container rm --force "},
	} {
		if err := eachRecord(kind.dir, func(file, id string) error {
			record, err := readRecord[sandboxRecord](file)
			if err == nil && (record.State == "" || len(record.Config) == 0) {
				err = errors.New("the record is damaged: state or config is missing")
			}
			switch {
			case errors.Is(err, fs.ErrNotExist): // removed meanwhile
			case err != nil:
				all = append(all, fault{
					finding.Problem, file, file,
					fmt.Sprintf("the record of %s %s cannot be read: %v; the next start of berth moves the file to the quarantine, and the kubelet no longer sees the %[1]s", kind.what, id, err),
					"before berth restarts (until then it has the record in memory): " + kind.remove + id + ", or delete the pod: its controller creates it again",
				})
			case kind.dir == f.sandboxDir() && record.State == ready:
				missing, err := f.missingObjects(file, id, record)
				if err != nil {
					return err
				}
				all = append(all, missing...)
			}
			return nil
		}); err != nil {
			return nil, err
		}
	}
	for _, dir := range f.attachmentDirs() {
		if err := eachRecord(dir, func(file, id string) error {
			if _, err := readRecord[json.RawMessage](file); err != nil && !errors.Is(err, fs.ErrNotExist) {
				all = append(all, fault{
					finding.Problem, file, file,
					fmt.Sprintf("the record of the network of sandbox %s cannot be read: %v; its addresses and host ports may stay taken", id, err),
					"delete the pod before berth restarts: its controller creates it again",
				})
			}
			return nil
		}); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// missingObjects are the faults of a ready sandbox.
func (f *Facts) missingObjects(file, id string, record *sandboxRecord) ([]fault, error) {
	if !f.Native {
		return nil, nil // another engine has these objects, and says so
	}
	var all []fault
	add := func(object, what, means string) {
		all = append(all, fault{
			finding.Problem, file, object,
			fmt.Sprintf("the record of sandbox %s (%s) says that it is ready, but its %s %s is gone: %s", id, file, what, object, means),
			"berth pod stop " + id + ", or delete the pod: its controller creates it again",
		})
	}
	if path := record.Engine.NetNS; path != "" {
		has, err := f.Host.HasNetNS(path)
		if err != nil {
			return nil, err
		}
		if !has {
			add(path, "network namespace", "containers that start in it fail, and exec and port-forward may, too")
		}
	}
	if parent := record.Engine.CgroupParent; parent != "" {
		has, err := f.Host.HasCgroup(parent)
		if err != nil {
			return nil, err
		}
		if !has {
			add(parent, "cgroup", "its limits do not hold, and its figures are missing")
		}
	}
	return all, nil
}

// readRecord is store.Read for what is in the place of a record, and may be of another type: a pipe would block.
func readRecord[T any](file string) (*T, error) {
	info, err := os.Lstat(file)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	return store.Read[T](file)
}

// eachRecord calls do with each record in a directory. A directory that does not exist has no records.
func eachRecord(dir string, do func(file, id string) error) error {
	entries, err := os.ReadDir(dir)
	if err = errs.IgnoreNotExist(err); err != nil {
		return fmt.Errorf("cannot list records: %w", err)
	}
	for _, entry := range entries {
		id, ok := strings.CutSuffix(entry.Name(), ".json")
		if !ok || strings.HasPrefix(id, sysfile.TempPrefix) {
			continue
		}
		if err := do(filepath.Join(dir, entry.Name()), id); err != nil {
			return err
		}
	}
	return nil
}
