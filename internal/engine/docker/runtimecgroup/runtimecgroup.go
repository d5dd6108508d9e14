// Package runtimecgroup keeps the processes of a Docker Engine in a cgroup of their own, with an
// oom_score_adj that spares them: dockerd, and the containerd that is its child. They stay there
// when the engine restarts. Containers and their shims are not touched.
//
// The package finds the engine by its socket, and knows nothing of containers. It also reads when the
// engine was started, and which scores its processes can set.
package runtimecgroup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/cgroup"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// oomScoreAdj is that of the engine's processes, as dockershim had it. The kernel kills nearly
// every other process first.
const oomScoreAdj = -999

// period is the time between two looks at the processes.
const period = time.Minute

// checkTimeout bounds the connection to an engine at the start.
const checkTimeout = 10 * time.Second

// Options configure a Keeper.
type Options struct {
	// Endpoint is the engine's address, unix:///PATH.
	Endpoint string
	// Cgroup is the path of the cgroup from the root of each hierarchy. It is made if it does
	// not exist, and it has no limits.
	Cgroup string
	Tree   *cgroup.Tree
	// Period is the time between two looks, 0 for one minute.
	Period time.Duration
	Log    *slog.Logger
}

// Keeper keeps the processes of one engine in their cgroup.
type Keeper struct {
	opts   Options
	socket string
	// failed is true if the last look failed, to log a fault once.
	failed bool
	end    context.CancelFunc
	ended  chan struct{}
}

// Start begins to look at the engine's processes, at once and then periodically, until Close. Kind
// Invalid: the endpoint is not a unix socket, whose peer can be found, or the engine is in a unit of
// systemd that it would leave; see checkUnit.
func Start(opts Options) (*Keeper, error) {
	socket, isUnix := strings.CutPrefix(opts.Endpoint, "unix://")
	if !isUnix {
		return nil, fmt.Errorf("docker.runtime_cgroup: the engine's endpoint is %s, and its processes can only be found by a unix socket; "+
			"leave the key empty: %w", opts.Endpoint, errs.Invalid)
	}
	if !filepath.IsAbs(opts.Cgroup) || filepath.Clean(opts.Cgroup) != opts.Cgroup || opts.Cgroup == "/" {
		return nil, fmt.Errorf("docker.runtime_cgroup: %q: want an absolute path other than /, such as /docker-runtime: %w", opts.Cgroup, errs.Invalid)
	}
	ctx, end := context.WithCancel(context.Background())
	k := &Keeper{opts: opts, socket: socket, end: end, ended: make(chan struct{})}
	checking, stop := context.WithTimeout(ctx, checkTimeout)
	defer stop()
	if err := k.check(checking); errors.Is(err, errs.Invalid) {
		end()
		return nil, err
	}
	go k.run(ctx)
	return k, nil
}

// Close ends the looks. The processes stay where they are.
func (k *Keeper) Close() {
	k.end()
	<-k.ended
}

func (k *Keeper) run(ctx context.Context) {
	defer close(k.ended)
	ticker := time.NewTicker(cmp.Or(k.opts.Period, period))
	defer ticker.Stop()
	for {
		k.look(ctx)
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// look moves the processes that are not where they should be. An engine that does not answer has
// none: others report that.
func (k *Keeper) look(ctx context.Context) {
	found, err := processes(ctx, k.socket)
	if errors.Is(err, errs.Unavailable) {
		return
	}
	var scored error
	for i := range found {
		move, score := k.settle(&found[i])
		err, scored = errors.Join(err, move), errors.Join(scored, score)
	}
	if ctx.Err() == nil {
		k.report(err, scored)
	}
}

// report logs the faults of a look, those of the cgroup and those of the scores, unless the look before
// it had some, too.
func (k *Keeper) report(moved, scored error) {
	again := k.failed
	k.failed = moved != nil || scored != nil
	if again {
		return
	}
	if moved != nil {
		k.opts.Log.Warn("the engine's processes cannot be kept in their cgroup", "cgroup", k.opts.Cgroup, "error", moved)
	}
	switch {
	case errors.Is(scored, errs.Unsupported):
		k.opts.Log.Warn("the oom_score_adj of the engine's processes cannot be lowered, because berth has no CAP_SYS_RESOURCE; "+
			"give berth the capability, or set OOMScoreAdjust= in the engine's unit", "error", scored)
	case scored != nil:
		k.opts.Log.Warn("the oom_score_adj of the engine's processes cannot be set", "error", scored)
	}
}

// check finds out whether the engine's processes may be moved. Each look does that again: the engine
// may start later.
func (k *Keeper) check(ctx context.Context) error {
	found, err := processes(ctx, k.socket)
	for i := range found {
		_, refused := k.admitted(found[i].Pid)
		err = errors.Join(err, refused)
	}
	return err
}

// admitted reports whether a process is in the cgroup. Kind Invalid: it must not be moved there.
func (k *Keeper) admitted(pid int) (bool, error) {
	there, err := k.opts.Tree.Admitted(k.opts.Cgroup, pid)
	if err != nil || there || !k.opts.Tree.V2 {
		return there, err
	}
	now, err := k.opts.Tree.OfProcess(pid)
	if err != nil {
		return false, err
	}
	return false, checkUnit(pid, k.opts.Tree.PathOf(now))
}

// checkUnit refuses a process of a systemd service on cgroup v2, where a process has one cgroup only.
// systemd would no longer find it: the service would count as ended and be started again. On cgroup
// v1 systemd has a hierarchy of its own, which is left alone. Kind Invalid.
func checkUnit(pid int, group string) error {
	for name := range strings.SplitSeq(group, "/") {
		if strings.HasSuffix(name, ".service") {
			return fmt.Errorf("docker.runtime_cgroup: process %d of the engine is in the systemd unit %s, which it would leave on cgroup v2; "+
				"leave the key empty, and set Slice= and OOMScoreAdjust= in a drop-in of %s: %w", pid, name, name, errs.Invalid)
		}
	}
	return nil
}

// settle moves one process, and sets its score; it returns the faults of both. It does nothing to
// another process that has got the pid meanwhile.
func (k *Keeper) settle(p *process) (moved, scored error) {
	there, err := k.admitted(p.Pid)
	if err == nil && !there && p.same() {
		if err = k.opts.Tree.Admit(k.opts.Cgroup, p.Pid); err == nil {
			k.opts.Log.Info("moved a process of the Docker engine into its cgroup", "pid", p.Pid, "cgroup", k.opts.Cgroup)
		}
	}
	if p.same() && !errors.Is(err, errs.Invalid) {
		scored = sysproc.SetOOMScoreAdjOf(p.Pid, oomScoreAdj)
	}
	return errs.IgnoreNotFound(err), errs.IgnoreNotFound(scored)
}
