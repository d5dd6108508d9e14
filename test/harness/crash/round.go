package crash

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/supervisor/keep"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysproc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// processes are berth's three, by pid.
type processes struct{ daemon, supervisor, keeper int }

// processes finds the three by the locks that two of them hold.
func (c *test) processes() (p processes) {
	state := filepath.Join(c.b.State, "supervisor")
	p.daemon = c.b.DaemonPid()
	p.supervisor, _ = sysfd.LockHolder(filepath.Join(state, keep.SupervisorLockName))
	p.keeper, _ = sysfd.LockHolder(filepath.Join(state, keep.LockName))
	return p
}

// round waits for a moment, kills, causes known exits in the gap, restarts and checks. With a
// stage, the moment is when a job reaches it.
func (c *test) round(number int, kind Kind, stage string) {
	if stage == "" {
		c.sleep(time.Duration(c.rng.Int64N(int64(require.Patience(1500 * time.Millisecond)))))
	}
	p, err := c.awaitProcesses()
	if err != nil {
		c.errorf("round %d: %v", number, err)
		return
	}
	hold := c.rng.IntN(4) > 0
	again := c.rng.IntN(5) == 0
	c.note("round %d: %s, hold %v, again %v, processes %+v, stage %q", number, kind, hold, again, p, stage)
	frozen := freeze(kind, hold, p)
	if stage != "" {
		c.awaitStage(stage)
	}
	done := c.beginOutage(kind)
	size := c.kill(kind, p)
	daemonDied := kind.daemonDies()
	at, err := c.stages.killed(kind, size, daemonDied)
	if err != nil {
		c.errorf("round %d: %v", number, err)
	}
	c.note("round %d: killed at %s", number, strings.Join(at, ", "))
	if hold {
		c.exitsInTheGap()
	}
	thaw(frozen)
	if daemonDied {
		c.b.LaunchDaemon()
	}
	over := func() {}
	if again {
		c.sleep(time.Duration(c.rng.Int64N(int64(150 * time.Millisecond))))
		if kind == Keeper && !sysproc.PidfdsReportExits() {
			// This process was the supervisor a moment ago: now no process is left that gets exits.
			over = c.beginWindow()
		}
		c.killAgain(kind, number)
	}
	c.recovered(number)
	over()
	done()
	c.checkAlive(number)
}

// freeze stops the processes that would restart the victims, so that the gap is long enough for an
// exit.
func freeze(kind Kind, hold bool, p processes) int {
	pid := 0
	switch {
	case !hold:
	case kind == Supervisor, kind == DaemonSupervisor:
		pid = p.keeper
	case kind == Keeper:
		pid = p.supervisor
	}
	if pid != 0 {
		_ = syscall.Kill(pid, syscall.SIGSTOP) // a victim that ended by itself is found below
	}
	return pid
}

func thaw(pid int) {
	if pid != 0 {
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
}

// beginOutage records that something is dead from now on, until done is called.
func (c *test) beginOutage(kind Kind) (done func()) {
	over := func() {}
	if kind == All {
		over = c.beginWindow()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.outages++
	return func() {
		over()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.outages++
	}
}

// beginWindow records that from now on, until over is called, no process may see exits.
func (c *test) beginWindow() (over func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := len(c.windows)
	c.windows = append(c.windows, window{from: time.Now()})
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.windows[i].to = time.Now()
	}
}

// kill kills in one instant, in a random order. The keeper dies before the supervisor: otherwise it
// would start a third one in between. It returns the length of the daemon's log at that time.
func (c *test) kill(kind Kind, p processes) (logged int64) {
	var victims []int
	switch kind {
	case Daemon:
		victims = []int{p.daemon}
	case Supervisor:
		victims = []int{p.supervisor}
	case Keeper:
		victims = []int{p.keeper}
	case DaemonSupervisor:
		victims = []int{p.supervisor, p.daemon}
	case All:
		victims = []int{p.keeper, p.supervisor, p.daemon}
	}
	if len(victims) > 1 {
		i := c.rng.IntN(len(victims)) // the daemon is killed here
		last := len(victims) - 1
		copy(victims[i+1:], victims[i:last])
		victims[i] = p.daemon
	}
	for _, pid := range victims {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			c.errorf("kill %d: %v", pid, err)
		}
	}
	logged = c.stages.size()
	for _, pid := range victims {
		c.awaitGone(pid)
	}
	if kind.daemonDies() {
		logged = c.stages.size() // it has written no further line
	}
	return logged
}

// awaitGone waits until a process no longer runs. Its parent may be stopped and leave it a zombie.
func (c *test) awaitGone(pid int) {
	for deadline := time.Now().Add(require.Patience(10 * time.Second)); ; time.Sleep(time.Millisecond) {
		proc, err := sysproc.ReadProc(pid)
		if err != nil || proc.Zombie() {
			break
		}
		if time.Now().After(deadline) {
			c.errorf("process %d does not die", pid)
			return
		}
	}
	if pid == c.b.DaemonPid() {
		c.b.KillDaemon() // reaps it
	}
}

