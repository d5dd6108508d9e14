package berth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/errs"
)

// The files in the directory of a node.
const (
	recordName = "node.json"
	hostsName  = "hosts"   // its /etc/hosts
	storage    = "storage" // what it writes; berth's run.berth.storage
	// storageVolumes is its directory with the volumes; all else depends on the image.
	storageVolumes = "volumes"
	logs           = "log" // one file for each run
)

// record is the record of a node. It is written before any other part of the node is created.
type record struct {
	Spec provider.Spec `json:"spec"`
	// UID distinguishes the node from an earlier one of its name. It is the pod's.
	UID string `json:"uid"`
	// Run counts its starts. It is the attempt of the pod and of the container.
	Run uint32 `json:"run"`
	// Addresses are those that it has or will have.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// Ports are its host ports, including those that were picked for the last run.
	Ports []plan.Port `json:"ports,omitempty"`
	// Stopped: somebody stopped it, so it stays stopped when the host boots.
	Stopped bool `json:"stopped,omitempty"`
	// Released: only its volumes are left, which the next node of its name may get.
	Released bool `json:"released,omitempty"`
}

func (r *record) name() string    { return r.Spec.Name }
func (r *record) cluster() string { return r.Spec.Labels[plan.LabelCluster] }

// isNode: systemd runs in it.
func (r *record) isNode() bool { return r.Spec.Command == nil }

// nodeDir is the directory of a node.
func (e *Provider) nodeDir(name string) string { return filepath.Join(e.dir, name) }

// safeName matches host names, which names of nodes are. Any other name could lead to another path.
func safeName(name string) error {
	if name == "" || name[0] == '.' || strings.ContainsAny(name, "/\x00") {
		return fmt.Errorf("%q is not a name of a node: %w", name, errs.Invalid)
	}
	return nil
}

// read reads the record of a node. The error is errs.NotFound if there is none.
func (e *Provider) read(name string) (*record, error) {
	if err := safeName(name); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(e.nodeDir(name), recordName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("node %s: %w", name, errs.NotFound)
	}
	var r record
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err == nil && r.name() != name {
		err = fmt.Errorf("it is of %q: %w", r.name(), errs.Invalid)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read what is known of the node %s; if it is damaged, remove the directory %s: %w", name, e.nodeDir(name), err)
	}
	return &r, nil
}

// write replaces the record of a node atomically.
func (e *Provider) write(r *record) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	file := filepath.Join(e.nodeDir(r.name()), recordName)
	err = writeSynced(file+".part", append(text, '\n'))
	if err == nil {
		err = os.Rename(file+".part", file)
	}
	if err != nil {
		return fmt.Errorf("cannot write down the node %s: %w", r.name(), err)
	}
	return nil
}

// writeSynced writes a file that is complete after a power cut. Only its owner can read it: it has
// the environment, with passwords of proxies.
func writeSynced(name string, text []byte) error {
	file, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	return errors.Join(err, file.Sync(), file.Close())
}

// records are those of a cluster, of all clusters for "", sorted by name; with an error, those that
// can be read. A directory without a record is left from a killed register or Delete: it has no
// cluster. Released nodes do not count.
func (e *Provider) records(cluster string) ([]*record, error) {
	all, err := e.recordsWithReleased(cluster)
	return slices.DeleteFunc(all, func(r *record) bool { return r.Released }), err
}

func (e *Provider) recordsWithReleased(cluster string) ([]*record, error) {
	entries, err := os.ReadDir(e.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot list nodes: %w", err)
	}
	var all []*record
	var failed []error
	for _, entry := range entries {
		if !entry.IsDir() || entry.Name()[0] == '.' {
			continue
		}
		r, err := e.read(entry.Name())
		switch {
		case err != nil:
			failed = append(failed, errs.IgnoreNotFound(err))
		case cluster == "" || r.cluster() == cluster:
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b *record) int { return strings.Compare(a.name(), b.name()) })
	return all, errors.Join(failed...)
}

// register creates records of new nodes, all or none, with free addresses.
func (e *Provider) register(ctx context.Context, r provider.Request, uid string) (made []*record, err error) {
	if err := os.MkdirAll(e.dir, 0o711); err != nil {
		return nil, fmt.Errorf("cannot make the directory of nodes: %w", err)
	}
	err = e.alone(ctx, func() error {
		if err := e.unused(r.Specs); err != nil {
			return err
		}
		taken, err := e.taken(ctx)
		if err != nil {
			return err
		}
		for _, spec := range r.Specs {
			spec.Labels = r.Labels(spec)
			record := &record{Spec: spec, UID: uid, Ports: spec.Ports}
			if record.Addresses, err = choose(r.Network, spec.Name, taken); err != nil {
				return err
			}
			made = append(made, record)
		}
		for i, record := range made {
			if err := e.makeNodeDir(record); err != nil {
				return errors.Join(err, e.dropDirs(made[:i+1]))
			}
		}
		return nil
	})
	return made, err
}

