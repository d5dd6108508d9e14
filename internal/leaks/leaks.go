// Package leaks finds what a berth has left on the host without a record: mounts, namespaces, cgroups,
// processes, links, rules and addresses. It repairs what is safe to repair.
//
// A record is written before the first object of a sandbox or container is made, and is removed after
// the last one is gone. Ids are random and never used again. So an object is a leak if it is there,
// then has no record, and then is still there: a pod that starts or ends meanwhile never looks like
// one. And an object that was a leak once stays one, until somebody removes it.
package leaks

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/doctor"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/finding"
	"github.com/berthrun/berth/internal/sys/sysfd"
)

// Config says which berth is examined, and how.
type Config struct {
	// Instance is its name among those on the host.
	Instance string
	// Root and State are its directories, without links in their paths.
	Root, State string
	// Native: berth runs containers itself, and not through another engine.
	Native bool
	// Socket is the path of its CRI socket.
	Socket string
	// NetNSDir is where it pins network namespaces.
	NetNSDir string
	// CNIConfDir has the configurations of its CNI plugins.
	CNIConfDir string
	// Bridge and Table are the names of its bridge and its tables of nftables.
	Bridge, Table string
	// Builtin: berth is configured for its own network, which has bridge and tables.
	Builtin bool
	// Ask asks the berth that runs. It is of kind Unavailable if none does.
	Ask func(ctx context.Context) (Answer, error)
	// Host is the kernel's part.
	Host Host
}

// Answer is what a berth that runs says of itself.
type Answer struct {
	// IDs are those of everything that it has a record of.
	IDs []string
	// State is its directory; empty if it is too old to say so. Then there are no IDs either.
	State string
	// Builtin: its network is its own.
	Builtin bool
}

// Facts are what the checks share, which may run at once. Make them with New, and Close them.
type Facts struct {
	Config
	claim claim
	// held returns the process that has a lock, as sysfd.LockHolder does.
	held func(path string) (pid int, err error)
	// asking is locked while berth is asked. unanswered is why it did not answer, though it runs. Then it is not asked again:
	// one that hangs would hold up every check.
	asking     sync.Mutex
	unanswered error
}

// New returns the facts of a berth.
func New(cfg Config) *Facts { return &Facts{Config: cfg, held: sysfd.LockHolder} }

// object is one thing on the host that belongs to a sandbox or container.
type object struct {
	// owner is what records have, such as an id. unowned: no record can have the object, whose owner is unknown.
	owner   string
	unowned bool
	// name is for people. key changes if the thing is replaced by another one with its name.
	name, key string
	// evidence says what it is, fix what to do by hand.
	evidence, fix string
	// does says what remove does; empty if doctor does not remove it.
	does string
	// remove removes it; nil if it is gone.
	remove func(ctx context.Context) error
	// processes: remove ends processes.
	processes bool
}

// source is one kind of objects.
type source struct {
	doctor.Info
	list func(ctx context.Context, f *Facts) ([]object, error)
	// owners returns what has a record, of the kind of owner that list has.
	owners func(f *Facts, ctx context.Context) (map[string]bool, error)
	// anyOwner: owners are no ids.
	anyOwner bool
	// refuse is why objects are not removed now, though the others are; nil for no reason.
	refuse func(ctx context.Context, f *Facts) error
}