// killAgain kills the restarted victims, during their recovery.
func (c *test) killAgain(kind Kind, number int) {
	p := c.processes()
	c.note("round %d: again, processes %+v", number, p)
	victims := map[Kind][]int{
		Daemon: {p.daemon}, Supervisor: {p.supervisor}, Keeper: {p.keeper},
		DaemonSupervisor: {p.supervisor, p.daemon}, All: {p.keeper, p.supervisor, p.daemon},
	}[kind]
	for _, pid := range victims {
		if pid > 1 {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may be gone
			c.awaitGone(pid)
		}
	}
	switch kind {
	case Daemon, DaemonSupervisor, All:
		if _, err := c.stages.killed(kind, c.stages.size(), true); err != nil {
			c.errorf("round %d: %v", number, err)
		}
		c.b.LaunchDaemon()
	default:
	}
}

// exitsInTheGap creates the trigger files that were held back, and waits for the exits.
func (c *test) exitsInTheGap() {
	fired := c.fireHeld(c.hasSettled)
	for _, one := range fired {
		deadline := time.Now().Add(require.Patience(10 * time.Second))
		for !c.hasEnded(one) {
			if time.Now().After(deadline) {
				c.errorf("container %.12s (%s, process %d) does not end on its trigger while something is dead", one.id, one.name, one.pid)
				return
			}
			time.Sleep(time.Millisecond) // no pidfd: see hasEnded
		}
		c.exits.dead.Add(1)
	}
	c.note("%d containers ended in the gap", len(fired))
}

// fireHeld creates the trigger files that were held back, of those that may exit.
func (c *test) fireHeld(may func(*container) bool) []*container {
	var fired []*container
	c.mu.Lock()
	c.held = slices.DeleteFunc(c.held, func(one *container) bool {
		if !may(one) {
			return false
		}
		fired = append(fired, one)
		return true
	})
	c.mu.Unlock()
	for _, one := range fired {
		if err := c.trigger(one); err != nil {
			c.errorf("trigger: %v", err)
		}
	}
	return fired
}

// awaitProcesses waits until all three are there.
func (c *test) awaitProcesses() (processes, error) {
	for deadline := time.Now().Add(require.Patience(30 * time.Second)); ; time.Sleep(2 * time.Millisecond) {
		p := c.processes()
		if c.b.Running() && p.supervisor > 0 && p.keeper > 0 && p.supervisor != p.keeper {
			return p, nil
		}
		if time.Now().After(deadline) {
			return p, fmt.Errorf("not all processes are there: %+v, the daemon runs: %v", p, c.b.Running())
		}
	}
}

// recovered returns when all three are back, and the daemon and the supervisor answer.
func (c *test) recovered(number int) {
	begin := time.Now()
	if _, err := c.awaitProcesses(); err != nil {
		c.errorf("round %d: %v", number, err)
		return
	}
	if err := c.retryWhileAway(func(ctx context.Context) error {
		_, err := c.runtime.Version(ctx, &runtimeapi.VersionRequest{})
		return err
	}); err != nil {
		c.errorf("round %d: the daemon does not come back: %v", number, err)
	}
	c.note("round %d: back after %s", number, time.Since(begin).Round(time.Millisecond))
}

// checkAlive checks that everything that should run does, and continues to write.
func (c *test) checkAlive(number int) {
	c.mu.Lock()
	lines := map[string]int{}
	for id, one := range c.alive {
		lines[id] = one.logs.seen()
	}
	c.mu.Unlock()
	var list *runtimeapi.ListContainersResponse
	if err := c.retryWhileAway(func(ctx context.Context) (err error) {
		list, err = c.runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
		return err
	}); err != nil {
		c.errorf("round %d: list: %v", number, err)
		return
	}
	states := map[string]runtimeapi.ContainerState{}
	for _, one := range list.Containers {
		states[one.Id] = one.State
	}
	for id, before := range lines {
		if one := c.stillExpected(id); one != nil && states[id] != runtimeapi.ContainerState_CONTAINER_RUNNING {
			c.errorf("round %d: container %.12s (%s) should run and is %s", number, id, one.name, states[id])
			continue
		}
		c.awaitLines(number, id, before)
	}
}

func (c *test) stillExpected(id string) *container {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.alive[id]
}

func (c *test) isQuiet(one *container) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return one.quiet
}

// awaitLines waits for a container's log to grow, while it is expected to run.
func (c *test) awaitLines(number int, id string, before int) {
	for deadline := time.Now().Add(awayTimeout() / 2); !c.failed(); time.Sleep(5 * time.Millisecond) {
		one := c.stillExpected(id)
		if one == nil || c.isQuiet(one) || one.logs.seen() > before {
			return
		}
		if time.Now().After(deadline) {
			c.errorf("round %d: container %.12s (%s) is running, and its log does not grow over line %d", number, id, one.name, before)
		}
	}
}

// awaitStage returns when a job reaches the stage, or after a while.
func (c *test) awaitStage(stage string) {
	mark := []byte("stage=" + stage + "\n")
	if strings.Contains(stage, " ") {
		mark = []byte(`stage="` + stage + "\"\n")
	}
	f, err := os.Open(c.stages.path)
	if err != nil {
		return
	}
	defer f.Close()
	if _, err := f.Seek(0, 2); err != nil {
		return
	}
	buf := make([]byte, 1<<16)
	for deadline := time.Now().Add(require.Patience(5 * time.Second)); time.Now().Before(deadline) && !c.failed(); {
		n, _ := f.Read(buf)
		if n > 0 && strings.Contains(string(buf[:n]), string(mark)) {
			return
		}
	}
}