// unused checks that names are free. A directory without a record does not take its name.
func (e *Provider) unused(specs []provider.Spec) error {
	var taken []string
	for _, spec := range specs {
		if err := safeName(spec.Name); err != nil {
			return err
		}
		r, err := e.read(spec.Name)
		switch {
		case err == nil && !r.Released:
			taken = append(taken, spec.Name)
		case errs.IgnoreNotFound(err) != nil:
			return err
		default:
			drop := e.dropDir
			if spec.Reuse {
				drop = e.dropAllButVolumes
			}
			if err := drop(spec.Name); err != nil {
				return err
			}
		}
	}
	if len(taken) > 0 {
		return fmt.Errorf("node(s) called %s exist already; choose another name for the cluster, or delete them: %w", strings.Join(taken, ", "), errs.Exists)
	}
	return nil
}

// makeNodeDir creates the directory of a node, and the record in it.
func (e *Provider) makeNodeDir(r *record) error {
	dir := e.nodeDir(r.name())
	for _, d := range []string{dir, filepath.Join(dir, logs)} {
		if err := os.Mkdir(d, 0o711); err != nil && (!r.Spec.Reuse || !errors.Is(err, fs.ErrExist)) {
			return fmt.Errorf("cannot make the directory of the node %s: %w", r.name(), err)
		}
	}
	return e.write(r)
}

func (e *Provider) dropDirs(all []*record) error {
	var failed []error
	for _, r := range all {
		failed = append(failed, e.dropDir(r.name()))
	}
	return errors.Join(failed...)
}

// dropDir removes the directory of a node. The caller holds the lock of alone: otherwise
// updateHosts could write into it.
func (e *Provider) dropDir(name string) error {
	if err := e.emptyDir(name); err != nil {
		return err
	}
	if err := os.RemoveAll(e.nodeDir(name)); err != nil {
		return fmt.Errorf("cannot remove the directory of the node %s: %w", name, err)
	}
	return nil
}

// emptyDir empties the directory of a node except for hosts and the record, which a second Delete
// needs. It does not enter mounts.
func (e *Provider) emptyDir(name string) error {
	dir := e.nodeDir(name)
	if err := unmounted(dir); err != nil {
		return fmt.Errorf("cannot remove the directory of the node %s: %w", name, err)
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	failed := []error{err}
	for _, entry := range entries {
		if entry.Name() != recordName && entry.Name() != hostsName {
			failed = append(failed, os.RemoveAll(filepath.Join(dir, entry.Name())))
		}
	}
	if err := errors.Join(failed...); err != nil {
		return fmt.Errorf("cannot remove the directory of the node %s: %w", name, err)
	}
	return nil
}

// dropAllButVolumes removes all parts of a node except the volumes in its storage and the record,
// which a Delete needs.
func (e *Provider) dropAllButVolumes(name string) error {
	dir := e.nodeDir(name)
	if err := unmounted(dir); err != nil {
		return fmt.Errorf("cannot remove what the directory of the node %s holds: %w", name, err)
	}
	failed := append(removeOthers(filepath.Join(dir, storage), storageVolumes), removeOthers(dir, storage, recordName)...)
	if err := errors.Join(failed...); err != nil {
		return fmt.Errorf("cannot remove what the directory of the node %s holds: %w", name, err)
	}
	return nil
}

// removeOthers removes the entries of a directory except some names. An absent directory is empty.
func removeOthers(dir string, names ...string) (failed []error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		failed = append(failed, err)
	}
	for _, entry := range entries {
		if !slices.Contains(names, entry.Name()) {
			failed = append(failed, os.RemoveAll(filepath.Join(dir, entry.Name())))
		}
	}
	return failed
}

// unmounted is nil if nothing is mounted below a directory: a removal would empty the mount.
func unmounted(dir string) error {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		// Spaces and the like are written as octal numbers; names of nodes have none.
		if at := fields[4]; strings.HasPrefix(at, dir+"/") {
			return fmt.Errorf("something is mounted on %s; unmount it first: %w", at, errs.State)
		}
	}
	return nil
}

// lockPause is the time between two tries of a lock that another process holds.
const lockPause = 20 * time.Millisecond

// alone calls a function while no other process chooses addresses or names.
func (e *Provider) alone(ctx context.Context, do func() error) error {
	file, err := os.Open(e.dir)
	if err != nil {
		return fmt.Errorf("cannot lock the directory of nodes: %w", err)
	}
	defer file.Close()
	if err := lock(ctx, file); err != nil {
		return fmt.Errorf("cannot lock the directory of nodes %s: %w", e.dir, err)
	}
	return do()
}

// withNode calls a function while no other process changes a node.
func (e *Provider) withNode(ctx context.Context, name string, do func(*record) error) error {
	for {
		r, err := e.read(name)
		if err != nil {
			return err
		}
		file, err := os.Open(e.nodeDir(name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("cannot lock the node %s: %w", name, err)
		}
		again, err := func() (again bool, err error) {
			defer file.Close()
			if err := lock(ctx, file); err != nil {
				return false, fmt.Errorf("cannot lock the node %s: %w", name, err)
			}
			// Another process may have deleted the node, or created a new one, during the wait.
			if now, err := os.Stat(e.nodeDir(name)); err != nil || !same(file, now) {
				return true, nil
			}
			if r, err = e.read(name); err != nil {
				return false, err
			}
			return false, do(r)
		}()
		if !again {
			return err
		}
	}
}

func same(file *os.File, other fs.FileInfo) bool {
	info, err := file.Stat()
	return err == nil && os.SameFile(info, other)
}

// lock takes a lock that closing the descriptor releases.
func lock(ctx context.Context, file *os.File) error {
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(lockPause):
		}
	}
}
