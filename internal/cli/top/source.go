package top

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/errs"
)

// readTime bounds one reading.
const readTime = 30 * time.Second

// read asks the runtime for everything that a frame shows: five calls at most, whatever the number of pods.
func read(ctx context.Context, conn *criclient.Conn) (*sample, error) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	var s sample
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		resp, err := conn.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		s.usage.Pods = resp.GetItems()
		return err
	})
	group.Go(func() error {
		resp, err := conn.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
		s.usage.Containers = resp.GetContainers()
		return err
	})
	group.Go(func() (err error) {
		s.usage.PodStats, s.usage.ContainerStats, err = readStats(ctx, conn)
		return err
	})
	group.Go(func() (err error) {
		s.jobs, err = conn.Berth.ListJobs(ctx)
		if errors.Is(err, errs.Unsupported) {
			s.noJobs, err = true, nil
		}
		return err
	})
	if err := group.Wait(); err != nil {
		return nil, err
	}
	s.at = time.Now()
	return &s, nil
}

// readStats reads the figures of containers with those of pods, which berth has in one answer. Other runtimes may
// have no figures of pods, or none of containers in them.
func readStats(ctx context.Context, conn *criclient.Conn) ([]*runtimeapi.PodSandboxStats, []*runtimeapi.ContainerStats, error) {
	pods, err := conn.Runtime.ListPodSandboxStats(ctx, &runtimeapi.ListPodSandboxStatsRequest{})
	if err != nil && !errors.Is(err, errs.Unsupported) {
		return nil, nil, err
	}
	for _, p := range pods.GetStats() {
		if len(p.GetLinux().GetContainers()) > 0 {
			return pods.GetStats(), nil, nil
		}
	}
	containers, err := conn.Runtime.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{})
	return pods.GetStats(), containers.GetStats(), err
}
