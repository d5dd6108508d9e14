package podrun

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/podrun/volumes"
	"github.com/berthrun/berth/internal/cli/podyaml/podspec"
	"github.com/berthrun/berth/internal/errs"
)

// finishTime bounds what comes after the containers' own grace.
const finishTime = time.Minute

// stopAll stops the pod's containers and waits until all that they wrote is shown.
func (k *podRun) stopAll(ctx context.Context) error {
	err := k.stopContainers(ctx)
	k.followers.Wait()
	return err
}

// stopContainers stops all containers at once, but the sidecars wait, the last one first,
// until the others have ended: these may need them. preStop hooks do not wait. All share
// one grace period, as under a kubelet.
func (k *podRun) stopContainers(ctx context.Context) error {
	grace := k.grace()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*grace+finishTime)
	defer cancel()
	var stopping sync.WaitGroup
	results := make([]error, len(k.pod.Spec.InitContainers)+len(k.pod.Spec.Containers))
	var others []*attempt // whom the next sidecar waits for
	for i := range k.pod.Spec.Containers {
		a := k.latest(k.pod.Spec.Containers[i].Name)
		others = append(others, a)
		stopping.Go(func() { results[i] = k.stop(ctx, a, grace, nil) })
	}
	for i := len(k.pod.Spec.InitContainers) - 1; i >= 0; i-- {
		c := &k.pod.Spec.InitContainers[i]
		a, before := k.latest(c.Name), others
		waitTurn := func(ctx context.Context) { k.awaitAll(ctx, before) }
		others = append(slices.Clone(others), a)
		stopping.Go(func() { results[len(k.pod.Spec.Containers)+i] = k.stop(ctx, a, grace, waitTurn) })
	}
	stopping.Wait()
	return errors.Join(results...)
}

// awaitAll waits until all have ended, or ctx.
func (k *podRun) awaitAll(ctx context.Context, all []*attempt) {
	for _, a := range all {
		if a == nil {
			continue
		}
		select {
		case <-a.ended:
		case <-ctx.Done():
			return
		}
	}
}

// stop ends one attempt, with its grace or, when Kill is closed, at once.
func (k *podRun) stop(ctx context.Context, a *attempt, grace time.Duration, waitTurn func(ctx context.Context)) error {
	if a == nil || a.hasEnded() {
		return nil
	}
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	asked := make(chan error, 1)
	go func() { asked <- k.terminate(waiting, a, grace, waitTurn) }()
	var err error
	select {
	case err = <-asked:
	case <-k.Kill:
		err = k.askToStop(ctx, a, 0)
	}
	if err != nil {
		a.end(nil, "")
		return err
	}
	status, err := k.containerStatus(ctx, a)
	if err == nil && status.GetState() == runtimeapi.ContainerState_CONTAINER_CREATED {
		a.end(status, "") // it has never run
		return nil
	}
	if err == nil {
		err = k.await(ctx, a)
	}
	if err != nil {
		a.end(nil, "")
	}
	return err
}

func (k *podRun) askToStop(ctx context.Context, a *attempt, grace time.Duration) error {
	err := k.retryUnavailable(ctx, func(ctx context.Context) error {
		_, err := k.Conn.Runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{
			ContainerId: a.id, Timeout: int64((grace + time.Second - 1) / time.Second),
		})
		return err
	})
	if err := errs.IgnoreNotFound(err); err != nil {
		return fmt.Errorf("cannot stop container %s: %w", a.spec.Name, err)
	}
	return nil
}

// end stops the containers, and leaves nothing of the pod. finish says what is left if the runtime has
// gone.
func (k *podRun) end(ctx context.Context) error {
	err := k.stopAll(ctx)
	if k.gone.Load() {
		err = nil
	}
	return errors.Join(err, k.finish(ctx))
}

// finish stops the sandbox and removes its volumes, which nothing can use any more;
// its containers and their logs stay for people to look at, unless Remove is set.
func (k *podRun) finish(ctx context.Context) error {
	k.hosts.Lock()
	k.ending = true
	k.hosts.Unlock()
	if k.Ends != nil {
		k.Ends()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTime)
	defer cancel()
	err := k.finishSandbox(ctx)
	if errors.Is(err, errs.Unavailable) && k.gone.Load() {
		err = fmt.Errorf("pod %s/%s may be left: once the daemon runs, `berth pod rm --force %s/%s` removes it: %w",
			k.pod.Namespace, k.pod.Name, k.pod.Namespace, k.pod.Name, errs.Unavailable)
	}
	return err
}

func (k *podRun) finishSandbox(ctx context.Context) error {
	if k.sandboxID == "" && k.requested {
		if err := k.findSandbox(ctx); err != nil {
			// No container was created: nothing uses the files.
			return errors.Join(err, k.removeFiles())
		}
	}
	if k.sandboxID == "" {
		return k.removeFiles()
	}
	err := k.retryUnavailable(ctx, func(ctx context.Context) error {
		_, err := k.Conn.Runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: k.sandboxID})
		return errs.IgnoreNotFound(err)
	})
	if err != nil {
		return err
	}
	if !k.Remove {
		return volumes.Remove(k.facts.Dir)
	}
	err = k.retryUnavailable(ctx, func(ctx context.Context) error {
		_, err := k.Conn.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: k.sandboxID})
		return err
	})
	if err != nil {
		return err
	}
	return k.removeFiles()
}

// findSandbox looks for a sandbox that was made although the answer got lost.
func (k *podRun) findSandbox(ctx context.Context) error {
	return k.retryUnavailable(ctx, func(ctx context.Context) error {
		resp, err := k.Conn.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		for _, sandbox := range resp.GetItems() {
			if sandbox.Metadata.GetUid() == string(k.pod.UID) {
				k.sandboxID = sandbox.Id
			}
		}
		return err
	})
}

func (k *podRun) removeFiles() error { return RemoveFiles(k.facts.Dir, k.facts.LogDir) }

// RemoveFiles removes a removed pod's volumes and logs, which are in the directories VolumeDir and
// LogDir.
func RemoveFiles(volumeDir, logDir string) error {
	err := volumes.Remove(volumeDir)
	if logErr := os.RemoveAll(logDir); logErr != nil {
		err = errors.Join(err, fmt.Errorf("cannot remove the pod's logs: %w", logErr))
	}
	return err
}

// exitCode is that of the first container, in the file's order, that failed. The code
// of a sidecar does not count, as it is stopped.
func (k *podRun) exitCode() int {
	for _, list := range [][]corev1.Container{k.pod.Spec.InitContainers, k.pod.Spec.Containers} {
		for i := range list {
			a := k.latest(list[i].Name)
			if a == nil || podspec.IsSidecar(&list[i]) {
				continue
			}
			if code := a.status.GetExitCode(); code != 0 {
				return int(code)
			}
		}
	}
	return 0
}