// sources are all kinds.
func sources() []source {
	return []source{
		{Info: doctor.Info{ID: "leak-containers", Title: "containers without a record", Reads: "the supervisor's records"}, list: containers, owners: (*Facts).daemonIDs},
		{Info: doctor.Info{ID: "leak-processes", Title: "processes without a record", Reads: "cgroups below berth's own, and the processes in them"}, list: processes, owners: (*Facts).ids},
		{Info: doctor.Info{ID: "leak-cgroups", Title: "cgroups without a record", Reads: "cgroups below berth's own that have no processes"}, list: emptyCgroups, owners: (*Facts).ids},
		{Info: doctor.Info{ID: "leak-mounts", Title: "mounts without a record", Reads: "mounts below berth's state directory: root filesystems, images, namespaces, /dev/shm"}, list: mounts, owners: (*Facts).ids},
		{Info: doctor.Info{ID: "leak-netns", Title: "network namespaces without a record", Reads: "pins with berth's prefix in `network.netns_dir`"}, list: netns, owners: (*Facts).ids},
		{Info: doctor.Info{ID: "leak-links", Title: "network links without a record", Reads: "links with berth's alias on its bridge"}, list: links, owners: (*Facts).ids},
		{Info: doctor.Info{ID: "leak-nftables", Title: "nftables entries without a record", Reads: "berth's own tables: host ports and sources of frames"}, list: elements, owners: (*Facts).attached, anyOwner: true, refuse: whileBuiltinRuns},
		{Info: doctor.Info{ID: "leak-addresses", Title: "addresses without a record", Reads: "stores of the IPAM plugin host-local, of the configurations in use; berth's cache of CNI results"}, list: addresses, owners: (*Facts).ids},
		{Info: doctor.Info{ID: "leak-attachments", Title: "attachments without a sandbox", Reads: "records of attachments to networks"}, list: attachments, owners: (*Facts).sandboxIDs},
		{Info: doctor.Info{ID: "leak-files", Title: "files without a record", Reads: "directories of root filesystems, sandboxes and containers below berth's directories"}, list: files, owners: (*Facts).ids},
	}
}

// Checks are the checks for leaks.
func Checks() []doctor.Check[*Facts] {
	var all []doctor.Check[*Facts]
	for _, s := range sources() {
		all = append(all, doctor.Check[*Facts]{Info: s.Info, Look: s.look})
	}
	return all
}

// settle is how long an object is there without a record before it counts: what a daemon removes together is not
// gone in one moment.
const settle = 500 * time.Millisecond

// look reports the objects that are there, have no record then, and are still there, also after settle. A mount or a
// cgroup of a pod that ends between two lists is in the first one only; one of a pod that starts
// has its record before it is there.
func (s source) look(ctx context.Context, f *Facts, r *doctor.Report) error {
	found, err := s.settled(ctx, f)
	if f.isUnanswered(err) {
		r.NotRun("berth does not say what it has records of (see the check daemon)")
		return nil
	}
	if err != nil {
		return err
	}
	slices.SortFunc(found, func(a, b object) int { return strings.Compare(a.name, b.name) })
	for _, o := range found {
		if o.does == "" {
			r.Add(finding.Warning, o.name, o.evidence, o.fix)
			continue
		}
		r.AddRepairable(finding.Warning, o.name, o.evidence, o.fix, o.does, func(ctx context.Context) error { return s.mend(ctx, f, o) })
	}
	return nil
}

// settled are the objects that look reports.
func (s source) settled(ctx context.Context, f *Facts) ([]object, error) {
	found, err := s.list(ctx, f)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	for _, pause := range []time.Duration{0, settle} {
		if found, err = s.unowned(ctx, f, found); err != nil || len(found) == 0 {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(pause):
		}
		again, err := s.list(ctx, f)
		if err != nil {
			return nil, err
		}
		found = slices.DeleteFunc(found, func(o object) bool { return !contains(again, o) })
	}
	return s.unowned(ctx, f, found)
}

func contains(all []object, o object) bool {
	return slices.ContainsFunc(all, func(other object) bool { return other.name == o.name && other.key == o.key })
}

// unowned keeps the objects without a record.
func (s source) unowned(ctx context.Context, f *Facts, all []object) ([]object, error) {
	owned, err := s.owners(f, ctx)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(all), func(o object) bool { return owned[o.owner] || !s.anyOwner && !o.unowned && !isID(o.owner) }), nil
}

// isID reports whether a name is that of a sandbox or a container, as berth and Docker Engines make them.
// What has another name was made by somebody else.
func isID(name string) bool {
	_, err := hex.DecodeString(name)
	return err == nil && len(name) == 64
}

// mend removes an object, if it still is there without a record.
func (s source) mend(ctx context.Context, f *Facts, o object) error {
	if err := f.mayRepair(ctx, o.processes); err != nil {
		return err
	}
	if s.refuse != nil {
		if err := s.refuse(ctx, f); err != nil {
			return err
		}
	}
	left, err := s.unowned(ctx, f, []object{o})
	if err != nil {
		return err
	}
	if len(left) == 0 {
		return fmt.Errorf("%s has a record now: %w", o.name, errs.State)
	}
	now, err := s.list(ctx, f)
	if err != nil {
		return err
	}
	if !contains(now, o) {
		return nil // it is gone
	}
	return o.remove(ctx)
}
