//go:build integration

package differential

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/ocispec/request"
	"github.com/berthrun/berth/test/harness"
)

// seedVariable repeats a run of random containers.
const seedVariable = "BERTH_DIFF_SEED"

// onlyVariable selects containers by a part of their description.
const onlyVariable = "BERTH_DIFF_ONLY"

// randomInCI is how many random containers CI starts on both sides.
const randomInCI = 12

// TestSameRandomContainers starts containers that have several features at once.
func TestSameRandomContainers(t *testing.T) {
	newPair(t).random(t, randomInCI)
}

// random starts n random containers. Each depends on the seed and its number alone.
func (p *pair) random(t *testing.T, n int) *tally {
	t.Helper()
	seed := harness.Seed(t, seedVariable)
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("%s=%d repeats this run", seedVariable, seed)
	counts := p.inParallel(t, n, func(i int) (trial, error) { return p.randomTrial(seed, i) })
	t.Log(counts)
	return counts
}

// randomTrial composes features that go together. Requests that package ocispec refuses are replaced by
// the next ones.
func (p *pair) randomTrial(seed uint64, i int) (tr trial, err error) {
	all := features()
	names := slices.Sorted(maps.Keys(all))
	for attempt := range 50 {
		r := rand.New(rand.NewPCG(seed, uint64(i)<<8+uint64(attempt)))
		d := p.draft(fmt.Sprint("r", i))
		var what []string
		for _, name := range names {
			// The common features are often there, the others seldom: a container that fails shows little.
			if r.IntN(100) >= likely(name) {
				continue
			}
			for range 1 + r.IntN(2) {
				form := pick(r, slices.Sorted(maps.Keys(all[name])))
				if unlikely(form) && r.IntN(8) > 0 {
					continue
				}
				all[name][form](d)
				what = append(what, name+": "+form)
			}
		}
		d.trial.what = strings.Join(what, "; ")
		if r.IntN(3) == 0 {
			d.trial.execs = []execTrial{randomExec(r)}
		}
		if tr, err = d.finish(); err == nil {
			tr.mayDiffer = changesSources(tr.spec)
			return tr, nil
		}
	}
	return trial{}, fmt.Errorf("no container of 50 is possible: %w", err)
}

// changesSources says whether a mount lies in a volume that is shared with the host, "" for none. It appears
// on the host, and may cover the source of a later mount. libcontainer looks for each source when it makes
// the mount, berth's init for all of them before.
func changesSources(spec *specs.Spec) string {
	for i, m := range spec.Mounts {
		if !slices.Contains(m.Options, "rshared") {
			continue
		}
		for _, later := range spec.Mounts[i+1:] {
			if request.IsBelow(later.Destination, m.Destination) {
				return "a mount in a shared volume may cover the source of a later one"
			}
		}
	}
	return ""
}

func likely(feature string) int {
	switch feature {
	case "volume", "capabilities", "resources", "user", "seccomp":
		return 50
	case "id-mapped volume", "spec", "mount of the spec":
		return 5
	case "update", "user namespace", "root filesystem", "limits of processes":
		return 15
	}
	return 25
}

// unlikely are forms of containers that do not start.
func unlikely(form string) bool {
	for _, word := range []string{"absent", "bad", "unknown", "wrong", "gone", "no program", "no interpreter", "not executable", "directory", "too little", "file", "root", "empty", "dangling", "exit", "script", "failing", "forbidden", "cannot read", "in /", "on a setting", "on uptime", "no process", "tmpfs"} {
		if strings.Contains(form, word) {
			return true
		}
	}
	return false
}

func pick[T any](r *rand.Rand, list []T) T { return list[r.IntN(len(list))] }

// ownStarter is supervisor.Container.Starter of a container that berth's init has created.
const ownStarter = "own"

// tally counts containers by what started them on the own side.
type tally struct {
	mu      sync.Mutex
	own     int
	others  map[string]int
	refused []string
}

func (c *tally) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d containers with berth's own init, %d that no side creates", c.own, len(c.refused))
	for _, reason := range slices.SortedFunc(maps.Keys(c.others), func(x, y string) int { return c.others[y] - c.others[x] }) {
		fmt.Fprintf(&b, "\n%5d with %s", c.others[reason], reason)
	}
	for _, refusal := range c.refused {
		fmt.Fprintf(&b, "\n      not created: %s", refusal)
	}
	return b.String()
}

// errLeftOut is the error of a case that does not run.
var errLeftOut = errors.New("left out")

// inParallel compares n trials, some at a time.
func (p *pair) inParallel(t *testing.T, n int, make func(i int) (trial, error)) *tally {
	t.Helper()
	counts := &tally{others: map[string]int{}}
	var g errgroup.Group
	g.SetLimit(3)
	for i := range n {
		g.Go(func() error {
			tr, err := make(i)
			if errors.Is(err, errLeftOut) || !strings.Contains(tr.what, os.Getenv(onlyVariable)) {
				return nil
			}
			if err != nil {
				t.Errorf("container %d: %v", i, err)
				return nil
			}
			counts.add(tr, p.compare(t, tr))
			return nil
		})
	}
	_ = g.Wait()
	return counts
}

func (c *tally) add(tr trial, r result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.container == nil {
		c.refused = append(c.refused, fmt.Sprintf("%s (%s): %s", tr.id, tr.what, r.notes))
		return
	}
	if r.container.Starter == ownStarter {
		c.own++
		return
	}
	c.others[r.container.Starter+": "+r.container.StarterReason]++
}
