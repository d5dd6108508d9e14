// Package meter reads the figures of sandboxes and containers: cgroups, networks,
// writable layers.
//
// It measures figures that take long or need two readings (rates of CPU, sizes of
// writable layers) in the background, so that a list of a full node is a pass over
// small files. It owns its measurements. Callers name the cgroups and namespaces.
package meter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/sys/cgroup"
	"github.com/berthrun/berth/internal/sys/sysfile"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// Target is one object that has figures.
type Target struct {
	Cgroups cgroup.Paths
	// NetNS is where a sandbox's own network namespace is pinned, "" for none.
	NetNS string
	// Writes is true for a container, which has a writable layer.
	Writes bool
}

// Meter reads figures. All methods are safe for concurrent use.
type Meter struct {
	tree  *cgroup.Tree
	rates *rates
	disks *disks
}

// Rootfs adds up what containers have written; see image.Rootfs.
type Rootfs interface {
	WritableUsage(ctx context.Context, key string, pace sysfile.Pace) (image.Usage, error)
}

// New makes a Meter and starts its background work. period is the window over which a
// rate of CPU is measured, 0 for the default.
func New(tree *cgroup.Tree, rootfs Rootfs, period time.Duration) *Meter {
	m := &Meter{tree: tree, rates: newRates(cgroup.Paths.CPU), disks: newDisks(rootfs.WritableUsage)}
	m.rates.start(cmp.Or(period, sampleEvery))
	return m
}

// Close ends the background work.
func (m *Meter) Close() {
	m.rates.close()
	m.disks.close()
}

// Watch begins to sample a new object, so that its rate is known after one window, also
// without a request. It ignores an object without a cgroup.
func (m *Meter) Watch(id string, groups cgroup.Paths) { m.rates.begin(id, groups) }

// Forget ends the measurements of a removed object.
func (m *Meter) Forget(id string) {
	m.rates.forget(id)
	m.disks.forget(id)
}

// Written adds up what containers have written, as far as it is known. It waits for nothing: a size that is not known yet, or
// that is old, is measured in the background. The sum has no Mountpoint.
func (m *Meter) Written(ids []string) image.Usage {
	sum := image.Usage{At: time.Now()}
	for _, size := range m.disks.known(ids) {
		sum.Bytes, sum.Inodes = sum.Bytes+int64(size.Bytes), sum.Inodes+int64(size.Inodes) //nolint:gosec // sizes of files
	}
	return sum
}

// Figures reads the figures of all targets in one pass, with details if asked. What
// is gone is absent; a sandbox whose cgroup has not been made yet has its network.
func (m *Meter) Figures(ctx context.Context, targets map[string]Target, details bool) (map[string]*engine.Figures, error) {
	var (
		g       errgroup.Group
		links   map[string][]engine.Link
		written map[string]*engine.Written
		read    = make(map[string]*engine.Figures, len(targets))
	)
	// The networks are read on a thread of their own, while others read the cgroups.
	g.Go(func() (err error) {
		links, err = countLinks(targets)
		return err
	})
	g.Go(func() (err error) {
		written, err = m.disks.of(ctx, targets)
		return err
	})
	var mu sync.Mutex
	rest := make(chan string, len(targets))
	for id := range targets {
		rest <- id
	}
	close(rest)
	for range min(runtime.GOMAXPROCS(0), len(targets)) {
		g.Go(func() error {
			var reader cgroup.Reader
			for id := range rest {
				var f *engine.Figures
				err := errs.Guard("measurement of "+id, func() (err error) {
					f, err = m.read(&reader, id, targets[id], details)
					return err
				})
				switch {
				case errors.Is(err, errs.NotFound):
					continue
				case err != nil:
					return err
				}
				mu.Lock()
				read[id] = f
				mu.Unlock()
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for id, target := range targets {
		f := read[id]
		if f == nil && links[target.NetNS] != nil {
			f = &engine.Figures{At: time.Now()}
			read[id] = f
		}
		if f != nil {
			f.Links, f.Written = links[target.NetNS], written[id]
		}
	}
	return read, ctx.Err()
}

func (m *Meter) read(reader *cgroup.Reader, id string, target Target, withDetails bool) (*engine.Figures, error) {
	if len(target.Cgroups) == 0 {
		return nil, fmt.Errorf("cgroup of %s: %w", id, errs.NotFound)
	}
	stats, err := reader.Stats(target.Cgroups)
	if err != nil {
		return nil, err
	}
	f := figuresOf(&stats)
	m.rates.watch(id, target.Cgroups, f.At, f.CPU)
	if !withDetails {
		return f, nil
	}
	details, err := target.Cgroups.Details()
	if err != nil {
		return nil, err
	}
	f.Details = detailsOf(&details)
	f.Details.Cgroup = m.tree.PathOf(target.Cgroups)
	countProcesses(f.Details, target.Cgroups.Processes())
	return f, nil
}

// loopback is the interface that figures leave out.
const loopback = "lo"

// countLinks reads the networks of all targets that have one.
func countLinks(targets map[string]Target) (map[string][]engine.Link, error) {
	var paths []string
	for _, target := range targets {
		if target.NetNS != "" {
			paths = append(paths, target.NetNS)
		}
	}
	counters, err := sysns.CountLinks(paths)
	if err != nil {
		return nil, err
	}
	all := make(map[string][]engine.Link, len(counters))
	for path, links := range counters {
		all[path] = []engine.Link{}
		for _, link := range links {
			if link.Name != loopback {
				all[path] = append(all[path], engine.Link(link))
			}
		}
	}
	return all, nil
}

// Containers reads the stats of containers, without attributes.
func (m *Meter) Containers(ctx context.Context, targets map[string]Target) (map[string]*runtimeapi.ContainerStats, error) {
	figures, err := m.Figures(ctx, targets, false)
	if err != nil {
		return nil, err
	}
	all := make(map[string]*runtimeapi.ContainerStats, len(figures))
	for id, f := range figures {
		all[id] = &runtimeapi.ContainerStats{
			Cpu: m.cpuUsage(id, f), Memory: memoryUsage(f), Swap: swapUsage(f), Io: ioUsage(f), WritableLayer: layerUsage(f.Written),
		}
	}
	return all, nil
}

// Sandboxes reads the stats of sandboxes, without their containers.
func (m *Meter) Sandboxes(ctx context.Context, targets map[string]Target) (map[string]*runtimeapi.LinuxPodSandboxStats, error) {
	figures, err := m.Figures(ctx, targets, false)
	if err != nil {
		return nil, err
	}
	all := make(map[string]*runtimeapi.LinuxPodSandboxStats, len(figures))
	for id, f := range figures {
		all[id] = &runtimeapi.LinuxPodSandboxStats{
			Cpu: m.cpuUsage(id, f), Memory: memoryUsage(f), Io: ioUsage(f), Network: networkUsage(f),
			Process: &runtimeapi.ProcessUsage{Timestamp: f.At.UnixNano(), ProcessCount: value(f.Tasks)},
		}
	}
	return all, nil
}
