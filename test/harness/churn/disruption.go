package churn

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
)

// disruption is a disruption of the node's own processes while pods run.
type disruption struct {
	name     string
	from, to time.Time // to is zero as long as it is under way
}

// disruptionKind is one kind of disruption.
type disruptionKind struct {
	name string
	do   func(r *run)
	// part is a part of the engine that it is about, a constant of package harness; "" for none.
	part string
}

// Names of disruptions. The kubelet's first start is none, but has the same consequences.
const (
	firstStart        = "first start"
	kubeletKilled     = "kubelet killed"
	kubeletStopped    = "kubelet stopped"
	daemonKilled      = "daemon killed"
	daemonStopped     = "daemon stopped"
	supervisorKilled  = "supervisor killed"
	supervisorUpgrade = "supervisor upgraded"
	keeperKilled      = "keeper killed"
	bothKilled        = "daemon and supervisor killed"
)

func disruptionKinds() []disruptionKind {
	return []disruptionKind{
		{name: kubeletKilled, do: func(r *run) { r.k.Kill(); r.k.Launch() }},
		{name: kubeletStopped, do: func(r *run) { r.k.Stop(); r.k.Launch() }},
		{name: daemonKilled, do: func(r *run) { r.b.KillDaemon(); r.b.StartDaemon() }},
		{name: daemonStopped, do: func(r *run) { r.b.StopDaemon(); r.b.StartDaemon() }},
		{name: supervisorKilled, part: harness.Supervisors, do: func(r *run) {
			before := r.b.SupervisorPid()
			harness.Kill(r.t, before)
			r.awaitSupervisor(before)
		}},
		{name: supervisorUpgrade, part: harness.Supervisors, do: func(r *run) {
			before := r.b.SupervisorPid()
			if err := syscall.Kill(r.b.KeeperPid(), syscall.SIGHUP); err != nil {
				r.t.Fatal(err)
			}
			r.awaitSupervisor(before)
		}},
		{name: keeperKilled, part: harness.Supervisors, do: func(r *run) {
			before := r.b.SupervisorPid()
			harness.Kill(r.t, r.b.KeeperPid())
			r.awaitSupervisor(before)
		}},
		{name: bothKilled, part: harness.Supervisors, do: func(r *run) {
			before := r.b.SupervisorPid()
			harness.Kill(r.t, before)
			r.b.KillDaemon()
			r.b.StartDaemon()
			r.awaitSupervisor(before)
		}},
	}
}

// berthAway are the disruptions during which berth does not answer the kubelet.
func berthAway() []string { return []string{daemonKilled, daemonStopped, bothKilled} }

// kubeletAway are the disruptions in which the kubelet loses what it has not reported yet.
func kubeletAway() []string { return []string{kubeletKilled, kubeletStopped} }

// disruptedSince reports whether one of these disruptions was under way since a moment.
func (r *run) disruptedSince(moment time.Time, names []string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.disruptions, func(u disruption) bool {
		return slices.Contains(names, u.name) && (u.to.IsZero() || u.to.After(moment))
	})
}

// disrupt causes one disruption after the other, half a minute apart, until the end. The last
// quarter of a minute has none, so that pods of the last scenarios can end.
func (r *run) disrupt(rng *rand.Rand, end time.Time) {
	kinds := slices.DeleteFunc(disruptionKinds(), func(k disruptionKind) bool { return k.part != "" && !r.b.Has(k.part) })
	for round := 0; ; round++ {
		if round%len(kinds) == 0 {
			rng.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
		}
		wait := 15*time.Second + randomUpTo(rng, 20*time.Second)
		if round%6 == 5 {
			// A kubelet removes dead containers when it has run for a minute. One that never does has
			// more of them at its next start than its channel of events holds.
			wait += 75 * time.Second
		}
		if time.Now().Add(wait+15*time.Second).After(end) || r.tooManyFailures() {
			return
		}
		time.Sleep(wait)
		r.do(kinds[round%len(kinds)])
		if r.opts.Evented && slices.Contains(berthAway(), kinds[round%len(kinds)].name) {
			// A kubelet tries five times without a pause to subscribe to events, then
			// lists until its next start.
			time.Sleep(5 * time.Second)
			r.do(disruptionKind{name: kubeletStopped, do: func(r *run) { r.k.Stop(); r.k.Launch() }})
		}
	}
}

// do causes a disruption, and records when.
func (r *run) do(kind disruptionKind) {
	from := time.Now()
	r.mu.Lock()
	r.disruptions = append(r.disruptions, disruption{name: kind.name, from: from})
	r.mu.Unlock()
	kind.do(r)
	r.mu.Lock()
	r.disruptions[len(r.disruptions)-1].to = time.Now()
	r.mu.Unlock()
	fmt.Fprintf(os.Stderr, "%s %s, %v; %d pods played\n", from.Format("15:04:05"), kind.name, time.Since(from).Round(time.Millisecond), r.count())
}

func (r *run) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	total := 0
	for _, n := range r.played {
		total += n
	}
	return total
}

// awaitSupervisor waits for a new supervisor.
func (r *run) awaitSupervisor(before int) {
	r.t.Helper()
	for deadline := time.Now().Add(require.Patience(30 * time.Second)); ; time.Sleep(10 * time.Millisecond) {
		if now := r.b.SupervisorPid(); now != 0 && now != before {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("there is no new supervisor after process %d", before)
		}
	}
}

// randomUpTo returns a random time.
func randomUpTo(rng *rand.Rand, d time.Duration) time.Duration {
	return time.Duration(rng.Int64N(int64(d)))
}
