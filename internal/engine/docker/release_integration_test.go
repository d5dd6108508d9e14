//go:build integration

package docker_test

import (
	"errors"
	"testing"

	"github.com/berthrun/berth/internal/docker/dockertest"
	"github.com/berthrun/berth/internal/sys/cgroup"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// TestReleaseEndsContainersThatRun: an engine that was killed may find a container again whose end was
// reported. It does not hold up the stop of its sandbox.
func TestReleaseEndsContainersThatRun(t *testing.T) {
	d := dockertest.Start(t, dockertest.Options{})
	p := newPod(t, newEngine(t, d), dockertest.LoadImage(t, d))
	pidfd, err := sysproc.OpenPidfd(p.pidOf(p.run("again", "trap '' TERM; sleep 100000", nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer pidfd.Close()
	if err := errors.Join(p.e.StopSandbox(t.Context(), p.spec.ID), p.e.ReleaseSandbox(t.Context(), p.spec.ID)); err != nil {
		t.Fatal(err)
	}
	if err := sysproc.AwaitExit(within(t), pidfd); err != nil {
		t.Error(err)
	}
	tree, err := cgroup.Find()
	if err != nil {
		t.Fatal(err)
	}
	if tree.Exists(p.sb.CgroupParent) {
		t.Errorf("cgroup %s is left", p.sb.CgroupParent)
	}
}
