package leaks

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network/builtin"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// The directories of records, below state and below root.
func (f *Facts) sandboxDir() string    { return filepath.Join(f.State, "pods", "sandboxes") }
func (f *Facts) containerDir() string  { return filepath.Join(f.State, "pods", "containers") }
func (f *Facts) supervisedDir() string { return filepath.Join(f.State, "supervisor", "supervisor") }

func (f *Facts) attachmentDirs() []string {
	return []string{
		filepath.Join(f.Root, "pods", "attachments"), filepath.Join(f.State, "network", "attachments"),
		filepath.Join(f.Root, "network", "cni", "attachments"), filepath.Join(f.Root, "network", "former", "attachments"),
	}
}

// ids are those of all records, on disk and in the memory of a berth that runs.
func (f *Facts) ids(ctx context.Context) (map[string]bool, error) {
	found, err := f.daemonIDs(ctx)
	if err != nil {
		return nil, err
	}
	for _, dir := range f.attachmentDirs() {
		if err := addRecords(found, dir); err != nil {
			return nil, err
		}
	}
	supervised, err := f.supervised()
	for _, id := range supervised {
		found[id] = true
	}
	return found, err
}

// daemonIDs are those of sandboxes and containers.
func (f *Facts) daemonIDs(ctx context.Context) (map[string]bool, error) {
	found, err := f.sandboxIDs(ctx)
	if err != nil {
		return nil, err
	}
	return found, addRecords(found, f.containerDir())
}

// sandboxIDs are those of sandboxes, and all that a berth that runs names.
func (f *Facts) sandboxIDs(ctx context.Context) (map[string]bool, error) {
	found := map[string]bool{}
	answer, err := f.ask(ctx)
	if err != nil && !errors.Is(err, errs.Unavailable) {
		return nil, fmt.Errorf("cannot ask berth what it has records of: %w", err)
	}
	for _, id := range answer.IDs {
		found[id] = true
	}
	return found, addRecords(found, f.sandboxDir())
}

// ask asks the berth that runs. Kind State if it is another one.
func (f *Facts) ask(ctx context.Context) (Answer, error) {
	f.asking.Lock()
	defer f.asking.Unlock()
	if f.unanswered != nil {
		return Answer{}, f.unanswered
	}
	answer, err := f.Ask(ctx)
	if err == nil && answer.State != "" && answer.State != f.State {
		err = fmt.Errorf("the berth that answers has the state directory %s, and not %s; give the flags of its `berth serve`: %w", answer.State, f.State, errs.State)
	}
	if err != nil {
		if !errors.Is(err, errs.Unavailable) {
			f.unanswered = err
		}
		return Answer{}, err
	}
	return answer, nil
}

// isUnanswered reports whether an error is that berth runs and has not answered.
func (f *Facts) isUnanswered(err error) bool {
	f.asking.Lock()
	defer f.asking.Unlock()
	return f.unanswered != nil && errors.Is(err, f.unanswered)
}

// supervised are the containers that the supervisor has.
func (f *Facts) supervised() ([]string, error) {
	entries, err := os.ReadDir(f.supervisedDir())
	if err != nil {
		return nil, errs.IgnoreNotExist(err)
	}
	var all []string
	for _, entry := range entries {
		if entry.IsDir() && !strings.HasPrefix(entry.Name(), sysfile.TempPrefix) {
			all = append(all, entry.Name())
		}
	}
	return all, nil
}

// addRecords adds the ids of the records in a directory.
func addRecords(to map[string]bool, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		if err = errs.IgnoreNotExist(err); err != nil {
			return fmt.Errorf("cannot list records: %w", err)
		}
		return nil
	}
	for _, entry := range entries {
		if id, ok := strings.CutSuffix(entry.Name(), ".json"); ok && !strings.HasPrefix(id, sysfile.TempPrefix) {
			to[id] = true
		}
	}
	return nil
}

// attached are the addresses and links of attachments to the built-in network.
func (f *Facts) attached(context.Context) (map[string]bool, error) {
	all, err := builtin.ReadAttached(filepath.Join(f.State, "network"))
	if err != nil {
		return nil, err
	}
	found := map[string]bool{}
	for _, a := range all {
		found[a.Link] = true
		for _, addr := range a.Addrs {
			found[addr.String()] = true
		}
	}
	return found, nil
}
