// Package runtimecgroup keeps the processes of a Docker Engine in a cgroup of their own, with an
// oom_score_adj that spares them: dockerd, and the containerd that is its child. They stay there
// when the engine restarts. Containers and their shims are not touched.
//
// The package finds the engine by its socket, and knows nothing of containers.
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
// Invalid: the endpoint is not a unix socket, whose peer can be found.
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
	for i := range found {
		err = errors.Join(err, k.settle(&found[i]))
	}
	if err != nil && !k.failed && ctx.Err() == nil {
		k.opts.Log.Warn("the engine's processes cannot be kept in their cgroup", "cgroup", k.opts.Cgroup, "error", err)
	}
	k.failed = err != nil
}

// settle moves one process, and sets its score. It does nothing to another process that has got the
// pid meanwhile.
func (k *Keeper) settle(p *process) error {
	there, err := k.opts.Tree.Admitted(k.opts.Cgroup, p.Pid)
	if err == nil && !there && p.same() {
		if err = k.opts.Tree.Admit(k.opts.Cgroup, p.Pid); err == nil {
			k.opts.Log.Info("moved a process of the Docker engine into its cgroup", "pid", p.Pid, "cgroup", k.opts.Cgroup)
		}
	}
	if !p.same() {
		return errs.IgnoreNotFound(err)
	}
	return errors.Join(errs.IgnoreNotFound(err), errs.IgnoreNotFound(sysproc.SetOOMScoreAdjOf(p.Pid, oomScoreAdj)))
}
